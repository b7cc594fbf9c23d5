//! The fastest that a store itself could do: what `leasehold bench` compares an engine with.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::error::Result;

/// An engine's raw limit.
#[async_trait]
pub trait RawLimit: Debug + Send + Sync + 'static {
    /// What one cycle is, such as "INSERT and DELETE of one row".
    fn cycle_is(&self) -> &'static str;

    /// The bare commands of an uncontended acquire and release, by the same client library.
    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>>;

    /// What a handoff is, such as "flock(2)".
    fn handoff_is(&self) -> &'static str;

    /// The fastest way to hand something from one waiter to the next. Opened once by each waiter.
    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>>;
}

/// A bare lock: no token, no time limit, no queue of its own.
#[async_trait]
pub trait RawLock: Send {
    /// Takes it, waiting for it if need be.
    async fn acquire(&mut self) -> Result<()>;

    /// Gives it back.
    async fn release(&mut self) -> Result<()>;
}
