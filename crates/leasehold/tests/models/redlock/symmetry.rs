//! One name for all states that differ only in the names of nodes and clients.

use super::claim::Claim;
use super::node::{Memory, Node};
use super::state::State;

impl<const NODES: usize, const CLAIMS: usize> State<NODES, CLAIMS> {
    /// Puts the clients in the order of their claims, and the nodes in the order of all that is
    /// known of them; among clients whose claims are the same, the order that makes the nodes least.
    pub(crate) fn rename(&mut self, claims_per_client: usize) {
        if self.is_in_strict_order(claims_per_client) {
            return self.nodes.sort_unstable();
        }
        let clients = CLAIMS / claims_per_client;
        let mut order: Vec<usize> = (0..clients).collect();
        let mut least: Option<Self> = None;
        each_order(&mut order, 0, &mut |order| {
            let from: [usize; CLAIMS] = std::array::from_fn(|to| {
                order[to / claims_per_client] * claims_per_client + to % claims_per_client
            });
            let claims = from.map(|from| self.claims[from]);
            if !claims.chunks(claims_per_client).is_sorted() {
                return;
            }
            let renamed = self.renamed(claims, &from);
            if least.is_none_or(|least| renamed < least) {
                least = Some(renamed);
            }
        });
        *self = least.unwrap_or(*self);
    }

    /// Clients that have not begun cannot be told apart, so their order says nothing.
    fn is_in_strict_order(&self, claims_per_client: usize) -> bool {
        let clients = self.claims.chunks(claims_per_client);
        clients
            .clone()
            .zip(clients.skip(1))
            .all(|(one, next)| one < next || one == next && !one[0].is_proposed())
    }

    fn renamed(&self, claims: [Claim; CLAIMS], from: &[usize; CLAIMS]) -> Self {
        let mut to = [0; CLAIMS];
        for (new, old) in from.iter().enumerate() {
            to[*old] = new;
        }
        let mut nodes = self.nodes.map(|node| renamed_node(&node, from, &to));
        nodes.sort_unstable();
        Self {
            nodes,
            claims,
            restarts: self.restarts,
        }
    }
}

fn renamed_node<const CLAIMS: usize>(
    node: &Node<CLAIMS>,
    from: &[usize; CLAIMS],
    to: &[usize; CLAIMS],
) -> Node<CLAIMS> {
    let mut renamed = *node;
    let saved = renamed.saved.as_mut().and_then(|saved| saved.hold.as_mut());
    for hold in renamed.hold.as_mut().into_iter().chain(saved) {
        hold.claim = to[usize::from(hold.claim)] as u8;
    }
    if let Memory::Lost(awaited) = node.memory {
        renamed.memory = Memory::Lost(from.map(|old| awaited[old]));
    }
    renamed.ballots = from.map(|old| node.ballots[old]);
    for ballot in &mut renamed.ballots {
        let late = ballot.late;
        ballot.late = 0;
        for (old, new) in to.iter().enumerate() {
            if late & (1 << old) != 0 {
                ballot.late |= 1 << new;
            }
        }
    }
    renamed
}

fn each_order(order: &mut [usize], fixed: usize, visit: &mut impl FnMut(&[usize])) {
    if fixed == order.len() {
        return visit(order);
    }
    for next in fixed..order.len() {
        order.swap(fixed, next);
        each_order(order, fixed + 1, visit);
        order.swap(fixed, next);
    }
}
