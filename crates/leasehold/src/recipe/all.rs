//! Several locks at once: all or none, in one order whatever order was given.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use crate::acquire::Wait;
use crate::claim::{Mode, Ttl};
use crate::engine::{LossReason, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Lease;
use crate::locks::{LockRequest, Locks};
use crate::name::LockName;
use crate::token::FencingToken;

impl Locks {
    /// Asks for several locks at once. They are taken in the order of their names, so that no two programs that
    /// use this can wait for each other in a circle; if one is not obtained, none is kept.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::Locks::connect("memory:").await?;
    /// let both = locks.all(["account/7", "account/3"]).acquire().await?;
    /// assert_eq!(both.tokens().len(), 2);
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn all(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> AllRequest {
        let names = names.into_iter().map(LockName::new).collect();
        AllRequest {
            names,
            // Only its settings count; each lock is asked for under its own name.
            each: self.lock("all"),
        }
    }
}

/// A request for several locks, to be completed and sent: [`Locks::all`].
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let locks = leasehold::Locks::connect("memory:").await?;
/// let request = locks.all(["account/7", "account/3"]).ttl(Duration::from_secs(10));
/// let both = request.wait(Duration::from_secs(5)).acquire().await?; // 5 s for both together
/// // None of them is obtained where one is held.
/// assert!(locks.all(["account/3", "account/9"]).try_acquire().await?.is_none());
/// both.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct AllRequest {
    names: Result<BTreeSet<LockName>>,
    each: LockRequest,
}

impl AllRequest {
    fn set(mut self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.each = change(self.each);
        self
    }

    /// As for one lock: [`LockRequest::ttl`].
    pub fn ttl(self, ttl: impl TryInto<Ttl, Error: Into<Error>>) -> Self {
        self.set(|each| each.ttl(ttl))
    }

    /// How long to wait for all of them together.
    pub fn wait(self, wait: impl Into<Wait>) -> Self {
        self.set(|each| each.wait(wait))
    }

    /// Waits however long it takes.
    pub fn wait_forever(self) -> Self {
        self.set(LockRequest::wait_forever)
    }

    /// How each of them is to be held.
    pub fn mode(self, mode: Mode) -> Self {
        self.set(|each| each.mode(mode))
    }

    /// Each as one reader of many.
    pub fn shared(self) -> Self {
        self.set(LockRequest::shared)
    }

    /// As for one lock: [`LockRequest::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        self.set(|each| each.label(label))
    }

    /// As for one lock: [`LockRequest::reason`].
    pub fn reason(self, text: impl Into<String>) -> Self {
        self.set(|each| each.reason(text))
    }

    /// As for one lock: [`LockRequest::max_hold`].
    pub fn max_hold(self, time: Duration) -> Self {
        self.set(|each| each.max_hold(time))
    }

    /// Obtains all of them, and waits for those that others hold.
    ///
    /// # Errors
    ///
    /// Those of [`LockRequest::acquire`], and [`ErrorKind::InvalidConfig`] if no lock was named; [`ErrorKind::LeaseLost`] if the
    /// first was lost while the last was waited for. None is kept then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the locks that it has obtained are released in the background, and the one that it waits for is given
    /// up as [`LockRequest::acquire`] does.
    pub async fn acquire(self) -> Result<Leases> {
        let names = self.names()?;
        let clock = self.each.locks.clock().clone();
        let start = clock.now();
        let mut taken = Leases(Vec::with_capacity(names.len()));
        for name in names {
            let request = self.each.alike(name);
            let request = match request.wait {
                Wait::UpTo(time) => request.wait(time.saturating_sub(clock.now().since(start))),
                Wait::Forever => request,
            };
            match request.acquire().await {
                Ok(lease) => taken.0.push(lease),
                Err(error) => {
                    taken.release_all().await;
                    return Err(error);
                }
            }
        }
        taken.all_good().await
    }

    /// Obtains all of them if all are free; `None` if one is not, and none is kept then.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), without [`ErrorKind::TimedOut`].
    ///
    /// # Cancel safety
    ///
    /// That of [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<Leases>> {
        let mut taken = Leases(Vec::new());
        for name in self.names()? {
            match self.each.alike(name).try_acquire().await {
                Ok(Some(lease)) => taken.0.push(lease),
                Ok(None) => {
                    taken.release_all().await;
                    return Ok(None);
                }
                Err(error) => {
                    taken.release_all().await;
                    return Err(error);
                }
            }
        }
        taken.all_good().await.map(Some)
    }

    fn names(&self) -> Result<BTreeSet<LockName>> {
        match &self.names {
            Ok(names) if names.is_empty() => {
                Err(Error::new(ErrorKind::InvalidConfig, "no locks were named")
                    .advise("name at least one"))
            }
            names => names.clone(),
        }
    }
}

/// Several held locks, in the order of their names. Dropping it releases all of them in the background.
#[derive(Debug)]
#[must_use = "leases are released when they are dropped"]
pub struct Leases(Vec<Lease>);

impl Leases {
    /// Each lock with its fencing token.
    pub fn tokens(&self) -> Vec<(LockName, FencingToken)> {
        let token = |lease: &Lease| (lease.name().clone(), lease.token());
        self.0.iter().map(token).collect()
    }

    /// The lease of one of them.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&Lease> {
        let name = name.as_ref();
        self.0.iter().find(|lease| lease.name().as_str() == name)
    }

    /// The leases, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.0.iter()
    }

    /// Whether all of them can be relied on.
    pub fn is_valid(&self) -> bool {
        self.0.iter().all(|lease| lease.is_valid())
    }

    /// For how long all of them can be relied on.
    pub fn remaining(&self) -> Duration {
        let times = self.0.iter().map(|lease| lease.remaining());
        times.min().unwrap_or_default()
    }

    /// Returns which and why, once one of them can no longer be relied on.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time.
    pub async fn lost(&self) -> (LockName, LossReason) {
        let lost = self
            .0
            .iter()
            .map(|lease| async { (lease.name().clone(), lease.lost().await) }.boxed());
        select_all(lost).await.0
    }

    /// Releases all of them; [`Released::WasNotHeld`] if one had been lost already.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors), after all have been tried. What could not be released is tried again in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the releases are completed in the background.
    pub async fn release(self) -> Result<Released> {
        let mut all = Released::Yes;
        for released in join_all(self.0.into_iter().map(Lease::release)).await {
            if released? == Released::WasNotHeld {
                all = Released::WasNotHeld;
            }
        }
        Ok(all)
    }

    /// What cannot be given back now is in the background.
    async fn release_all(self) {
        let _ = self.release().await;
    }

    /// While the last was waited for, the first may have been lost.
    async fn all_good(self) -> Result<Self> {
        match self.0.iter().try_for_each(|lease| lease.view.still_good()) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.release_all().await;
                Err(error)
            }
        }
    }
}
