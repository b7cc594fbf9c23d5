//! What can happen next, and what it leads to.

use stateright::{Model, Property};

use super::claim::{Claim, Phase, Renewal, Request};
use super::rules::{Content, Rules};
use super::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// An attempt leaves: the first one, or because the waiter was notified, rightly or not, or looks again by itself,
    /// or because the client waits no longer for the answer to the attempt before.
    Ask(usize),
    AttemptArrives {
        claim: usize,
        passed_over: u8,
    },
    AnswerArrives(usize),
    /// The listener of the waiter asks the server, and that tells of an offer.
    OfferIsTold(usize),
    OfferIsHeard(usize),
    /// A listener finds an offer that has ended.
    PassOn {
        passed_over: u8,
    },
    SendRenewal(usize),
    RenewalArrives(usize),
    RenewalAnswerArrives(usize),
    StopWaitingForRenewal(usize),
    /// The client releases, gives up or dies.
    Leave(usize),
    ArrivesLate {
        claim: usize,
        request: Request,
        passed_over: u8,
    },
    ForceRelease {
        passed_over: u8,
    },
    /// A notice that the server did not send says that the lock is granted.
    ForgedGrant(usize),
    Tick {
        slow: Option<usize>,
    },
}

pub(crate) struct Handover<const CLAIMS: usize> {
    pub(crate) rules: Rules,
}

impl<const CLAIMS: usize> Handover<CLAIMS> {
    fn client_actions(&self, state: &State<CLAIMS>, claim: usize, actions: &mut Vec<Action>) {
        let rules = &self.rules;
        let Claim { phase, record, .. } = state.claims[claim];
        match phase {
            Phase::Idle => actions.push(Action::Ask(claim)),
            Phase::Asking { granted, .. } => {
                match granted {
                    Some(_) => actions.push(Action::AnswerArrives(claim)),
                    None => self.decisions(state, Some(claim), actions, |passed_over| {
                        Action::AttemptArrives { claim, passed_over }
                    }),
                }
                if rules.requests_are_late {
                    actions.extend([Action::Ask(claim), Action::Leave(claim)]);
                }
            }
            Phase::Waiting { told, .. } => {
                actions.extend([Action::Ask(claim), Action::Leave(claim)]);
                if rules.content == Content::Grant {
                    actions.push(Action::ForgedGrant(claim));
                }
                if rules.relies_on_offers()
                    && record.is_some_and(|record| record.offered && record.left > 0)
                {
                    actions.push(Action::OfferIsTold(claim));
                }
                if told.is_some() {
                    actions.push(Action::OfferIsHeard(claim));
                }
            }
            Phase::Holding { valid, renewal, .. } => {
                actions.push(Action::Leave(claim));
                match renewal {
                    None if valid < rules.ttl - rules.margin => {
                        actions.push(Action::SendRenewal(claim));
                    }
                    None => {}
                    Some(renewal) => {
                        actions.push(match renewal.granted {
                            true => Action::RenewalAnswerArrives(claim),
                            false => Action::RenewalArrives(claim),
                        });
                        if rules.requests_are_late {
                            actions.push(Action::StopWaitingForRenewal(claim));
                        }
                    }
                }
            }
            Phase::Gone => {}
        }
        let late = |request: &Request| state.claims[claim].late & request.bit() != 0;
        for request in Request::ALL.into_iter().filter(late) {
            let own = (request == Request::Attempt).then_some(claim);
            self.decisions(state, own, actions, |passed_over| Action::ArrivesLate {
                claim,
                request,
                passed_over,
            });
        }
    }

    /// One action for each number of waiters that the server may take for dead.
    fn decisions(
        &self,
        state: &State<CLAIMS>,
        own: Option<usize>,
        actions: &mut Vec<Action>,
        decide: impl Fn(u8) -> Action,
    ) {
        actions.extend((0..=state.may_pass_over(own, &self.rules)).map(decide));
    }

