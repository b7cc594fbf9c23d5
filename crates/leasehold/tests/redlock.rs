//! The suite on `redlock:`, on five real servers.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use support::deployment::Deployment;

struct Redlock(Deployment);

impl Redlock {
    async fn start() -> Self {
        let deployment = Deployment::start(5);
        deployment.has_stood_a_while();
        Self(deployment)
    }
}

#[async_trait]
impl Fixture for Redlock {
    fn scheme(&self) -> &'static str {
        "redlock"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&self.0.url()).await
    }

    fn address(&self) -> Option<String> {
        Some(self.0.url())
    }

    /// As many nodes as the deployment can do without forget everything. They may not vote before its max_ttl has
    /// passed; the others carry on.
    async fn restart(&self) {
        for node in &self.0.nodes[..2] {
            node.kill();
            node.revive();
        }
    }
}

fn main() -> ExitCode {
    conformance::main(Redlock::start)
}
