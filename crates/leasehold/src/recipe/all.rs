//! Several locks at once: all or none, in one order whatever order was given.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use crate::acquire::Wait;
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

/// A request for several locks, to be completed and sent.
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
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|each| each.ttl(ttl))
    }

    /// How long to wait for all of them together.
    pub fn wait(self, time: Duration) -> Self {
        self.set(|each| each.wait(time))
    }

    /// Waits however long it takes.
    pub fn wait_forever(self) -> Self {
        self.set(LockRequest::wait_forever)
    }

    /// Each as one reader of many.
    pub fn shared(self) -> Self {
        self.set(LockRequest::shared)
    }

    /// As for one lock: [`LockRequest::owner`].
    pub fn owner(self, label: impl Into<String>) -> Self {
        self.set(|each| each.owner(label))
    }

    /// As for one lock: [`LockRequest::reason`].
    pub fn reason(self, text: impl Into<String>) -> Self {
        self.set(|each| each.reason(text))
    }

    /// As for one lock: [`LockRequest::max_hold`].
    pub fn max_hold(self, time: Duration) -> Self {
        self.set(|each| each.max_hold(time))
    }

    /// Obtains all of them, waiting if need be; `ErrorKind::TimedOut` if that took too long.
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
                    taken.give_back().await;
                    return Err(error);
                }
            }
        }
        taken.all_good().await
    }

    /// Obtains all of them if all are free; `None` if one is not.
    pub async fn try_acquire(self) -> Result<Option<Leases>> {
        let mut taken = Leases(Vec::new());
        for name in self.names()? {
            match self.each.alike(name).try_acquire().await {
                Ok(Some(lease)) => taken.0.push(lease),
                Ok(None) => {
                    taken.give_back().await;
                    return Ok(None);
                }
                Err(error) => {
                    taken.give_back().await;
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
            Ok(names) => Ok(names.clone()),
            Err(error) => Err(Error::new(error.kind(), error.what())
                .advise(error.advice().unwrap_or("use another name"))),
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

    /// Whether all of them can be relied on, by the clock as it stands now.
    pub fn is_valid(&self) -> bool {
        self.0.iter().all(|lease| lease.is_valid())
    }

    /// For how long all of them can be relied on.
    pub fn remaining(&self) -> Duration {
        let times = self.0.iter().map(|lease| lease.remaining());
        times.min().unwrap_or_default()
    }

    /// Returns which and why, once one of them can no longer be relied on.
    pub async fn lost(&self) -> (LockName, LossReason) {
        let lost = self
            .0
            .iter()
            .map(|lease| async { (lease.name().clone(), lease.lost().await) }.boxed());
        select_all(lost).await.0
    }

    /// Releases all of them; [`Released::WasNotHeld`] if one had been lost already. If one cannot be
    /// released now, that is tried again in the background.
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
    async fn give_back(self) {
        let _ = self.release().await;
    }

    /// While the last was waited for, the first may have been lost.
    async fn all_good(self) -> Result<Self> {
        match self.0.iter().try_for_each(|lease| lease.still_good()) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.give_back().await;
                Err(error)
            }
        }
    }
}
