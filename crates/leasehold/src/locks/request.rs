//! A request for a lock, as users build it.

use std::sync::Arc;
use std::time::Duration;

use super::Locks;
use crate::acquire::{self, Wait};
use crate::claim::{Claim, ClaimId, Claimant, Mode, Ttl, check_text};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Terms;
use crate::lease::{Lease, LeaseState, LeaseView};
use crate::name::LockName;

/// A request for a lock, to be completed and sent.
#[derive(Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest {
    pub(crate) locks: Locks,
    pub(crate) name: Result<LockName>,
    pub(super) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) owner: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) terms: Terms,
}

impl LockRequest {
    /// How long [`acquire`](Self::acquire) waits if nothing else is said.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

    /// For how long the lock is granted, unless renewed: how long others wait if this process
    /// dies. 30 s if nothing is said; 10 ms to 24 h.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for it; zero for a single attempt.
    pub fn wait(mut self, time: Duration) -> Self {
        self.wait = Wait::UpTo(time);
        self
    }

    /// Waits however long it takes.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// As one reader of many; a writer asks without this.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// As one of up to `of` holders at a time. All who use the lock say the same number.
    pub fn permits(mut self, of: u32) -> Self {
        self.mode = Mode::Permit { of };
        self
    }

    /// A label that tells people who holds the lock.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.owner = Some(label.into());
        self
    }

    /// The keep-alive ends after this time, whatever the work does: the lease is then lost.
    pub fn max_hold(mut self, time: Duration) -> Self {
        self.terms.max_hold = Some(time);
        self
    }

    /// The lock stays taken for this long even if it is released sooner, so that a second host whose
    /// clock is late does not do the same work again.
    pub fn hold_at_least(mut self, time: Duration) -> Self {
        self.terms.hold_at_least = Some(time);
        self
    }

    /// Tells people why the lock is held.
    pub fn reason(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(text.into());
        self
    }

    /// Obtains the lock, waiting for it if need be; `ErrorKind::TimedOut` if it was not obtained in
    /// time. Dropping the future gives up the place in the queue.
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

    /// Obtains the lock if it is free; `None` if it is not.
    pub async fn try_acquire(self) -> Result<Option<Lease>> {
        let (locks, claim, terms) = self.claim(false).await?;
        let wait = Wait::UpTo(Duration::ZERO);
        locks.obtain(&claim, terms, wait).await
    }

    /// Obtains the lock, does the work, and releases it. If the lease is lost, the work is dropped
    /// where it stands and the error says so (`ErrorKind::LeaseLost`).
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

    /// Its name, if it is one.
    pub(crate) fn named(self) -> Result<(LockName, Self)> {
        let name = self.name?;
        let request = Self {
            name: Ok(name.clone()),
            ..self
        };
        Ok((name, request))
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
            ttl: self.ttl,
            wait: self.wait,
            owner: self.owner.clone(),
            reason: self.reason.clone(),
            terms: self.terms,
        }
    }

    /// Checks everything that can be checked without the engine.
    async fn claim(self, queues: bool) -> Result<(Locks, Claim, Terms)> {
        let name = self.name?;
        let id = match &self.locks.ids {
            Some(pool) => pool.next().await,
            None => ClaimId::random(),
        };
        let checked = || {
            let ttl = Ttl::new(self.ttl)?;
            let able = self.locks.capabilities();
            match self.mode {
                Mode::Permit { of: 0 } => {
                    return Err(invalid("a lock cannot have 0 permits").advise("use 1 or more"));
                }
                Mode::Permit { .. } if !able.permits => return Err(unsupported("permits")),
                Mode::Shared if !able.shared => return Err(unsupported("shared mode")),
                _ => {}
            }
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
            let claimant = match self.owner {
                Some(owner) => {
                    check_text("owner", &owner, 255)?;
                    Arc::new(Claimant {
                        owner,
                        ..(*self.locks.claimant).clone()
                    })
                }
                None => Arc::clone(&self.locks.claimant),
            };
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
            Err(error) => Err(self.locks.core.place(error, "acquire", &name)),
        }
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this engine has no {what}"))
        .advise("use an engine that has: see docs/guarantees.md")
}
