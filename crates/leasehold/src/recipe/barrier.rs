//! A barrier: nobody passes before so many are there; and then again.

use std::time::Duration;

use super::{KEPT, Looks};
use crate::claim::Ttl;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Checked, Content, Key, Slot, Version};
use crate::lease::Lease;
use crate::locks::Locks;
use crate::name::LockName;

impl Locks {
    /// A barrier for `n` parties, to be used any number of times. A party that dies while it waits is not counted once its
    /// lease has ended.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine keeps no guarded records or has no shared mode; [`ErrorKind::InvalidName`], or
    /// [`ErrorKind::InvalidConfig`] if `n` is 0.
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
        let name = LockName::new(name)?;
        Ok(Barrier {
            rounds: self.store()?.at(Key::beside(&name, "barrier")),
            name,
            locks: self.of_nobody(),
            n: super::at_least_one(n)?,
            ttl: Ttl::DEFAULT.get(),
            kept: KEPT,
        })
    }
}

/// Nobody passes before all parties are there, in each round anew: [`Locks::barrier`].
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("memory:").await?;
/// // Usually in two processes, which use the same name.
/// let worker = async |name: &str| {
///     let barrier = locks.barrier("phase", 2)?;
///     for phase in 1..=3 {
///         println!("{name} has done phase {phase}");
///         barrier.pass(Duration::from_secs(10)).await?;
///     }
///     leasehold::Result::Ok(())
/// };
/// let (one, two) = tokio::join!(worker("one"), worker("two"));
/// one.and(two)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Barrier {
    name: LockName,
    rounds: Slot,
    locks: Locks,
    n: u32,
    ttl: Duration,
    kept: Duration,
}

/// How a round stands.
enum Round {
    Open,
    Over,
    /// What was known of it is forgotten: it begins with round 0 again.
    Forgotten,
}

impl Barrier {
    /// For how long a party that dies while it waits is still counted; 30 s if it is not set.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// For how long the number of the round is remembered after a round has ended; 7 days if it is not set. Afterwards it
    /// begins with 0 again.
    #[must_use]
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.kept = time;
        self
    }

    /// How many parties wait at it now.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn waiting(&self) -> Result<usize> {
        let (round, _) = self.round().await?;
        let waiting = super::holders(&self.locks, &self.lock_of(round)?).await?;
        Ok(waiting.len())
    }

    /// Returns when `n` parties are there, with the number of the round.
    ///
    /// Each party holds a shared lock of the round, so that only the living are counted. The one that sees all of them records
    /// that the round is over, for those that look later. It looks often at first, and twice a second later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if not all were there within `wait`; [`ErrorKind::LeaseLost`] if the shared lock was lost meanwhile;
    /// and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, this party is no longer counted: its shared lock is released in the background. A party that
    /// has counted it before may pass all the same.
    pub async fn pass(&self, wait: Duration) -> Result<u64> {
        let mut looks = Looks::within(wait);
        // Whoever was here before and stepped back must not be counted twice.
        let _ = tokio::time::timeout(wait, self.locks.flush()).await;
        loop {
            let (round, _) = self.round().await?;
            let here = super::request(&self.locks, self.lock_of(round)?);
            let here = here.ttl(self.ttl).shared().wait(looks.left());
            let here = here.reason("waits at a barrier").acquire().await?;
            let ended = loop {
                match self.look_at(round, &here).await {
                    Ok(Round::Open) if looks.again().await => {}
                    ended => break ended,
                }
            };
            // If it cannot be released now, that is done in the background.
            let _ = here.release().await;
            match ended? {
                Round::Over => return Ok(round),
                Round::Forgotten => {}
                Round::Open => {
                    return Err(Error::new(
                        ErrorKind::TimedOut,
                        format!("not all {} were at the barrier in time", self.n),
                    )
                    .advise("wait longer, or see who is missing")
                    .on(&self.name));
                }
            }
        }
    }

    fn lock_of(&self, round: u64) -> Result<LockName> {
        self.name.beside(&format!("barrier/{round}"))
    }

    /// Whether all have been there; if all are there now, writes it down.
    async fn look_at(&self, round: u64, here: &Lease) -> Result<Round> {
        let (now, version) = self.round().await?;
        if now > round {
            return Ok(Round::Over);
        }
        here.view.still_good()?;
        if now < round {
            return Ok(Round::Forgotten);
        }
        let there = super::holders(&self.locks, here.name()).await?.len();
        if there < self.n as usize {
            return Ok(Round::Open);
        }
        let next = (round + 1).to_string();
        let content = Content::passing(next.as_bytes(), self.kept);
        Ok(match self.rounds.write_if(content, version).await? {
            Checked::Written { .. } => Round::Over,
            // Another has seen it too.
            Checked::Changed { .. } if self.round().await?.0 > round => Round::Over,
            Checked::Changed { .. } => Round::Open,
        })
    }

    async fn round(&self) -> Result<(u64, Option<Version>)> {
        let Some(record) = self.rounds.read().await? else {
            return Ok((0, None));
        };
        let round = std::str::from_utf8(&record.value).ok();
        match round.and_then(|round| round.parse().ok()) {
            Some(round) => Ok((round, Some(record.version))),
            None => Err(Error::new(
                ErrorKind::EngineUnfit,
                "what is stored for this barrier is not the number of a round",
            )
            .advise("see who else writes leasehold's own records")
            .on(&self.name)),
        }
    }

    #[cfg(test)]
    pub(super) fn kept_in(mut self, store: &crate::guard::Store) -> Self {
        self.rounds = store.at(self.rounds.key.clone());
        self
    }
}