    fn apply(&self, state: &mut State<CLAIMS>, action: Action) {
        let rules = &self.rules;
        match action {
            Action::Ask(claim) if state.claims[claim].waits() && !rules.woken_ask_again => {
                state.wait_on(claim, rules);
            }
            Action::Ask(claim) => state.ask(claim),
            Action::AttemptArrives { claim, passed_over } => {
                let token = state.attempt(claim, passed_over, rules);
                state.attempt_is_answered(claim, token, rules);
            }
            Action::AnswerArrives(claim) => {
                if let Phase::Asking {
                    age,
                    granted: Some(token),
                } = state.claims[claim].phase
                {
                    state.rely(claim, token, rules.grant_validity(age));
                }
            }
            Action::OfferIsTold(claim) => state.offer_is_told(claim, rules),
            Action::OfferIsHeard(claim) => {
                if let Phase::Waiting {
                    told: Some(offer), ..
                } = state.claims[claim].phase
                {
                    state.hear_of_offer(claim, offer, rules);
                }
            }
            Action::PassOn { passed_over } => state.pass_on(passed_over, rules),
            Action::SendRenewal(claim) => {
                if let Phase::Holding { renewal, .. } = &mut state.claims[claim].phase {
                    *renewal = Some(Renewal {
                        age: 0,
                        granted: false,
                    });
                }
            }
            Action::RenewalArrives(claim) => {
                let token = state.renew(claim, rules);
                state.renewal_is_answered(claim, token, rules);
            }
            Action::RenewalAnswerArrives(claim) => state.hear_of_renewal(claim, rules),
            Action::StopWaitingForRenewal(claim) => state.claims[claim].stop_waiting_for_answers(),
            Action::Leave(claim) => state.leave(claim),
            Action::ArrivesLate {
                claim,
                request,
                passed_over,
            } => {
                state.claims[claim].late &= !request.bit();
                match request {
                    Request::Attempt => drop(state.attempt(claim, passed_over, rules)),
                    Request::Renewal => drop(state.renew(claim, rules)),
                    Request::Release => state.release(claim, passed_over, rules),
                }
            }
            Action::ForceRelease { passed_over } => {
                state.force_releases -= 1;
                state.force_release(passed_over, rules);
            }
            Action::ForgedGrant(claim) => {
                let token = state.last_token + 1;
                state.rely(claim, token, rules.offer_validity(0));
            }
            Action::Tick { slow } => state.tick(slow, rules),
        }
    }
}

impl<const CLAIMS: usize> Model for Handover<CLAIMS> {
    type State = State<CLAIMS>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State::new(&self.rules)]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        let rules = &self.rules;
        for claim in 0..CLAIMS {
            self.client_actions(state, claim, actions);
        }
        if let Some((_, record)) = state.holder() {
            if state.force_releases > 0 {
                self.decisions(state, None, actions, |passed_over| Action::ForceRelease {
                    passed_over,
                });
            }
            if rules.has_listeners()
                && rules.listeners_pass_on
                && record.offered
                && record.left == 0
                && state.waiting().next().is_some()
            {
                self.decisions(state, None, actions, |passed_over| Action::PassOn {
                    passed_over,
                });
            }
        }
        actions.push(Action::Tick { slow: None });
        if rules.clocks_drift {
            let may_lag = |claim: &usize| {
                let claim = &state.claims[*claim];
                !claim.lagged && !matches!(claim.phase, Phase::Idle | Phase::Gone)
            };
            let slow = (0..CLAIMS).filter(may_lag);
            actions.extend(slow.map(|claim| Action::Tick { slow: Some(claim) }));
        }
    }

    fn next_state(&self, state: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut next = *state;
        self.apply(&mut next, action);
        next.renumber_tokens();
        if self.rules.symmetry {
            next.rename_claims();
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let asked = self.rules.asked.iter();
        asked.map(|asked| asked.property()).collect()
    }
}
