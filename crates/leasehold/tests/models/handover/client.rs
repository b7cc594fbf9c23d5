//! What clients do with what they hear, and how time passes.

use super::claim::{NEVER, Phase, Renewal, Request, Told};
use super::rules::{Answers, Rules};
use super::state::State;

fn count_down(timer: &mut u8) {
    if *timer != NEVER {
        *timer = timer.saturating_sub(1);
    }
}

impl<const CLAIMS: usize> State<CLAIMS> {
    pub(crate) fn ask(&mut self, claim: usize) {
        if self.claims[claim].phase == Phase::Idle {
            let observed = &self.claims[0];
            self.claims[claim].behind = observed.position > 0 && observed.phase != Phase::Gone;
        }
        self.claims[claim].stop_waiting_for_answers();
        self.claims[claim].phase = Phase::Asking {
            age: 0,
            granted: None,
        };
        self.claims[claim].notified = false;
    }

    pub(crate) fn attempt_is_answered(&mut self, claim: usize, token: Option<u8>, rules: &Rules) {
        let Phase::Asking { age, granted } = &mut self.claims[claim].phase else {
            return;
        };
        let age = *age;
        *granted = token;
        match token {
            None => self.wait(claim, rules),
            Some(token) if rules.answers == Answers::AtOnce => {
                self.rely(claim, token, rules.grant_validity(age));
            }
            Some(_) => {}
        }
    }

    fn wait(&mut self, claim: usize, rules: &Rules) {
        let left = self.holder().map_or(0, |(_, record)| record.left);
        // A waiter that is not next looks only in case those ahead of it are dead.
        let later = u8::from(self.claims[claim].position > 1);
        let look_in = match rules.look_again {
            true => left.saturating_add(later),
            false => NEVER,
        };
        self.claims[claim].phase = Phase::Waiting {
            look_in,
            told: None,
        };
    }

    /// For a waiter that trusts its queue entry without asking.
    pub(crate) fn wait_on(&mut self, claim: usize, rules: &Rules) {
        self.wait(claim, rules);
        if let Phase::Waiting { look_in, .. } = &mut self.claims[claim].phase {
            *look_in = rules.ttl + 1;
        }
        self.claims[claim].notified = false;
    }

    /// The client begins to rely on the lock. One that hears too late gives up.
    pub(crate) fn rely(&mut self, claim: usize, token: u8, valid: Option<u8>) {
        let Some(valid) = valid else {
            return self.leave(claim);
        };
        self.token_fell |= token <= self.greatest_token && token != self.claims[claim].forced_out;
        self.greatest_token = self.greatest_token.max(token);
        self.served = 2.min(self.served + 1);
        self.claims[claim].notified = false;
        self.claims[claim].phase = Phase::Holding {
            token,
            valid,
            renewal: None,
        };
    }

    pub(crate) fn offer_is_told(&mut self, claim: usize, rules: &Rules) {
        let Some(record) = self.claims[claim].record else {
            return;
        };
        let offer = Told {
            token: record.token,
            age: rules.offer.saturating_sub(record.left),
        };
        match (&mut self.claims[claim].phase, rules.answers) {
            (Phase::Waiting { told, .. }, Answers::Travel) => *told = Some(offer),
            _ => self.hear_of_offer(claim, offer, rules),
        }
    }

    /// An offer that is too old to rely on is asked for with another attempt.
    pub(crate) fn hear_of_offer(&mut self, claim: usize, offer: Told, rules: &Rules) {
        match rules.offer_validity(offer.age) {
            Some(valid) => self.rely(claim, offer.token, Some(valid)),
            None => self.ask(claim),
        }
    }

    pub(crate) fn renewal_is_answered(&mut self, claim: usize, renewed: Option<u8>, rules: &Rules) {
        let Phase::Holding { token, renewal, .. } = &mut self.claims[claim].phase else {
            return;
        };
        if renewed.is_none() || rules.renewal_checks_claim && renewed != Some(*token) {
            *renewal = None;
            return self.leave(claim);
        }
        if let Some(renewal) = renewal {
            renewal.granted = true;
        }
        if rules.answers == Answers::AtOnce {
            self.hear_of_renewal(claim, rules);
        }
    }

    pub(crate) fn hear_of_renewal(&mut self, claim: usize, rules: &Rules) {
        if let Phase::Holding { valid, renewal, .. } = &mut self.claims[claim].phase
            && let Some(Renewal { age, .. }) = renewal.take()
        {
            *valid = (*valid).max(rules.grant_validity(age).unwrap_or(0));
        }
    }

    /// The client is done with its claim, or has died: then the release never arrives.
    pub(crate) fn leave(&mut self, claim: usize) {
        self.is_no_longer_queued(claim);
        let claim = &mut self.claims[claim];
        claim.stop_waiting_for_answers();
        claim.phase = Phase::Gone;
        claim.late |= Request::Release.bit();
        claim.notified = false;
        claim.lagged = false;
        claim.forced_out = 0;
        claim.behind = false;
    }

    pub(crate) fn tick(&mut self, slow: Option<usize>, rules: &Rules) {
        self.count_waiting(rules);
        for claim in 0..CLAIMS {
            if let Some(record) = &mut self.claims[claim].record {
                count_down(&mut record.left);
            }
            match slow == Some(claim) {
                true => self.claims[claim].lagged = true,
                false => self.tick_client(claim, rules),
            }
        }
    }

    fn tick_client(&mut self, claim: usize, rules: &Rules) {
        // What is as old as that makes no grant valid.
        let grow = |age: &mut u8| *age = rules.ttl.min(*age + 1);
        match &mut self.claims[claim].phase {
            Phase::Idle | Phase::Gone => {}
            Phase::Asking { age, .. } => grow(age),
            Phase::Waiting { look_in, told } => {
                count_down(look_in);
                if let Some(told) = told {
                    grow(&mut told.age);
                }
            }
            Phase::Holding { valid, renewal, .. } => {
                count_down(valid);
                if let Some(renewal) = renewal {
                    grow(&mut renewal.age);
                }
                if *valid == 0 {
                    self.leave(claim);
                }
            }
        }
    }

    /// For how long the observed claim has waited since the lock became free or was offered for the last time, while
    /// nobody relied on the lock, and although its process did in time what it had to do.
    fn count_waiting(&mut self, rules: &Rules) {
        let (is_free, is_ended_offer) = match self.holder() {
            None => (true, false),
            Some((_, record)) if record.left == 0 => (true, record.offered),
            Some((holder, record)) => (record.offered && !self.claims[holder].relies(), false),
        };
        let must_pass_on = is_ended_offer
            && rules.has_listeners()
            && rules.listeners_pass_on
            && rules.notices_count();
        let observed = &self.claims[0];
        let is_in_time = !observed.notified
            && !must_pass_on
            && matches!(observed.phase, Phase::Waiting { look_in, told: None } if look_in > 0);
        self.waited = match is_free && is_in_time {
            true => rules.patience.min(self.waited) + 1,
            false => 0,
        };
    }
}
