//! The suite on `mysql:`, on a real MariaDB server.

mod support;

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use nix::sys::signal::Signal;
use support::mariadb_server::MariadbServer;

struct Mysql(MariadbServer);

impl Mysql {
    async fn start() -> Self {
        Self(MariadbServer::start())
    }

    fn url(&self) -> String {
        // Patience with a loaded machine.
        format!("{}?pool=4&timeout=20s&connect_timeout=20s", self.0.url())
    }
}

#[async_trait]
impl Fixture for Mysql {
    fn scheme(&self) -> &'static str {
        "mysql"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&self.url()).await
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    /// A crash.
    async fn restart(&self) {
        self.0.stop(Signal::SIGKILL);
        self.0.revive();
    }
}

fn main() -> ExitCode {
    conformance::main(Mysql::start)
}
