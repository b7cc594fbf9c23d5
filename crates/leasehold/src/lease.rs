//! A lease: what a granted claim gives.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::{ClaimId, Claimant};
use crate::clock::Moment;
use crate::engine::{LossReason, Released, Renewal};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::sql::{CheckSql, Dialect, FenceSql};
use crate::hold::Hold;
use crate::keep_alive;
use crate::locks::Core;
use crate::name::LockName;
use crate::observe;
use crate::token::FencingToken;

/// A held lock. Renewed in the background for as long as it lives; dropping it releases it in the
/// background, without blocking.
///
/// Everything that can be asked of it is on [`LeaseView`].
#[derive(Debug)]
#[must_use = "a lease is released when it is dropped"]
pub struct Lease {
    view: LeaseView,
    /// Whether this lease still counts; not after a release or a detach.
    counts: bool,
}

/// A look at a lease, to hand around: it asks and waits, but holds nothing.
#[derive(Debug, Clone)]
pub struct LeaseView {
    pub(crate) core: Arc<Core>,
    pub(crate) hold: Arc<Hold>,
}

/// What is known of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// It can be relied on.
    Held,
    /// It can be relied on for the time that remains, but the last renewal failed.
    Uncertain,
    /// It can no longer be relied on.
    Lost(LossReason),
}

impl Lease {
    pub(crate) fn new(core: Arc<Core>, hold: Arc<Hold>) -> Self {
        Self {
            view: LeaseView { core, hold },
            counts: true,
        }
    }

    /// A view to hand to the work.
    pub fn view(&self) -> LeaseView {
        self.view.clone()
    }

    /// Releases the lock, or with `hold_at_least` lets it stay taken until then. A lease that was
    /// lost already is no failure: [`Released::WasNotHeld`].
    ///
    /// If the engine cannot be reached, the release is tried again in the background and the lock
    /// ends with its TTL at the latest.
    pub async fn release(mut self) -> Result<Released> {
        if !self.leave() {
            return Ok(Released::Yes);
        }
        let LeaseView { core, hold } = &self.view;
        // From here on the errand is the keeper's if this future is dropped or fails.
        let mut unfinished = Unfinished(Some((Arc::clone(core), Arc::clone(hold))));
        let released = keep_alive::give_back(&*core.engine, hold).await;
        match released {
            Ok(released) => {
                unfinished.0 = None;
                Ok(released)
            }
            Err(failure) => Err(core.place(failure, "release", hold.name())),
        }
    }

    /// Leaves the lock held and forgets it: no more renewals, no release. Whoever has the claim id
    /// can [resume](crate::Locks::resume) it while its TTL lasts.
    pub fn detach(mut self) -> ClaimId {
        self.leave();
        self.view.hold.claim.id
    }

    /// Returns whether the lock itself is now to be released.
    fn leave(&mut self) -> bool {
        let counted = std::mem::replace(&mut self.counts, false);
        let last = counted && self.view.hold.leave();
        if last && self.view.hold.end(LossReason::Released) {
            observe::released(&*self.view.core.engine, &self.view.hold);
        }
        last
    }
}

/// Hands a release over to the keeper unless it was finished.
struct Unfinished(Option<(Arc<Core>, Arc<Hold>)>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some((core, hold)) = self.0.take() {
            core.keeper.give_back(hold);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.leave() {
            self.view.core.keeper.give_back(Arc::clone(&self.view.hold));
        }
    }
}

impl Deref for Lease {
    type Target = LeaseView;

    fn deref(&self) -> &LeaseView {
        &self.view
    }
}

impl LeaseView {
    /// The lock.
    pub fn name(&self) -> &LockName {
        self.hold.name()
    }

    /// Who holds it, as others see it.
    pub fn claimant(&self) -> &Claimant {
        &self.hold.claim.claimant
    }

    /// The fencing token: give it to the resource with every write.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// The token as it can stand in a statement on a table of the user's own: see [`guard::sql`](crate::guard::sql).
    pub fn fence_sql(&self, dialect: Dialect) -> FenceSql {
        FenceSql::new(dialect, self.token())
    }

