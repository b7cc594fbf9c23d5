//! Leases: locks that are held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::claim::{ClaimId, Claimant};
use crate::clock::Moment;
use crate::core::Core;
use crate::engine::{LossReason, Released, Renewal};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Pass;
use crate::guard::condition::ConditionCheck;
use crate::guard::sql::{CheckSql, Dialect, FenceSql};
use crate::hold::{Hold, LeaseState, Renewing};
use crate::name::LockName;
use crate::observe;
use crate::renewer;
use crate::token::FencingToken;

/// A lock that is held. A background task renews it until the lease is released or dropped. Dropping it releases the lock in the
/// background, without blocking.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Locks, Released};
///
/// let locks = Locks::connect("memory:").await?;
/// let lease = locks.lock("report").acquire().await?;
/// println!("fencing token {}, valid for {:?}", lease.token(), lease.remaining());
/// // ... the work; before each step that must not happen without the lock:
/// assert!(lease.is_valid());
/// assert_eq!(lease.release().await?, Released::Yes);
/// # Ok(())
/// # }
/// ```
///
/// Only the lease can renew and release the lock and reveal its claim id. Give a [view](Self::view) to code that should do neither.
#[derive(Debug)]
#[must_use = "a lease is released when it is dropped"]
pub struct Lease {
    pub(crate) view: LeaseView,
    /// Whether this lease still counts; not after a release or a detach.
    counts: bool,
}

