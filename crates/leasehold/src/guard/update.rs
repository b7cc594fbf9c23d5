//! Optimistic locking as a loop: read, change, write if the version still holds.

use std::time::Duration;

use super::record::{Checked, Content, Key, Version};
use super::store::{Slot, Store};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How long [`Store::update`] goes on.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// What an update came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The version that it made.
    pub version: Version,
    /// How often it was tried.
    pub tries: u32,
}

impl Store {
    /// Changes a record that others change too: reads it, calls `change` with its value (`None` if there is no record), and
    /// writes what that returns if nobody has written in between; else starts over after a random delay, for up to 10 seconds.
    /// `change` may be called many times.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> leasehold::Result<()> {
    /// # let locks = leasehold::Locks::connect("memory:").await?;
    /// let count = |old: Option<&[u8]>| {
    ///     let old = old.and_then(|old| std::str::from_utf8(old).ok()?.parse().ok());
    ///     (old.unwrap_or(0) + 1).to_string()
    /// };
    /// locks.store()?.update("visits", count).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if others wrote first for 10 seconds on end; [`ErrorKind::InvalidConfig`] if the key cannot be used or
    /// the value is too long; and the [engine errors](crate::Error#engine-errors). If the effect is unknown, the last write may
    /// have been carried out.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the last write may or may not be carried out.
    pub async fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<str>,
        change: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated> {
        self.update_within(DEFAULT_LIMIT, key, change).await
    }

    /// As [`update`](Self::update), for up to `limit`.
    ///
    /// # Errors
    ///
    /// Those of [`update`](Self::update).
    ///
    /// # Cancel safety
    ///
    /// That of [`update`](Self::update).
    pub async fn update_within<V: AsRef<[u8]>>(
        &self,
        limit: Duration,
        key: impl AsRef<str>,
        change: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated> {
        self.at(Key::new(key)?).update(limit, None, change).await
    }
}

impl Slot {
    /// As [`Store::update`]; what is written lasts for so long.
    pub(crate) async fn update<V: AsRef<[u8]>>(
        &self,
        limit: Duration,
        lifetime: Option<Duration>,
        mut change: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated> {
        let clock = Clock::machine();
        let end = clock.now() + limit;
        // The first few who collide come back at once, one after another; a crowd spreads out.
        let mut delays = Backoff::new(
            fastrand::u64(..),
            Duration::from_micros(500),
            Duration::from_millis(50),
        );
        let mut tries = 0;
        loop {
            tries += 1;
            let old = self.read().await?;
            let new = change(old.as_ref().map(|old| &*old.value));
            let content = Content {
                value: Some(new.as_ref()),
                lifetime,
            };
            match self.write_if(content, old.map(|old| old.version)).await? {
                Checked::Written { version } => return Ok(Updated { version, tries }),
                Checked::Changed { .. } => {
                    let again = clock.now() + delays.delay();
                    if again >= end {
                        return Err(timed_out(&self.key, limit, tries));
                    }
                    clock.sleep_until(again).await;
                }
            }
        }
    }
}

fn timed_out(key: &Key, limit: Duration, tries: u32) -> Error {
    let (key, limit) = (key.as_str(), humantime::format_duration(limit));
    Error::new(
        ErrorKind::TimedOut,
        format!("the record {key:?} was not updated within {limit}: in each of {tries} tries someone else wrote first"),
    )
    .advise("where many write the same record, let them take turns with a lock")
}
