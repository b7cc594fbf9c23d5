//! What brings a store to test.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::engine::Engine;

/// A running store, shared by all cases of a run; dropping it ends it.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The scheme of the engine: the first part of each test's name.
    fn scheme(&self) -> &'static str;

    /// A new client of the store, independent of all others. Where there is no such thing, the same
    /// engine again.
    async fn connect(&self) -> Arc<dyn Engine>;

    /// With what another process can [attach](Fixture::attach) to the same store; `None` if the engine
    /// reaches no further than this process.
    fn address(&self) -> Option<String> {
        None
    }

    /// Connects to the store of another process's fixture.
    async fn attach(address: &str) -> Arc<dyn Engine>
    where
        Self: Sized,
    {
        let connected = crate::Registry::builtin().connect(address).await;
        connected.expect("the address leads to the store")
    }

    /// How much longer than its TTL the claim of a dead process may stand, by what the store promises.
    fn slack(&self) -> Duration {
        Duration::ZERO
    }

    /// Stops the store and starts it again. Clients made before need not work any more.
    async fn restart(&self);

    /// Ends the session that this client's locks depend on, as if the store had given it up. Returns
    /// false if the engine has no sessions.
    async fn sever(&self, _engine: &Arc<dyn Engine>) -> bool {
        false
    }
}
