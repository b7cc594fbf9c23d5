//! A request for a lock, as users build it.

use std::sync::Arc;
use std::time::Duration;

use super::Locks;
use crate::acquire::{self, Wait};
use crate::claim::{Claim, ClaimId, Claimant, Mode, Ttl, check_text};
use crate::engine::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::hold::{LeaseState, Terms};
use crate::lease::{Lease, LeaseView};
use crate::name::LockName;

/// A request for a lock, created by [`Locks::lock`], configured with the methods below, and sent with
/// [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) or [`run`](Self::run).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use std::time::Duration;
/// use leasehold::{LockName, Locks, Mode, Ttl, Wait};
///
/// let locks = Locks::connect("memory:").await?;
/// let request = locks
///     .lock("orders/42")
///     .ttl(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .label("importer")
///     .reason("nightly import");
/// let lease = request.acquire().await?;
/// # lease.release().await?;
///
/// // Values that were checked earlier, for example when a configuration file was read, are accepted too.
/// let (name, ttl) = (LockName::new("orders")?, Ttl::new(Duration::from_secs(10))?);
/// let reader = locks.lock(name).ttl(ttl).wait(Wait::Forever).mode(Mode::Shared);
/// # reader.acquire().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest {
    pub(crate) locks: Locks,
    pub(crate) name: Result<LockName>,
    pub(super) mode: Mode,
    pub(crate) ttl: Result<Ttl>,
    pub(crate) wait: Wait,
    pub(crate) label: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) terms: Terms,
    pub(super) id: Option<ClaimId>,
}

impl LockRequest {
    /// How long [`acquire`](Self::acquire) waits if [`wait`](Self::wait) is not set.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

    /// For how long the lock is granted unless renewed, as a [`Ttl`] or a [`Duration`] of 10 ms to 24 h; this is how long
    /// others wait if this process dies. 30 s if it is not set.
    pub fn ttl(mut self, ttl: impl TryInto<Ttl, Error: Into<Error>>) -> Self {
        self.ttl = ttl.try_into().map_err(Into::into);
        self
    }

