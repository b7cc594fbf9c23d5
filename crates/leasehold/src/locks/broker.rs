//! Claims of other processes, made on their behalf: what a server needs that passes an engine on.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, Locks};
use crate::acquire::{self, AtDeadline, Wait, Waited};
use crate::claim::{Claim, Ttl, check_text};
use crate::clock::{Clock, Moment};
use crate::engine::{Attempt, Contention, Grant, Released, Renew, Renewal, Wake};
use crate::error::Result;
use crate::hold::{Hold, Terms};
use crate::lease::Lease;
use crate::renewer;

/// Makes claims whose ids are chosen by others, for a server that passes an engine on to them.
///
/// It renews nothing and gives up nothing by itself: whoever has the claim id does, through this process or another. As for the leases of
/// a [`Locks`] handle, the attempts and releases of one claim never overlap within this process, and each runs to completion, whoever
/// drops its future. Calls of one claim from two processes may overlap: a release then finds what the engine has at that moment.
#[derive(Debug, Clone)]
pub struct Broker {
    core: Arc<Core>,
}

/// What [`Broker::acquire`] came to.
#[derive(Debug, Clone)]
pub enum Brokered {
    /// The claim holds the lock.
    Granted(Grant),
    /// Others do. A claim that queues still has its entry in the queue.
    Held {
        /// Claims that are ahead of this one, holders included, where known.
        ahead: Option<usize>,
        /// After this time another attempt is worth while.
        look_again_in: Option<Duration>,
        /// Why the claim must wait, if not because others hold the lock; for people.
        because: Option<String>,
    },
}

impl Locks {
    /// For servers: claims whose ids are chosen by others.
    pub fn broker(&self) -> Broker {
        Broker {
            core: Arc::clone(&self.core),
        }
    }
}

