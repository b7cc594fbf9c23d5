//! The suite on `memory:`.

#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use leasehold::engine::memory::Memory;

struct InMemory(Mutex<Arc<Memory>>);

impl InMemory {
    async fn start() -> Self {
        Self(Mutex::default())
    }
}

#[async_trait]
impl Fixture for InMemory {
    fn scheme(&self) -> &'static str {
        "memory"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        self.0.lock().unwrap().clone()
    }

    async fn restart(&self) {
        *self.0.lock().unwrap() = Arc::default();
    }
}

fn main() -> ExitCode {
    conformance::main(InMemory::start)
}