    /// How long to wait for the lock, as a [`Wait`] or a [`Duration`]; zero for a single attempt. 10 s if it is not set.
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = wait.into();
        self
    }

    /// Waits without a time limit.
    pub fn wait_forever(self) -> Self {
        self.wait(Wait::Forever)
    }

    /// How the lock is to be held; [`Mode::Exclusive`] if it is not set.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Requests the lock as one of many readers. A writer leaves this out.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Requests one of `of` permits: up to `of` holders at a time. All requests for the lock must give the same number.
    pub fn permits(self, of: u32) -> Self {
        self.mode(Mode::Permit { of })
    }

    /// A label of the holder, shown to people: 1 to 255 bytes without control characters. By default that of the handle.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Stops renewing the lease after this time, so that it is lost then.
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.terms.max_hold = Some(time);
        self
    }

    /// Keeps the lock held for at least this long, at most 24 h, even if it is released sooner, so that a second host whose clock is
    /// behind does not repeat the work.
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.terms.hold_at_least = Some(time);
        self
    }

    /// Uses this claim id instead of a new random one. A request that is repeated with the id of an earlier one gets the same grant,
    /// with the same token. An id is for one acquisition: once it was released, or an acquire with it has failed, use another one. Two
    /// requests with one id must not wait at the same time: when one of them ends, it gives up what the other has.
    pub fn claim_id(mut self, id: ClaimId) -> Self {
        self.id = Some(id);
        self
    }

    /// Why the lock is held, shown to people: 1 to 1,024 bytes without control characters.
    pub fn reason(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(text.into());
        self
    }

    /// Obtains the lock, and waits for it if others hold it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`] if it was not obtained in time; the message names the holder.
    /// - [`ErrorKind::InvalidName`] or [`ErrorKind::InvalidConfig`] if the name or a setting cannot be used, and
    ///   [`ErrorKind::Unsupported`] if the engine does not have the mode. The engine is not asked then.
    /// - The [engine errors](crate::Error#engine-errors). A claim that may have reached the engine is released before this returns,
    ///   or in the background if that takes longer than a second.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, an attempt that is in flight runs to completion, and then whatever the claim has obtained, a
    /// queue entry or the lock itself, is released in the background. [`Locks::flush`] waits for that. If the runtime ends before,
    /// the lock expires with its TTL.
    pub async fn acquire(self) -> Result<Lease> {
        let wait = self.wait;
        let queues = wait != Wait::UpTo(Duration::ZERO);
        let (locks, claim, terms) = self.claim(queues).await?;
        let start = locks.core.clock.now();
        match locks.obtain(&claim, terms, wait).await? {
            Some(lease) => Ok(lease),
            None => {
                let waited = locks.core.clock.now().since(start);
                Err(acquire::timed_out(&locks.core, &claim, waited, None).await)
            }
        }
    }

    /// Obtains the lock if it is free, and returns `None` if it is held. Never waits for other holders.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), without [`ErrorKind::TimedOut`].
    ///
    /// # Cancel safety
    ///
    /// That of [`acquire`](Self::acquire): a lock that was granted nevertheless is released in the background.
    pub async fn try_acquire(self) -> Result<Option<Lease>> {
        let (locks, claim, terms) = self.claim(false).await?;
        let wait = Wait::UpTo(Duration::ZERO);
        locks.obtain(&claim, terms, wait).await
    }

    /// Obtains the lock, does the work, and releases the lock. If the lease is lost, the work's future is dropped at its next
    /// `await`.
    ///
    /// Tasks and processes that the work has started are not stopped by that. Keep them in a [`tokio::task::JoinSet`], set `kill_on_drop` on a
    /// [`tokio::process::Command`](https://docs.rs/tokio/latest/tokio/process/struct.Command.html), and let blocking work ask [`LeaseView::is_valid`].
    ///
    /// The work cannot await [`LeaseView::lost`] itself, since it is dropped first. To clean up with `await`, or to act on the reason, use
    /// [`acquire`](Self::acquire) and `select!`.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), in which case the work was not started; [`ErrorKind::LeaseLost`] if the lease was lost
    /// while the work was running. If the release fails, this is no error: it is retried in the background.
    ///
    /// # Cancel safety
    ///
    /// While it waits for the lock, that of [`acquire`](Self::acquire). After that, dropping the future also drops the work, and the
    /// lock is released in the background.
    pub async fn run<W, F>(self, work: W) -> Result<F::Output>
    where
        W: FnOnce(LeaseView) -> F,
        F: Future,
    {
        let lease = self.acquire().await?;
        let view = lease.view();
        let done = tokio::select! {
            biased;
            reason = lease.lost() => return Err(view.lost_error(&reason)),
            done = work(lease.view()) => done,
        };
        if let LeaseState::Lost(reason) = lease.state() {
            return Err(view.lost_error(&reason));
        }
        // The work is done and was done in time: a release that fails is finished in the background.
        let _ = lease.release().await;
        Ok(done)
    }

    /// Its name, if that can be used.
    pub(crate) fn named(self) -> Result<(LockName, Self)> {
        let name = self.name?;
        let request = Self {
            name: Ok(name.clone()),
            ..self
        };
        Ok((name, request))
    }

    /// Who asks.
    pub(crate) fn claimant(&self) -> Arc<Claimant> {
        let claimant = &self.locks.claimant;
        match &self.label {
            Some(label) => Arc::new(Claimant::new(label, &claimant.host, claimant.pid)),
            None => Arc::clone(claimant),
        }
    }

    /// For what only one may do at a time.
    pub(crate) fn must_be_exclusive(&self, what: &str) -> Result<()> {
        match self.mode {
            Mode::Exclusive => Ok(()),
            mode => Err(invalid(&format!("{what} cannot be in {mode} mode"))
                .advise("leave out shared and permits")),
        }
    }

    /// The same request for another lock.
    pub(crate) fn alike(&self, name: LockName) -> Self {
        Self {
            locks: self.locks.clone(),
            name: Ok(name),
            mode: self.mode,
            ttl: self.ttl.clone(),
            wait: self.wait,
            label: self.label.clone(),
            reason: self.reason.clone(),
            terms: self.terms,
            id: None,
        }
    }

    /// Checks everything that can be checked without the engine.
    async fn claim(self, queues: bool) -> Result<(Locks, Claim, Terms)> {
        let claimant = self.claimant();
        let name = self.name?;
        let id = match (self.id, &self.locks.ids) {
            (Some(id), _) => Ok(id),
            (None, Some(pool)) => pool.next().await,
            (None, None) => ClaimId::random(),
        };
        let checked = || {
            let ttl = self.ttl?;
            check_mode(self.mode, &self.locks.capabilities())?;
            if self.terms.max_hold.is_some_and(|max| max < Ttl::MIN.get()) {
                return Err(invalid("max_hold is too short").advise("use 10ms or more"));
            }
            if self
                .terms
                .hold_at_least
                .is_some_and(|least| least > Ttl::MAX.get())
            {
                return Err(invalid("hold_at_least is too long").advise("use 24h or less"));
            }
            if let Some(reason) = &self.reason {
                check_text("reason", reason, 1024)?;
            }
            if let Some(label) = &self.label {
                check_text("label", label, 255)?;
            }
            Ok(Claim {
                name: name.clone(),
                id: id?,
                mode: self.mode,
                ttl,
                queues,
                claimant,
                reason: self.reason.map(Arc::from),
            })
        };
        match checked() {
            Ok(claim) => Ok((self.locks, claim, self.terms)),
            Err(error) => Err(self.locks.core.with_context(error, "acquire", &name)),
        }
    }
}

/// Whether an engine has the mode.
pub(super) fn check_mode(mode: Mode, able: &Capabilities) -> Result<()> {
    match mode {
        Mode::Permit { of: 0 } => {
            Err(invalid("a lock cannot have 0 permits").advise("use 1 or more"))
        }
        Mode::Permit { .. } if !able.permits => Err(unsupported("permits")),
        Mode::Shared if !able.shared => Err(unsupported("shared mode")),
        _ => Ok(()),
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this engine has no {what}"))
        .advise("use an engine that has: see docs/guarantees.md")
}
