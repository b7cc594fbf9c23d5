//! A latch: opens for good once so many have arrived.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{KEPT, Looks};
use crate::claim::check_text;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Key, Slot, UPDATE_LIMIT};
use crate::locks::Locks;
use crate::name::LockName;

impl Locks {
    /// A latch that opens once `n` different parties have arrived, and then stays open for [as long as it is
    /// kept](Latch::keep_for): for something that is done once, under a name that is used once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the engine keeps no guarded records; [`ErrorKind::InvalidName`], or
    /// [`ErrorKind::InvalidConfig`] if `n` is 0.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// let locks = leasehold::Locks::connect("memory:").await?;
    /// let imported = locks.latch("import/2026-11-15", 2)?;
    /// imported.arrive("customers").await?;
    /// imported.arrive("orders").await?;
    /// imported.opened(std::time::Duration::from_secs(10)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn latch(&self, name: impl AsRef<str>, n: u32) -> Result<Latch> {
        let name = LockName::new(name)?;
        Ok(Latch {
            parties: self.store()?.at(Key::beside(&name, "latch")),
            name,
            n: super::at_least_one(n)?,
            kept: KEPT,
        })
    }
}

/// Opens once all parties have arrived, and stays open: [`Locks::latch`].
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// let locks = leasehold::Locks::connect("memory:").await?;
/// let imported = locks.latch("import/2026-11-16", 2)?.keep_for(Duration::from_secs(3600));
/// imported.arrive("customers").await?;
/// imported.arrive("customers").await?; // the same party counts once
/// assert!(imported.opened(Duration::ZERO).await.is_err());
/// imported.arrive("orders").await?;
/// imported.opened(Duration::ZERO).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Latch {
    name: LockName,
    parties: Slot,
    n: u32,
    kept: Duration,
}

impl Latch {
    /// For how long it is remembered who has arrived, counted from the last arrival; 7 days if it is not set. Afterwards the
    /// latch is as if nobody had ever arrived.
    #[must_use]
    pub fn keep_for(mut self, time: Duration) -> Self {
        self.kept = time;
        self
    }

    /// Records that this party has arrived; returns how many are still missing. Parties are told apart by their names, so it does no
    /// harm to call it again after an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the name of the party is empty, longer than 255 bytes, or has control characters;
    /// [`ErrorKind::TimedOut`] if others changed the record for 10 seconds on end; and the
    /// [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the arrival may or may not be recorded. Call it again.
    pub async fn arrive(&self, party: impl AsRef<str>) -> Result<u32> {
        let party = party.as_ref();
        check_text("party", party, 255)?;
        let mut missing = 0;
        self.parties
            .update(UPDATE_LIMIT, Some(self.kept), |old| {
                let mut parties = parties(old.unwrap_or_default());
                parties.insert(party.to_owned());
                missing = self.missing_from(parties.len());
                let lines: Vec<_> = parties.into_iter().collect();
                lines.join("\n")
            })
            .await?;
        Ok(missing)
    }

    /// How many are still missing.
    ///
    /// # Errors
    ///
    /// The [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn missing(&self) -> Result<u32> {
        let record = self.parties.read().await?;
        let arrived = record.map_or(0, |record| parties(&record.value).len());
        Ok(self.missing_from(arrived))
    }

    /// Returns when it is open. It looks often at first, and twice a second later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if it did not open within `wait`; and the [engine errors](crate::Error#engine-errors).
    ///
    /// # Cancel safety
    ///
    /// Only reads: the future can be dropped at any time.
    pub async fn opened(&self, wait: Duration) -> Result<()> {
        let mut looks = Looks::within(wait);
        while self.missing().await? > 0 {
            if !looks.again().await {
                let late = format!("the latch {} did not open in time", self.name);
                return Err(Error::new(ErrorKind::TimedOut, late)
                    .advise("wait longer, or see who has not arrived"));
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn kept_in(mut self, store: &crate::guard::Store) -> Self {
        self.parties = store.at(self.parties.key.clone());
        self
    }

    fn missing_from(&self, arrived: usize) -> u32 {
        self.n
            .saturating_sub(arrived.try_into().unwrap_or(u32::MAX))
    }
}

/// One on each line: what they are called has no line ends.
fn parties(value: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(value)
        .lines()
        .map(str::to_owned)
        .collect()
}
