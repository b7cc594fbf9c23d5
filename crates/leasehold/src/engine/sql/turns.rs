//! How many of a pool's connections attempts may use.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::failure;
use super::store::Lane;
use crate::error::Result;

/// Turns for attempts. There are fewer than connections: a quarter, but at least one, is left to renewals and releases.
#[derive(Debug)]
pub(crate) struct Turns {
    pool: usize,
    attempts: Semaphore,
    timeout: Duration,
}

/// To be kept while a connection is used.
pub(crate) type Turn<'a> = Option<SemaphorePermit<'a>>;

impl Turns {
    /// For so many connections. Whoever waits longer than `timeout` for a turn fails.
    pub(crate) fn new(pool: usize, timeout: Duration) -> Self {
        Self {
            pool,
            attempts: Semaphore::new(pool - (pool / 4).max(1)),
            timeout,
        }
    }

    pub(crate) async fn take(&self, lane: Lane) -> Result<Turn<'_>> {
        if lane == Lane::Upkeep {
            return Ok(None);
        }
        match tokio::time::timeout(self.timeout, self.attempts.acquire()).await {
            Ok(Ok(turn)) => Ok(Some(turn)),
            _ => Err(failure::all_busy(self.pool)),
        }
    }
}
