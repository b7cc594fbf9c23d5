//! What can happen next, and what it leads to.

use stateright::{Model, Property};

use super::claim::Claim;
use super::rules::{Clocks, Expiry, Rules};
use super::state::State;

/// The network keeps every message that was ever sent, and may deliver it to any node at any time:
/// so it is lost, late, out of order or repeated. What was sent can be told from the claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Acquire,
    Renew { round: u8 },
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Propose {
        claim: usize,
        token: u8,
    },
    Arrives {
        node: usize,
        claim: usize,
        message: Message,
    },
    ReplyArrives {
        node: usize,
        claim: usize,
        round: u8,
    },
    SendRenewal {
        claim: usize,
    },
    GiveUp {
        claim: usize,
    },
    ValidityEnds {
        claim: usize,
    },
    Expires {
        node: usize,
    },
    LosesItsMemory {
        node: usize,
    },
    Saves {
        node: usize,
    },
    ComesBackWithAnOldMemory {
        node: usize,
    },
    QuarantineEnds {
        node: usize,
    },
}

pub(crate) struct Redlock<const NODES: usize, const CLAIMS: usize> {
    pub(crate) rules: Rules,
}

impl<const NODES: usize, const CLAIMS: usize> Redlock<NODES, CLAIMS> {
    fn tokens(&self, state: &State<NODES, CLAIMS>) -> std::ops::RangeInclusive<u8> {
        match self.rules.clocks {
            Clocks::Arbitrary(greatest) => 1..=greatest,
            Clocks::Right => {
                let last = state
                    .claims
                    .iter()
                    .map(|claim| claim.token)
                    .max()
                    .unwrap_or(0);
                let unanswered = |index: usize| {
                    state.claims[index].running() == (0..1) && state.voted(index, 0) == 0
                };
                let same = last > 0
                    && (0..CLAIMS)
                        .all(|index| state.claims[index].token < last || unanswered(index));
                if same {
                    last..=last + 1
                } else {
                    last + 1..=last + 1
                }
            }
        }
    }

    fn client_actions(
        &self,
        state: &State<NODES, CLAIMS>,
        index: usize,
        actions: &mut Vec<Action>,
    ) {
        let claim = &state.claims[index];
        if !claim.is_proposed() {
            let first = index.is_multiple_of(self.rules.claims_per_client);
            if first || state.claims[index - 1].is_over() {
                actions.extend(self.tokens(state).map(|token| Action::Propose {
                    claim: index,
                    token,
                }));
            }
        }
        if !claim.is_open() {
            return;
        }
        actions.push(Action::GiveUp { claim: index });
        if self.rules.expiry != Expiry::AtAnyTime {
            actions.push(Action::ValidityEnds { claim: index });
        }
        if claim.sent <= self.rules.renewals && state.holds(index, self.rules.quorum) {
            actions.push(Action::SendRenewal { claim: index });
        }
    }

    fn arrivals(
        &self,
        state: &State<NODES, CLAIMS>,
        node: usize,
        claim: usize,
        actions: &mut Vec<Action>,
    ) {
        let Claim { sent, .. } = state.claims[claim];
        let mut arrives = |message| {
            actions.push(Action::Arrives {
                node,
                claim,
                message,
            })
        };
        if sent > 0 {
            arrives(Message::Acquire);
        }
        for round in 1..sent {
            arrives(Message::Renew { round });
        }
        if state.claims[claim].is_over() {
            arrives(Message::Release);
        }
        let Claim { ended, .. } = state.claims[claim];
        let said = state.nodes[node].ballots[claim].said;
        for round in (ended..sent).filter(|round| said & (1 << round) != 0) {
            actions.push(Action::ReplyArrives { node, claim, round });
        }
    }

    fn may_expire(&self, state: &State<NODES, CLAIMS>, node: usize) -> bool {
        let Some(hold) = state.nodes[node].hold else {
            return false;
        };
        let claim = usize::from(hold.claim);
        let ended = hold.round < state.claims[claim].ended || state.claims[claim].is_over();
        match self.rules.expiry {
            Expiry::AtAnyTime => true,
            Expiry::AfterValidity => ended,
            Expiry::AfterReply => {
                ended || state.nodes[node].ballots[claim].said & (1 << hold.round) != 0
            }
        }
    }

    fn apply(&self, state: &mut State<NODES, CLAIMS>, action: Action) {
        let rules = &self.rules;
        match action {
            Action::Propose { claim, token } => state.claims[claim].propose(token),
            Action::Arrives {
                node,
                claim,
                message,
            } => {
                let token = state.claims[claim].token;
                let (round, votes) = match message {
                    Message::Acquire => (0, state.nodes[node].acquire(claim, token, rules)),
                    Message::Renew { round } => {
                        (round, state.nodes[node].renew(claim, token, round, rules))
                    }
                    Message::Release => {
                        state.nodes[node].release(claim, rules);
                        return;
                    }
                };
                if state.claims[claim].is_over() || rules.expiry == Expiry::AtAnyTime {
                    state.nodes[node].round_does_not_matter(claim);
                }
                if votes {
                    state.vote(node, claim, round, rules);
                }
            }
            Action::ReplyArrives { node, claim, round } => {
                let ballot = &mut state.nodes[node].ballots[claim];
                ballot.said &= !(1 << round);
                ballot.heard |= 1 << round;
            }
            Action::SendRenewal { claim } => state.claims[claim].sent += 1,
            Action::GiveUp { claim } => state.finish(claim),
            Action::ValidityEnds { claim } => state.end_round(claim, rules),
            Action::Expires { node } => state.nodes[node].hold = None,
            Action::LosesItsMemory { node } => {
                state.restarts += 1;
                state.nodes[node].restart(&state.claims, rules);
            }
            Action::Saves { node } => state.nodes[node].save(),
            Action::ComesBackWithAnOldMemory { node } => {
                state.restarts += 1;
                if let Some(saved) = state.nodes[node].saved {
                    state.nodes[node].restart_with(saved, &state.claims, rules);
                }
            }
            Action::QuarantineEnds { node } => state.nodes[node].vote_again(),
        }
    }
}

impl<const NODES: usize, const CLAIMS: usize> Model for Redlock<NODES, CLAIMS> {
    type State = State<NODES, CLAIMS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State::new()]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        for claim in 0..CLAIMS {
            self.client_actions(state, claim, actions);
        }
        for node in 0..NODES {
            for claim in 0..CLAIMS {
                self.arrivals(state, node, claim, actions);
            }
            if self.may_expire(state, node) {
                actions.push(Action::Expires { node });
            }
            if state.restarts < self.rules.restarts {
                actions.push(Action::LosesItsMemory { node });
                match state.nodes[node].saved {
                    Some(_) => actions.push(Action::ComesBackWithAnOldMemory { node }),
                    None if self.rules.nodes_save && !state.nodes[node].is_blank() => {
                        actions.push(Action::Saves { node });
                    }
                    None => {}
                }
            }
            if state.nodes[node].may_vote_again() {
                actions.push(Action::QuarantineEnds { node });
            }
        }
    }

    fn next_state(&self, last: &Self::State, action: Action) -> Option<Self::State> {
        let mut next = *last;
        self.apply(&mut next, action);
        if next == *last {
            return None;
        }
        if self.rules.symmetry {
            next.rename(self.rules.claims_per_client);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.rules
            .asked
            .iter()
            .map(|asked| asked.property())
            .collect()
    }
}
