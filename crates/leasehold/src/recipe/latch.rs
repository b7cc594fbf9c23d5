//! A latch: opens for good once so many have arrived.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Looks;
use crate::claim::check_text;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Store;
use crate::locks::Locks;
use crate::name::LockName;

impl Locks {
    /// A latch that opens once `n` different parties have arrived, and then stays open: for something that is done once, under
    /// a name that is used once. `ErrorKind::Unsupported` where the engine keeps no guarded records.
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
        Ok(Latch {
            key: super::beside(&LockName::new(name)?, "latch")?,
            store: self.store()?,
            n: super::at_least_one(n)?,
        })
    }
}

/// See [`Locks::latch`].
#[derive(Debug, Clone)]
pub struct Latch {
    key: LockName,
    store: Store,
    n: u32,
}

impl Latch {
    /// This party has arrived. To say so again, because the answer to the first time was lost, does no harm: parties are told
    /// apart by what they are called. Returns how many are still missing.
    pub async fn arrive(&self, party: impl AsRef<str>) -> Result<u32> {
        let party = party.as_ref();
        check_text("party", party, 255)?;
        let mut missing = 0;
        self.store
            .update(&self.key, |old| {
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
    pub async fn missing(&self) -> Result<u32> {
        let record = self.store.read(&self.key).await?;
        let arrived = record.map_or(0, |record| parties(&record.value).len());
        Ok(self.missing_from(arrived))
    }

    /// Returns when it is open; `ErrorKind::TimedOut` if that takes longer than `wait`. It looks at first often, later twice a
    /// second.
    pub async fn opened(&self, wait: Duration) -> Result<()> {
        let mut looks = Looks::within(wait);
        while self.missing().await? > 0 {
            if !looks.again().await {
                let late = format!("the latch {} did not open in time", self.key);
                return Err(Error::new(ErrorKind::TimedOut, late)
                    .advise("wait longer, or see who has not arrived"));
            }
        }
        Ok(())
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
