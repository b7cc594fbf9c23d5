//! The state of the world: nodes, claims, and how votes are counted.

use super::claim::Claim;
use super::node::Node;
use super::rules::{Replies, Rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct State<const NODES: usize, const CLAIMS: usize> {
    pub(crate) nodes: [Node<CLAIMS>; NODES],
    /// One client's claims stand side by side, in the order in which it makes them.
    pub(crate) claims: [Claim; CLAIMS],
    pub(crate) restarts: u8,
}

impl<const NODES: usize, const CLAIMS: usize> State<NODES, CLAIMS> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: [Node::new(); NODES],
            claims: [Claim::default(); CLAIMS],
            restarts: 0,
        }
    }

    /// How many nodes have voted for this round, as far as the client has heard.
    pub(crate) fn heard(&self, claim: usize, round: u8) -> usize {
        let bit = 1 << round;
        self.nodes
            .iter()
            .filter(|node| node.ballots[claim].heard & bit != 0)
            .count()
    }

    pub(crate) fn voted(&self, claim: usize, round: u8) -> usize {
        let bit = 1 << round;
        let votes = |node: &&Node<CLAIMS>| {
            (node.ballots[claim].heard | node.ballots[claim].said) & bit != 0
        };
        self.nodes.iter().filter(votes).count()
    }

    /// Whether the client holds the lock by this claim, by its own reckoning.
    pub(crate) fn holds(&self, claim: usize, quorum: usize) -> bool {
        self.claims[claim]
            .running()
            .any(|round| self.heard(claim, round) >= quorum)
    }

    pub(crate) fn vote(&mut self, node: usize, claim: usize, round: u8, rules: &Rules) {
        if !self.claims[claim].running().contains(&round) {
            return;
        }
        let bit = 1 << round;
        if rules.watches_the_order() {
            let late = self.granted_with_no_lesser_token(claim);
            self.nodes[node].ballots[claim].late |= late;
        }
        let ballot = &mut self.nodes[node].ballots[claim];
        match rules.replies {
            Replies::AtOnce => ballot.heard |= bit,
            Replies::Travel if ballot.heard & bit == 0 => ballot.said |= bit,
            Replies::Travel => {}
        }
        if round == 0 && self.voted(claim, 0) >= rules.quorum {
            self.claims[claim].granted = true;
        }
    }

    fn granted_with_no_lesser_token(&self, claim: usize) -> u8 {
        let token = self.claims[claim].token;
        let mut bits = 0;
        for (index, other) in self.claims.iter().enumerate() {
            if index != claim && other.granted && other.token >= token {
                bits |= 1 << index;
            }
        }
        bits
    }

    pub(crate) fn end_round(&mut self, claim: usize, rules: &Rules) {
        self.claims[claim].ended += 1;
        if self.holds(claim, rules.quorum) {
            self.forget_ended_rounds(claim);
        } else {
            self.finish(claim);
        }
    }

    pub(crate) fn finish(&mut self, claim: usize) {
        self.claims[claim].finish();
        self.forget_ended_rounds(claim);
    }

    fn forget_ended_rounds(&mut self, claim: usize) {
        let ended = self.claims[claim];
        for node in &mut self.nodes {
            node.round_ended(claim, &ended);
        }
    }
}
