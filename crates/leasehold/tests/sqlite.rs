//! The suite on `sqlite:`.

#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;

/// A folder with one file of locks, removed when dropped.
struct Sqlite(tempfile::TempDir);

impl Sqlite {
    async fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

#[async_trait]
impl Fixture for Sqlite {
    fn scheme(&self) -> &'static str {
        "sqlite"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        Self::attach(&self.address().unwrap()).await
    }

    fn address(&self) -> Option<String> {
        let file = self.0.path().join("locks.db");
        Some(format!("sqlite:{}", file.display()))
    }

    /// There is no server: once the last client is gone, the next one opens the file anew.
    async fn restart(&self) {}
}

fn main() -> ExitCode {
    conformance::main(Sqlite::start)
}