/// A read-only view of a [`Lease`]: its token, whether it can still be relied on, and when it is lost. It is cheap to clone, and
/// neither holds the lock nor keeps it alive.
///
/// It can neither renew nor release the lock, and does not reveal the claim id, which would allow both:
///
/// ```compile_fail,E0599
/// # fn work(lease: leasehold::LeaseView) {
/// lease.claim_id();
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn work(lease: leasehold::LeaseView) {
/// let _ = lease.renew();
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn work(lease: leasehold::LeaseView) {
/// let _ = lease.release();
/// # }
/// ```
#[derive(Clone)]
pub struct LeaseView {
    pub(crate) core: Arc<Core>,
    pub(crate) hold: Arc<Hold>,
}

impl fmt::Debug for LeaseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseView")
            .field("name", self.name())
            .field("token", &self.token())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Lease {
    pub(crate) fn new(core: Arc<Core>, hold: Arc<Hold>) -> Self {
        Self {
            view: LeaseView { core, hold },
            counts: true,
        }
    }

    /// A read-only view of the lease.
    pub fn view(&self) -> LeaseView {
        self.view.clone()
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        self.view.name()
    }

    /// Who holds it, as others see it.
    pub fn claimant(&self) -> &Claimant {
        self.view.claimant()
    }

    /// The fencing token: give it to the resource with every write.
    pub fn token(&self) -> FencingToken {
        self.view.token()
    }

    /// The id of the claim. It is a secret: anyone who knows it can renew and release the lock, with
    /// [`Locks::resume`](crate::Locks::resume). The [view](Self::view) does not reveal it.
    pub fn claim_id(&self) -> ClaimId {
        self.view.hold.claim.id
    }

    /// For how long the lock can be relied on: [`LeaseView::remaining`].
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }

    /// Until when the lock can be relied on: [`LeaseView::valid_until`].
    pub fn valid_until(&self) -> Moment {
        self.view.valid_until()
    }

    /// Whether the lock can be relied on: [`LeaseView::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.view.is_valid()
    }

    /// The state of the lease: [`LeaseView::state`].
    pub fn state(&self) -> LeaseState {
        self.view.state()
    }

    /// Why the last renewal failed, if it did.
    pub fn last_failure(&self) -> Option<Arc<str>> {
        self.view.last_failure()
    }

    /// Waits until the lock can no longer be relied on, and returns the reason: [`LeaseView::lost`].
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time; a later call returns the same reason.
    pub async fn lost(&self) -> LossReason {
        self.view.lost().await
    }

    /// The token as an SQL fragment, for statements on tables of your own: see [`guard::sql`](crate::guard::sql).
    pub fn fence_sql(&self, dialect: Dialect) -> FenceSql {
        self.view.fence_sql(dialect)
    }

    /// The SQL statement that checks the lease within a transaction of your own: [`LeaseView::check_sql`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine is not a database.
    pub fn check_sql(&self) -> Result<CheckSql> {
        self.view.check_sql()
    }

    /// The condition for a DynamoDB transaction of your own: [`LeaseView::condition_check`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine is not DynamoDB.
    pub fn condition_check(&self) -> Result<ConditionCheck> {
        self.view.condition_check()
    }

    /// Renews now, without waiting for the background task; returns for how long the lock can be relied on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeaseLost`] if the lease is lost. The [engine errors](crate::Error#engine-errors) do not mean that: the lease stays
    /// valid for the time that [remains](Self::remaining), and the background task tries again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not be renewed at the engine, and [`remaining`](Self::remaining) does not grow. The
    /// lock is never released.
    pub async fn renew(&self) -> Result<Duration> {
        let view = &self.view;
        let LeaseView { core, hold } = view;
        if let LeaseState::Lost(reason) = view.state() {
            return Err(view.lost_error(&reason));
        }
        let _under_way = Renewing::of(hold);
        let sent = core.clock.now();
        match renewer::renew_one(&*core.engine, hold.as_renewal()).await {
            Ok(Renewal::Renewed(grant)) if grant.token == hold.token => {
                let valid_until = grant.valid_until.min(sent + hold.claim.ttl.validity());
                match hold.renewed(valid_until, &core.clock) {
                    Ok(()) => {
                        observe::renewed(&core.about, hold);
                        Ok(self.remaining())
                    }
                    Err(reason) => Err(view.lose(reason)),
                }
            }
            Ok(Renewal::Renewed(_)) => Err(view.lose(LossReason::Gone)),
            Ok(Renewal::Lost(reason)) => Err(view.lose(reason)),
            Err(failure) => {
                hold.failed(&failure);
                Err(core.with_context(failure, "renew", hold.name()))
            }
        }
    }

    /// Releases the lock; with [`hold_at_least`](crate::LockRequest::hold_at_least), the lock ends at that time instead. If the lease
    /// was lost already, this returns [`Released::WasNotHeld`]. If a [reentrant](crate::Locks::reentrant) handle has other leases of
    /// the lock, it stays held.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors). The release is then retried in the background, and the lock ends with its
    /// TTL at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release is completed in the background; [`Locks::flush`](crate::Locks::flush) waits for it.
    /// The lease ends in any case: it is lost from the first poll on, or from the drop.
    pub async fn release(mut self) -> Result<Released> {
        let held = self.is_valid();
        if !self.leave() {
            return Ok(Released::from_held(held));
        }
        let LeaseView { core, hold } = &self.view;
        // From here on the renewer releases it if this future is dropped or fails.
        let mut guard = FinishOnDrop(Some((Arc::clone(core), Arc::clone(hold))));
        let released = renewer::release(&core.claims, hold).await;
        match released {
            Ok(released) => {
                guard.0 = None;
                Ok(released)
            }
            Err(failure) => Err(core.with_context(failure, "release", hold.name())),
        }
    }

    /// Ends the lease and leaves the lock held: it is no longer renewed, and ends with its TTL. Until then, a process that knows the
    /// claim id can [resume](crate::Locks::resume) it. If a [reentrant](crate::Locks::reentrant) handle has other leases of the lock,
    /// the lock is renewed until those are released, and stays held after that too.
    pub fn detach(mut self) -> ClaimId {
        let hold = Arc::clone(&self.view.hold);
        // What is left may be that of an offer, which ends soon unless it is renewed.
        if self.is_valid() && self.remaining() < hold.claim.ttl.get() / 2 {
            self.view.core.renewer.confirm(Arc::clone(&hold));
        }
        hold.detach();
        self.leave();
        hold.claim.id
    }

    /// Returns whether the lock itself is now to be released.
    fn leave(&mut self) -> bool {
        let counted = std::mem::replace(&mut self.counts, false);
        let last = counted && self.view.hold.leave();
        if last && self.view.hold.end(LossReason::Released) {
            observe::released(&self.view.core.about, &self.view.hold);
        }
        last && !self.view.hold.is_detached()
    }
}

