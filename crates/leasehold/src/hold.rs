//! What a lease and the renewer share: one granted claim and what is known of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::{Grant, LossReason, Renew};
use crate::error::Error;
use crate::lease::LeaseState;
use crate::token::FencingToken;

/// How long a lock may and must be held.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    pub(crate) max_hold: Option<Duration>,
    pub(crate) hold_at_least: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) claim: Claim,
    pub(crate) token: FencingToken,
    pub(crate) acquired: Moment,
    terms: Terms,
    /// Held for nanoseconds and never across an await, so a std Mutex.
    status: Mutex<Status>,
    changed: Notify,
}

#[derive(Debug)]
struct Status {
    valid_until: Moment,
    last_failure: Option<Arc<str>>,
    ended: Option<LossReason>,
    leases: usize,
}

impl Hold {
    pub(crate) fn new(claim: Claim, grant: Grant, terms: Terms, acquired: Moment) -> Self {
        let hold = Self {
            claim,
            token: grant.token,
            acquired,
            terms,
            status: Mutex::new(Status {
                valid_until: grant.valid_until,
                last_failure: None,
                ended: None,
                leases: 1,
            }),
            changed: Notify::new(),
        };
        hold.renewed(grant.valid_until);
        hold
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn as_renewal(&self) -> Renew<'_> {
        Renew {
            claim: &self.claim,
            token: Some(self.token),
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.status().valid_until
    }

    /// For how long it can still be relied on; never longer than the TTL.
    pub(crate) fn validity_left(&self, now: Moment) -> Duration {
        self.valid_until().since(now).min(self.claim.ttl.get())
    }

    /// The state, by what the clock says now.
    pub(crate) fn state(&self, now: Moment) -> LeaseState {
        let status = self.status();
        match &status.ended {
            Some(reason) => LeaseState::Lost(reason.clone()),
            None if now >= status.valid_until => LeaseState::Lost(self.why_expired(&status)),
            None if status.last_failure.is_some() => LeaseState::Uncertain,
            None => LeaseState::Held,
        }
    }

    fn why_expired(&self, status: &Status) -> LossReason {
        if Some(status.valid_until) == self.last_moment() {
            LossReason::MaxHold
        } else {
            LossReason::Expired {
                last_failure: status.last_failure.clone(),
            }
        }
    }

    fn last_moment(&self) -> Option<Moment> {
        self.terms.max_hold.map(|max| self.acquired + max)
    }

    /// A renewal succeeded. Comes too late for a hold that has ended.
    pub(crate) fn renewed(&self, valid_until: Moment) {
        let mut status = self.status();
        let last = self.last_moment().unwrap_or(valid_until);
        // Answers may overtake each other: the later promise holds.
        status.valid_until = valid_until.max(status.valid_until).min(last);
        status.last_failure = None;
    }

    /// A renewal failed: nobody knows whether the engine has carried it out.
    pub(crate) fn failed(&self, failure: &Error) {
        self.status().last_failure = Some(failure.to_string().into());
    }

    pub(crate) fn last_failure(&self) -> Option<Arc<str>> {
        self.status().last_failure.clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.status().ended.is_some()
    }

    /// Ends it for good; the first reason stays. Returns whether this was the first.
    pub(crate) fn end(&self, reason: LossReason) -> bool {
        let first = {
            let mut status = self.status();
            let first = status.ended.is_none();
            status.ended.get_or_insert(reason);
            first
        };
        self.changed.notify_waiters();
        first
    }

    /// Returns why the hold ended, once it has.
    pub(crate) async fn ended(&self) -> LossReason {
        loop {
            let changed = self.changed.notified();
            if let Some(reason) = self.status().ended.clone() {
                return reason;
            }
            changed.await;
        }
    }

    /// Another lease of the same hold, if it is still good at `now`.
    pub(crate) fn join(&self, now: Moment) -> bool {
        let mut status = self.status();
        let good = status.ended.is_none() && status.leases > 0 && now < status.valid_until;
        status.leases += usize::from(good);
        good
    }

    /// One lease less. Returns whether it was the last.
    pub(crate) fn leave(&self) -> bool {
        let mut status = self.status();
        status.leases = status.leases.saturating_sub(1);
        status.leases == 0
    }

    /// For how long the lock must stay taken although the work is done.
    pub(crate) fn must_stay(&self, now: Moment) -> Option<Duration> {
        let end = self.acquired + self.terms.hold_at_least?;
        Some(end.since(now)).filter(|left| !left.is_zero())
    }
}