    /// What to say first in a transaction of the user's own, in the database that keeps the locks: it then fails unless this lease is
    /// held, and nobody else is let in before it has ended.
    pub fn check_sql(&self) -> Result<CheckSql> {
        let Some(statement) = self.core.engine.check_sql(&self.hold.claim) else {
            let error = Error::new(
                ErrorKind::Unsupported,
                format!("{} has no transactions", self.core.engine.scheme()),
            )
            .advise("give the token to whatever is written to, or keep the locks in its database");
            return Err(self.core.place(error, "check", self.name()));
        };
        Ok(CheckSql::new(statement, self.name().clone(), self.token()))
    }

    /// The secret that signs the claim. Whoever has it can renew and release.
    pub fn claim_id(&self) -> ClaimId {
        self.hold.claim.id
    }

    /// For how long the lock can be relied on, by the clock as it stands now.
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.core.clock.now())
    }

    /// Until when the lock can be relied on. Moves on with every renewal.
    pub fn valid_until(&self) -> Moment {
        match self.state() {
            LeaseState::Lost(_) => Moment::from_origin(Duration::ZERO),
            _ => self.hold.valid_until(),
        }
    }

    /// Whether the lock can be relied on, by the clock as it stands now: a process that was stopped
    /// and resumed sees the truth.
    pub fn is_valid(&self) -> bool {
        !matches!(self.state(), LeaseState::Lost(_))
    }

    /// What is known of it, by the clock as it stands now.
    pub fn state(&self) -> LeaseState {
        self.hold.state(self.core.clock.now())
    }

    /// Why the last renewal failed, if it did.
    pub fn last_failure(&self) -> Option<Arc<str>> {
        self.hold.last_failure()
    }

    /// Returns why, once the lock can no longer be relied on: before the engine can grant it to
    /// someone else.
    pub async fn lost(&self) -> LossReason {
        loop {
            // The renewer says so first, unless the runtime that it lived on has gone.
            let ends = self.core.clock.sleep_until(self.hold.valid_until());
            tokio::select! {
                biased;
                reason = self.hold.ended() => return reason,
                () = ends => {}
            }
            if let LeaseState::Lost(reason) = self.state() {
                // Which of several reasons came first is told at the next turn.
                let _ = self.lose(reason);
            }
        }
    }

    /// Renews now, without waiting for the keep-alive; returns for how long it can be relied on.
    pub async fn renew(&self) -> Result<Duration> {
        if let LeaseState::Lost(reason) = self.state() {
            return Err(self.lost_error(&reason));
        }
        let sent = self.core.clock.now();
        match keep_alive::renew_one(&*self.core.engine, self.hold.as_renewal()).await {
            Ok(Renewal::Renewed(grant)) if grant.token == self.hold.token => {
                let validity = self.hold.claim.ttl.validity();
                self.hold.renewed(grant.valid_until.min(sent + validity));
                observe::renewed(&*self.core.engine, &self.hold);
                Ok(self.remaining())
            }
            Ok(Renewal::Renewed(_)) => Err(self.lose(LossReason::Gone)),
            Ok(Renewal::Lost(reason)) => Err(self.lose(reason)),
            Err(failure) => {
                self.hold.failed(&failure);
                Err(self.core.place(failure, "renew", self.name()))
            }
        }
    }

    fn lose(&self, reason: LossReason) -> Error {
        if self.hold.end(reason.clone()) {
            observe::lost(&*self.core.engine, &self.hold, &reason);
        }
        self.lost_error(&reason)
    }

    /// The error, if it is lost.
    pub(crate) fn still_good(&self) -> Result<()> {
        match self.state() {
            LeaseState::Lost(reason) => Err(self.lost_error(&reason)),
            _ => Ok(()),
        }
    }

    pub(crate) fn lost_error(&self, reason: &LossReason) -> Error {
        let error = Error::new(
            ErrorKind::LeaseLost,
            format!("the lease was lost: {reason}"),
        )
        .advise("stop the work, or check its writes with the fencing token; then acquire again");
        self.core.place(error, "go on with", self.name())
    }
}

impl Hold {
    fn name(&self) -> &LockName {
        &self.claim.name
    }
}
