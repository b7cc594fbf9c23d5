//! The suite on `etcd:`, on a real cluster of three.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use support::etcd_cluster::EtcdCluster;

struct Etcd(EtcdCluster);

impl Etcd {
    async fn start() -> Self {
        Self(EtcdCluster::start(3))
    }
}

#[async_trait]
impl Fixture for Etcd {
    fn scheme(&self) -> &'static str {
        "etcd"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&self.0.url()).await
    }

    fn address(&self) -> Option<String> {
        Some(self.0.url())
    }

    /// Leases are whole seconds, and those that have ended are looked for every half second.
    fn slack(&self) -> Duration {
        Duration::from_millis(1500)
    }

    /// All members at once, as after a power cut.
    async fn restart(&self) {
        self.0.restart();
    }
}

fn main() -> ExitCode {
    conformance::main(Etcd::start)
}
