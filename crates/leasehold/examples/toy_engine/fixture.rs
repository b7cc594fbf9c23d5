//! What the conformance suite needs to know of the engine: how to start a store, and how to connect to it.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::Registry;
use leasehold::conformance::Fixture;
use leasehold::engine::Engine;
use tempfile::TempDir;

use super::DRIVER;

pub(crate) struct Directory(TempDir);

impl Directory {
    pub(crate) async fn create() -> Self {
        Self(TempDir::new().unwrap_or_else(|error| panic!("no temporary directory: {error}")))
    }
}

#[async_trait]
impl Fixture for Directory {
    fn scheme(&self) -> &'static str {
        "toy"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&format!("toy:{}", self.0.path().display())).await
    }

    fn address(&self) -> Option<String> {
        Some(format!("toy:{}", self.0.path().display()))
    }

    async fn attach(address: &str) -> Arc<dyn Engine> {
        let registry = Registry::builtin().with(DRIVER);
        let connected = registry.connect(address).await;
        connected.unwrap_or_else(|error| panic!("{error}"))
    }

    /// There is no server, and the files stay.
    async fn restart(&self) {}
}