impl Broker {
    /// The clock that grants are told on.
    pub fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// One attempt, after all earlier calls of the claim.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors). After one of unknown effect the claim may hold the lock or be queued: make the
    /// same attempt again, or release it.
    ///
    /// # Cancel safety
    ///
    /// An attempt that has begun runs to completion even if the future is dropped.
    pub async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let attempt = self.core.claims.try_acquire(claim).await;
        attempt.map_err(|error| self.core.with_context(error, "acquire", &claim.name))
    }

    /// Waits until the claim holds the lock, or the time is over and the attempt that is under way then is answered. A claim that does not queue makes one attempt. `on_wait` is called
    /// before each wait with how many claims are ahead of this one, where that is known.
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the claim may hold the lock, be queued, or neither. Nothing is given up.
    pub async fn acquire(
        &self,
        claim: &Claim,
        wait: Wait,
        mut on_wait: impl FnMut(Option<usize>) + Send,
    ) -> Result<Brokered> {
        let on_wait = &mut |met: &Contention| on_wait(met.ahead);
        let waited =
            acquire::wait_for_grant(&self.core, claim, wait, AtDeadline::Finish, on_wait).await?;
        Ok(match waited {
            Waited::Granted(grant) => Brokered::Granted(grant),
            Waited::Held(contention) => Brokered::Held {
                ahead: contention.ahead,
                look_again_in: contention.look_again_in,
                because: contention.because,
            },
        })
    }

    /// Makes sure that a grant lasts for the claim's whole TTL. An engine that hands a lock over to a waiter may do so for a moment only, until it is
    /// renewed. `None` if the claim no longer holds the lock.
    ///
    /// # Errors
    ///
    /// Those of [`renew`](Self::renew).
    ///
    /// # Cancel safety
    ///
    /// As [`renew`](Self::renew).
    pub async fn confirm(&self, claim: &Claim, grant: Grant) -> Result<Option<Grant>> {
        let left = grant.valid_until.since(self.core.clock.now());
        if left > claim.ttl.get() / 2 {
            return Ok(Some(grant));
        }
        let renew = Renew {
            token: Some(grant.token),
            ..Renew::new(claim)
        };
        match self.renew(&[renew]).await.pop() {
            Some(Ok(Renewal::Renewed(grant))) => Ok(Some(grant)),
            Some(Ok(Renewal::Lost(_))) => Ok(None),
            Some(Err(error)) => Err(error),
            None => Err(renewer::no_answer()),
        }
    }

    /// Returns when another attempt is worth while: see [`Engine::wait`](crate::engine::Engine::wait).
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point.
    pub async fn wait(&self, claim: &Claim) -> Result<Wake> {
        let woken = self.core.engine.wait(claim).await;
        woken.map_err(|error| self.core.with_context(error, "wait for", &claim.name))
    }

    /// Renews claims as one batch, with one answer for each, in the same order. Validity counts from before this call.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors), which do not mean that the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any point: claims may be renewed or not, and none is lost by it.
    pub async fn renew(&self, held: &[Renew<'_>]) -> Vec<Result<Renewal>> {
        let sent = self.core.clock.now();
        let mut answers = self.core.engine.renew(held).await.into_iter();
        let renewed = held.iter().map(|asked| {
            let answer = answers.next().unwrap_or_else(|| Err(renewer::no_answer()));
            match answer {
                Ok(Renewal::Renewed(grant)) => Ok(Renewal::Renewed(at_most(sent, asked, grant))),
                Ok(lost) => Ok(lost),
                Err(error) => Err(self.core.with_context(error, "renew", &asked.claim.name)),
            }
        });
        renewed.collect()
    }

    /// Releases the claim but leaves the lock taken for so long from now on, even if more time is left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the time is out of range; and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may be as it was or end at that time.
    pub async fn release_later(&self, claim: &Claim, keep_for: Duration) -> Result<Released> {
        let released = async {
            let claim = Claim {
                ttl: Ttl::new(keep_for)?,
                ..claim.clone()
            };
            let renew = Renew {
                shorten: true,
                ..Renew::new(&claim)
            };
            match renewer::renew_one(&*self.core.engine, renew).await? {
                Renewal::Renewed(_) => Ok(Released::Yes),
                Renewal::Lost(_) => Ok(Released::WasNotHeld),
            }
        };
        let released: Result<_> = released.await;
        released.map_err(|error| self.core.with_context(error, "release", &claim.name))
    }

    /// Gives up the claim, whatever has become of it, after all earlier calls of the claim.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors). It is not tried again in the background.
    ///
    /// # Cancel safety
    ///
    /// A release that has begun runs to completion even if the future is dropped.
    pub async fn release(&self, claim: &Claim) -> Result<Released> {
        let released = self.core.claims.release(claim).await;
        released.map_err(|error| self.core.with_context(error, "release", &claim.name))
    }

    /// Makes a lease of a grant, which this process renews from now on and releases when it is dropped.
    pub fn keep(
        &self,
        claim: Claim,
        grant: Grant,
        max_hold: Option<Duration>,
        hold_at_least: Option<Duration>,
    ) -> Lease {
        let terms = Terms {
            max_hold,
            hold_at_least,
        };
        let now = self.core.clock.now();
        let hold = Arc::new(Hold::new(claim, grant, terms, now));
        self.core.renewer.keep(Arc::clone(&hold));
        Lease::new(Arc::clone(&self.core), hold)
    }

    /// Leaves the queue, and takes nothing away from a claim that holds the lock: it may have been granted through another process.
    ///
    /// It is an attempt that does not queue. If the lock happens to be free, the claim holds it for [`Ttl::MIN`].
    ///
    /// # Errors
    ///
    /// Those of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn leave_queue(&self, claim: &Claim) -> Result<()> {
        let claim = Claim {
            queues: false,
            ttl: Ttl::MIN,
            ..claim.clone()
        };
        self.try_acquire(&claim).await.map(|_| ())
    }

    /// Whether the engine has the claim's mode, and its texts can be shown to people.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the engine lacks the claim's mode;
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the lock would have no permits, or a text is empty, too long or has
    /// control characters.
    pub fn check(&self, claim: &Claim) -> Result<()> {
        let checked = || {
            super::request::check_mode(claim.mode, &self.core.about.capabilities)?;
            check_text("label", &claim.claimant.label, 255)?;
            check_text("host", &claim.claimant.host, 255)?;
            match &claim.reason {
                Some(reason) => check_text("reason", reason, 1024),
                None => Ok(()),
            }
        };
        checked().map_err(|error| self.core.with_context(error, "acquire", &claim.name))
    }
}

fn at_most(sent: Moment, asked: &Renew<'_>, grant: Grant) -> Grant {
    let longest = sent + asked.claim.ttl.validity();
    Grant::new(grant.token, grant.valid_until.min(longest))
}
