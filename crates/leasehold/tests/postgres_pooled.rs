//! The suite on `postgres:` behind PgBouncer in transaction mode, which swallows messages.

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use support::pgbouncer::PgBouncer;
use support::postgres_server::{PostgresServer, Stop};

struct Postgres {
    pooler: PgBouncer,
    server: PostgresServer,
}

impl Postgres {
    async fn start() -> Self {
        let server = PostgresServer::start();
        let pooler = PgBouncer::before(&server, 20);
        Self { pooler, server }
    }

    fn url(&self) -> String {
        // Patience with a loaded machine.
        format!(
            "{}?pool=4&timeout=20s&connect_timeout=20s",
            self.pooler.url()
        )
    }
}

#[async_trait]
impl Fixture for Postgres {
    fn scheme(&self) -> &'static str {
        "postgres"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&self.url()).await
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    /// A crash; what was released a moment before may be forgotten, what was granted may not.
    async fn restart(&self) {
        tokio::time::sleep(Duration::from_millis(700)).await;
        self.server.stop(Stop::Kill);
        self.server.revive();
    }
}

fn main() -> ExitCode {
    conformance::main(Postgres::start)
}
