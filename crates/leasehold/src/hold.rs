//! What a lease and the renewer share: one granted claim and what is known of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::engine::{Grant, LossReason, Renew};
use crate::error::Error;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// What is known of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseState {
    /// It can be relied on.
    Held,
    /// It can be relied on for the time that remains, but the last renewal failed.
    Uncertain,
    /// It can no longer be relied on.
    Lost(LossReason),
}

/// How long a lock may and must be held.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    pub(crate) max_hold: Option<Duration>,
    pub(crate) hold_at_least: Option<Duration>,
}

impl Terms {
    fn last_moment(&self, acquired: Moment) -> Option<Moment> {
        self.max_hold.map(|max| acquired + max)
    }
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
    /// How many renewals are in flight.
    renewals: usize,
    /// Whether somebody else who knows the claim id releases the lock.
    detached: bool,
}

impl Hold {
    pub(crate) fn new(claim: Claim, grant: Grant, terms: Terms, acquired: Moment) -> Self {
        let last = terms.last_moment(acquired).unwrap_or(grant.valid_until);
        Self {
            claim,
            token: grant.token,
            acquired,
            terms,
            status: Mutex::new(Status {
                valid_until: grant.valid_until.min(last),
                last_failure: None,
                ended: None,
                leases: 1,
                renewals: 0,
                detached: false,
            }),
            changed: Notify::new(),
        }
    }

    pub(crate) fn as_renewal(&self) -> Renew<'_> {
        Renew {
            claim: &self.claim,
            token: Some(self.token),
            shorten: false,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.status.lock().valid_until
    }

    /// For how long it can still be relied on; never longer than the TTL.
    pub(crate) fn validity_left(&self, now: Moment) -> Duration {
        self.valid_until().since(now).min(self.claim.ttl.get())
    }

    /// The state, by what the clock says now.
    pub(crate) fn state(&self, now: Moment) -> LeaseState {
        let status = self.status.lock();
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
        self.terms.last_moment(self.acquired)
    }

    /// A renewal succeeded. Fails with the reason of the loss if the answer came after the hold had ended or its validity
    /// had run out: whoever saw it as lost must not see it as held again.
    pub(crate) fn renewed(&self, valid_until: Moment, clock: &Clock) -> Result<(), LossReason> {
        let mut status = self.status.lock();
        if let Some(reason) = &status.ended {
            return Err(reason.clone());
        }
        // Read while the mutex is locked, so that it is no earlier than when any state was reported before.
        if clock.now() >= status.valid_until {
            return Err(self.why_expired(&status));
        }
        let last = self.last_moment().unwrap_or(valid_until);
        // Answers may arrive out of order: the longest validity counts.
        status.valid_until = valid_until.max(status.valid_until).min(last);
        status.last_failure = None;
        Ok(())
    }

    /// A renewal failed. Whether the engine has carried it out is unknown.
    pub(crate) fn failed(&self, failure: &Error) {
        self.status.lock().last_failure = Some(failure.to_string().into());
    }

    pub(crate) fn last_failure(&self) -> Option<Arc<str>> {
        self.status.lock().last_failure.clone()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.status.lock().ended.is_some()
    }

    /// Ends it for good; the first reason stays. Returns whether this was the first.
    pub(crate) fn end(&self, reason: LossReason) -> bool {
        let first = {
            let mut status = self.status.lock();
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
            if let Some(reason) = self.status.lock().ended.clone() {
                return reason;
            }
            changed.await;
        }
    }

    /// Returns when no renewal is in flight.
    pub(crate) async fn no_renewal(&self) {
        loop {
            let changed = self.changed.notified();
            if self.status.lock().renewals == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Another lease of the same hold, if it is still valid at `now`.
    pub(crate) fn join(&self, now: Moment) -> bool {
        let mut status = self.status.lock();
        let good = status.ended.is_none() && status.leases > 0 && now < status.valid_until;
        status.leases += usize::from(good);
        good
    }

    /// The lock stays held when its last lease is dropped.
    pub(crate) fn detach(&self) {
        self.status.lock().detached = true;
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.status.lock().detached
    }

    /// One lease less. Returns whether it was the last.
    pub(crate) fn leave(&self) -> bool {
        let mut status = self.status.lock();
        status.leases = status.leases.saturating_sub(1);
        status.leases == 0
    }

    /// For how long the lock must stay taken although the work is done.
    pub(crate) fn must_stay(&self, now: Moment) -> Option<Duration> {
        let end = self.acquired + self.terms.hold_at_least?;
        Some(end.since(now)).filter(|left| !left.is_zero())
    }
}

/// A renewal is in flight for as long as this lives.
#[derive(Debug)]
pub(crate) struct Renewing(Arc<Hold>);

impl Renewing {
    pub(crate) fn of(hold: &Arc<Hold>) -> Self {
        hold.status.lock().renewals += 1;
        Self(Arc::clone(hold))
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.status.lock().renewals -= 1;
        self.0.changed.notify_waiters();
    }
}
