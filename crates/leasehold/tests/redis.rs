//! The suite on `redis:`, on a real server.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use support::redis_server::RedisServer;

struct Redis(RedisServer);

impl Redis {
    async fn start() -> Self {
        Self(RedisServer::start())
    }
}

#[async_trait]
impl Fixture for Redis {
    fn scheme(&self) -> &'static str {
        "redis"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&self.0.url()).await
    }

    fn address(&self) -> Option<String> {
        Some(self.0.url())
    }

    /// It forgets everything: tokens must rise all the same.
    async fn restart(&self) {
        self.0.kill();
        self.0.revive();
    }
}

fn main() -> ExitCode {
    conformance::main(Redis::start)
}
