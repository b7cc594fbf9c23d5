//! The fastest that a store itself could do: what `leasehold bench` compares an engine with.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::url::EngineUrl;

/// Makes the baseline for a URL.
pub type Connect = fn(&EngineUrl) -> Result<Arc<dyn Baseline>>;

/// What a store itself can do.
#[async_trait]
pub trait Baseline: Debug + Send + Sync + 'static {
    /// What one cycle is, such as "INSERT and DELETE of one row".
    fn cycle_is(&self) -> &'static str;

    /// The bare commands of an uncontended acquire and release, by the same client library.
    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>>;

    /// As `cycle`, for many at once over one connection, as a handle's locks are.
    async fn cycles(&self, names: &[String]) -> Result<Vec<Box<dyn BaselineLock>>> {
        let mut locks = Vec::new();
        for name in names {
            locks.push(self.cycle(name).await?);
        }
        Ok(locks)
    }

    /// How much time of a processor the store's servers have used so far, all together; `None` if they do not tell.
    async fn processor_time(&self) -> Result<Option<Duration>> {
        Ok(None)
    }

    /// What a handoff is, such as "flock(2)".
    fn handoff_is(&self) -> &'static str;

    /// The fastest way to hand something from one waiter to the next. Opened once by each waiter.
    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>>;
}

/// A bare lock: no token, no time limit, no queue of its own.
#[async_trait]
pub trait BaselineLock: Send {
    /// Takes it, waiting for it if need be.
    async fn acquire(&mut self) -> Result<()>;

    /// Gives it back.
    async fn release(&mut self) -> Result<()>;
}
