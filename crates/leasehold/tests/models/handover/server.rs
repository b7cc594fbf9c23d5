//! What the server decides. Each call is one transaction.

use super::claim::{NEVER, Phase, Record};
use super::rules::{Rules, Successors};
use super::state::State;

impl<const CLAIMS: usize> State<CLAIMS> {
    /// Answers an attempt: the token if it is granted. So many waiters are taken for dead.
    pub(crate) fn attempt(&mut self, claim: usize, passed_over: u8, rules: &Rules) -> Option<u8> {
        self.expire(rules);
        match self.holder() {
            // The answer to an earlier attempt was lost, or what tells of the offer.
            Some((holder, mut record)) if holder == claim => {
                record.confirm(rules.ttl);
                self.claims[claim].record = Some(record);
            }
            Some(_) => self.enqueue(claim),
            None if rules.newcomers_queue || self.claims[claim].position > 0 => {
                self.enqueue(claim);
                self.admit(Some(claim), passed_over, rules);
            }
            None => self.grant(claim, false, rules),
        }
        self.claims[claim].record.map(|record| record.token)
    }

    /// Answers a renewal: the token if the claim still holds the lock.
    pub(crate) fn renew(&mut self, claim: usize, rules: &Rules) -> Option<u8> {
        let (holder, mut record) = self.holder()?;
        if record.left == 0 || rules.renewal_checks_claim && holder != claim {
            return None;
        }
        record.confirm(rules.ttl);
        self.claims[holder].record = Some(record);
        self.claims[claim].forced_out = 0;
        Some(record.token)
    }

    pub(crate) fn release(&mut self, claim: usize, passed_over: u8, rules: &Rules) {
        match self.holder() {
            Some((holder, _)) if holder == claim || !rules.release_checks_claim => {
                self.claims[holder].record = None;
                self.is_no_longer_queued(holder);
            }
            _ => {
                self.dequeue(claim);
                self.expire(rules);
            }
        }
        self.admit(None, passed_over, rules);
    }

    pub(crate) fn force_release(&mut self, passed_over: u8, rules: &Rules) {
        if let Some((holder, record)) = self.holder() {
            if self.claims[holder].phase != Phase::Gone {
                self.claims[holder].forced_out = record.token;
            }
            self.take_from(holder, record, rules);
        }
        self.admit(None, passed_over, rules);
    }

    /// A listener has found that an offer has ended.
    pub(crate) fn pass_on(&mut self, passed_over: u8, rules: &Rules) {
        self.expire(rules);
        self.admit(None, passed_over, rules);
    }

    /// How many waiters at the head of the queue the server may take for dead when it decides on a request of `own`.
    pub(crate) fn may_pass_over(&self, own: Option<usize>, rules: &Rules) -> u8 {
        let mut dead = 0;
        while let Some(claim) = self.at(dead + 1)
            && own != Some(claim)
            && (rules.living_are_passed_over || self.claims[claim].phase == Phase::Gone)
        {
            dead += 1;
        }
        dead
    }

    fn at(&self, position: u8) -> Option<usize> {
        (0..CLAIMS).find(|claim| self.claims[*claim].position == position)
    }

    fn enqueue(&mut self, claim: usize) {
        if self.claims[claim].position == 0 {
            let last = self.claims.iter().map(|claim| claim.position).max();
            self.claims[claim].position = last.unwrap_or(0) + 1;
        }
    }

    fn dequeue(&mut self, claim: usize) {
        let position = std::mem::take(&mut self.claims[claim].position);
        if position > 0 {
            for other in &mut self.claims {
                other.position -= u8::from(other.position > position);
            }
            self.is_no_longer_queued(claim);
        }
    }

    /// Once the observed claim has left the queue, nobody is behind it.
    pub(crate) fn is_no_longer_queued(&mut self, claim: usize) {
        if claim == 0 {
            for other in &mut self.claims {
                other.behind = false;
            }
        }
    }

    fn expire(&mut self, rules: &Rules) {
        if let Some((holder, record)) = self.holder()
            && record.left == 0
        {
            self.take_from(holder, record, rules);
        }
    }

    /// A waiter that was offered the lock may not have heard of it: it is told to look, since it is in no queue now.
    fn take_from(&mut self, holder: usize, record: Record, rules: &Rules) {
        self.claims[holder].record = None;
        if record.offered && rules.has_listeners() {
            self.notify(holder, rules);
        }
    }

    fn notify(&mut self, claim: usize, rules: &Rules) {
        self.claims[claim].notified |= self.claims[claim].waits() && rules.notices_count();
    }

    /// Lets in the waiter at the head of the queue if the lock is free.
    fn admit(&mut self, own: Option<usize>, passed_over: u8, rules: &Rules) {
        if self.holder().is_some() {
            return;
        }
        for _ in 0..passed_over {
            let Some(dead) = self.at(1) else { break };
            self.dequeue(dead);
            if rules.passed_over_are_told {
                self.notify(dead, rules);
            }
        }
        if let Some(head) = self.at(1) {
            self.grant(head, own != Some(head), rules);
        }
    }

    fn grant(&mut self, claim: usize, offered: bool, rules: &Rules) {
        self.overtaken |= self.claims[claim].behind;
        self.dequeue(claim);
        self.last_token += u8::from(!offered || rules.offers_raise_the_token);
        let left = match offered {
            true if rules.offers_end => rules.offer,
            true => NEVER,
            false => rules.ttl,
        };
        self.claims[claim].record = Some(Record {
            token: self.last_token,
            left,
            offered,
        });
        self.waited = 0;
        if offered {
            self.notify(claim, rules);
            self.tell_successors(left, rules);
        }
    }

    /// The last in the queue are told to look when an offer ends.
    fn tell_successors(&mut self, after: u8, rules: &Rules) {
        if rules.has_listeners() || !rules.notices_count() {
            return;
        }
        let positions = self.claims.iter().map(|claim| claim.position);
        let last = positions.max().unwrap_or(0);
        for claim in &mut self.claims {
            let Phase::Waiting { look_in, .. } = &mut claim.phase else {
                continue;
            };
            let first_told = match rules.successors {
                Successors::Last => last,
                Successors::LastTwo => last.saturating_sub(1),
            };
            if claim.position >= first_told.max(1) {
                *look_in = (*look_in).min(after);
            }
        }
    }
}
