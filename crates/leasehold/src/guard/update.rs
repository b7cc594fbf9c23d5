//! Optimistic locking as a loop: read, change, write if the version still holds.

use std::time::Duration;

use super::record::{Checked, Version};
use super::store::Store;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How long [`Store::update`] goes on.
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// What an update came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated {
    /// The version that it made.
    pub version: Version,
    /// How often it was tried.
    pub tries: u32,
}

impl Store {
    /// Changes a record whoever else does: reads it, calls `change` with its value (`None` if there is no record), and writes
    /// what that returns if nobody has written in between; else starts over after a random delay, for up to 10 seconds.
    ///
    /// `change` may be called many times. An error of [unknown effect](crate::Effect) means that the last write may have
    /// been carried out.
    pub async fn update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<str>,
        change: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated> {
        self.update_within(DEFAULT_LIMIT, key, change).await
    }

    /// As [`update`](Self::update), for up to `limit`.
    pub async fn update_within<V: AsRef<[u8]>>(
        &self,
        limit: Duration,
        key: impl AsRef<str>,
        mut change: impl FnMut(Option<&[u8]>) -> V,
    ) -> Result<Updated> {
        let key = key.as_ref();
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
            let old = self.read(key).await?;
            let new = change(old.as_ref().map(|old| &*old.value));
            match self.write_if(key, new, old.map(|old| old.version)).await? {
                Checked::Written { version } => return Ok(Updated { version, tries }),
                Checked::Changed { .. } => {
                    let again = clock.now() + delays.delay();
                    if again >= end {
                        return Err(given_up(key, limit, tries));
                    }
                    clock.sleep_until(again).await;
                }
            }
        }
    }
}

fn given_up(key: &str, limit: Duration, tries: u32) -> Error {
    let limit = humantime::format_duration(limit);
    Error::new(
        ErrorKind::TimedOut,
        format!("the record {key:?} was not updated within {limit}: in each of {tries} tries someone else wrote first"),
    )
    .advise("where many write the same record, let them take turns with a lock")
}