/// Leaves a release to the renewer unless it was finished.
struct FinishOnDrop(Option<(Arc<Core>, Arc<Hold>)>);

impl Drop for FinishOnDrop {
    fn drop(&mut self) {
        if let Some((core, hold)) = self.0.take() {
            core.renewer.release(hold);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.leave() {
            self.view.core.renewer.release(Arc::clone(&self.view.hold));
        }
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

    /// The token as an SQL fragment, for statements on tables of your own: see [`guard::sql`](crate::guard::sql).
    pub fn fence_sql(&self, dialect: Dialect) -> FenceSql {
        FenceSql::new(dialect, self.token())
    }

    /// The SQL statement to run first in a transaction of your own, in the database that stores the locks. The transaction fails
    /// unless this lease holds the lock, and no other claim is granted the lock before the transaction has ended.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine is not a database.
    pub fn check_sql(&self) -> Result<CheckSql> {
        let Some(sql) = self.core.engine.sql() else {
            let error = Error::new(
                ErrorKind::Unsupported,
                format!("{} has no transactions", self.core.about.scheme),
            )
            .advise("give the token to whatever is written to, or keep the locks in its database");
            return Err(self.core.with_context(error, "check", self.name()));
        };
        Ok(CheckSql::new(
            sql.check_lease(),
            self.name().clone(),
            self.token(),
        ))
    }

    /// The condition to add to a transaction of your own (`TransactWriteItems`), in the account and region of the table that stores the
    /// locks. The transaction fails unless this lease holds the lock at that moment. See [`condition`](crate::guard::condition).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine is not DynamoDB.
    pub fn condition_check(&self) -> Result<ConditionCheck> {
        let check = self.core.engine.condition_check(self.name(), self.token());
        check.ok_or_else(|| {
            let what = format!(
                "{} has no conditions for other writes",
                self.core.about.scheme
            );
            let error = Error::new(ErrorKind::Unsupported, what)
                .advise("give the token to whatever is written to, or keep the locks on DynamoDB");
            self.core.with_context(error, "check", self.name())
        })
    }

    /// For how long the lock can be relied on from now on.
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.core.clock.now())
    }

    /// Until when the lock can be relied on. Each renewal moves it on.
    pub fn valid_until(&self) -> Moment {
        match self.state() {
            LeaseState::Lost(_) => Moment::from_origin(Duration::ZERO),
            _ => self.hold.valid_until(),
        }
    }

    /// Whether the lock can be relied on. This reads the clock, so a process that was paused for longer than its lease gets the
    /// right answer as soon as it continues.
    pub fn is_valid(&self) -> bool {
        !matches!(self.state(), LeaseState::Lost(_))
    }

    /// The state of the lease at this moment.
    pub fn state(&self) -> LeaseState {
        self.hold.state(self.core.clock.now())
    }

    /// Why the last renewal failed, if it did.
    pub fn last_failure(&self) -> Option<Arc<str>> {
        self.hold.last_failure()
    }

    /// Waits until the lock can no longer be relied on, and returns the reason. This happens before the engine can grant the lock to
    /// another claim. A release is a reason too.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time; a later call returns the same reason.
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
                // Which of several reasons came first is reported at the next turn.
                let _ = self.lose(reason);
            }
        }
    }

    fn lose(&self, reason: LossReason) -> Error {
        if self.hold.end(reason.clone()) {
            observe::lost(&self.core.about, &self.hold, &reason);
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
        self.core.with_context(error, "go on with", self.name())
    }
}

impl Hold {
    fn name(&self) -> &LockName {
        &self.claim.name
    }
}

impl From<&LeaseView> for Pass {
    fn from(lease: &LeaseView) -> Self {
        Self::new(lease.token(), lease.name().clone())
    }
}

impl From<&Lease> for Pass {
    fn from(lease: &Lease) -> Self {
        Self::from(&lease.view)
    }
}
