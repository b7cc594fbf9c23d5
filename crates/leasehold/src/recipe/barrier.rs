//! A barrier: nobody passes before so many are there; and then again.

use std::time::Duration;

use super::Looks;
use crate::claim::Ttl;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Checked, Store, Version};
use crate::lease::Lease;
use crate::locks::Locks;
use crate::name::LockName;

impl Locks {
    /// A barrier for `n` parties, to be used any number of times. Whoever dies while it waits is not counted, once its lease
    /// has ended. `ErrorKind::Unsupported` where the engine keeps no guarded records or has no shared mode.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::Locks::connect("memory:").await?;
    /// let barrier = locks.barrier("phase", 2)?;
    /// let wait = std::time::Duration::from_secs(10);
    /// let (one, two) = tokio::join!(barrier.pass(wait), barrier.pass(wait));
    /// assert_eq!(one?, two?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&self, name: impl AsRef<str>, n: u32) -> Result<Barrier> {
        if !self.capabilities().shared {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a barrier needs shared locks, which this engine has not",
            )
            .advise("use a latch, or another engine"));
        }
        Ok(Barrier {
            name: super::beside(&LockName::new(name)?, "barrier")?,
            store: self.store()?,
            locks: self.of_nobody(),
            n: super::at_least_one(n)?,
            ttl: Ttl::DEFAULT.get(),
        })
    }
}

/// See [`Locks::barrier`].
#[derive(Debug, Clone)]
pub struct Barrier {
    name: LockName,
    store: Store,
    locks: Locks,
    n: u32,
    ttl: Duration,
}

impl Barrier {
    /// For how long whoever dies here is still counted; 30 s if nothing is said.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Returns when `n` are there, with the number of the round; `ErrorKind::TimedOut` if that takes longer than `wait`. Dropping
    /// the future steps back.
    ///
    /// Each party there holds a shared lock of the round, so that the living are counted; whoever sees all of them writes down
    /// that the round is over, for those that look later. It looks at first often, later twice a second.
    pub async fn pass(&self, wait: Duration) -> Result<u64> {
        let mut looks = Looks::within(wait);
        let (round, version) = self.round().await?;
        let name = LockName::new(format!("{}/{round}", self.name.as_str()))?;
        let here = self.locks.lock(&name).ttl(self.ttl).shared().wait(wait);
        let here = here.reason("waits at a barrier").acquire().await?;
        let passed = loop {
            match self.is_over(round, version, &here).await {
                Ok(false) if looks.again().await => {}
                ended => break ended,
            }
        };
        // If it cannot be released now, that is done in the background.
        let _ = here.release().await;
        match passed? {
            true => Ok(round),
            false => Err(Error::new(
                ErrorKind::TimedOut,
                format!("not all {} were at the barrier in time", self.n),
            )
            .advise("wait longer, or see who is missing")
            .on(&self.name)),
        }
    }

    /// Whether all have been there; if all are there now, writes it down.
    async fn is_over(&self, round: u64, version: Option<Version>, here: &Lease) -> Result<bool> {
        if self.round().await?.0 > round {
            return Ok(true);
        }
        here.still_good()?;
        let there = self.locks.show(here.name()).await?.holders.len();
        if there < self.n as usize {
            return Ok(false);
        }
        let next = (round + 1).to_string();
        Ok(
            match self.store.write_if(&self.name, next, version).await? {
                Checked::Written { .. } => true,
                // Another has seen it too.
                Checked::Changed { .. } => self.round().await?.0 > round,
            },
        )
    }

    async fn round(&self) -> Result<(u64, Option<Version>)> {
        let Some(record) = self.store.read(&self.name).await? else {
            return Ok((0, None));
        };
        let round = std::str::from_utf8(&record.value).ok();
        match round.and_then(|round| round.parse().ok()) {
            Some(round) => Ok((round, Some(record.version))),
            None => Err(Error::new(
                ErrorKind::EngineUnfit,
                format!("the record {} is not one of a barrier", self.name),
            )
            .advise("see who else writes it, or use another name")),
        }
    }
}
