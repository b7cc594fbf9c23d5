//! Random sequences of all operations, made smaller when one fails: many on a paused clock, fewer on real engines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::support::deadline;
#[cfg(feature = "postgres")]
use crate::support::postgres_server::{PostgresServer, Stop};
use crate::support::redis_server::RedisServer;
use async_trait::async_trait;
use leasehold::Locks;
use leasehold::clock::Clock;
use leasehold::conformance::operations::{Step, check};
use leasehold::conformance::saboteur::{Memory as Shared, Sabotaged, Saboteur};
use leasehold::conformance::{Fixture, Ground};
use leasehold::engine::Engine;
use leasehold::engine::memory::Memory;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A sequence of steps, by the seed of each: so it is made smaller by leaving steps out.
fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step =
        any::<u64>().prop_map(|seed| Step::random_or_restart(&mut fastrand::Rng::with_seed(seed)));
    prop::collection::vec(step, 1..most)
}

fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    }
}

/// What a sequence is carried out on.
enum Store {
    /// A memory whose clock is that of the test, broken or not.
    Memory(Arc<Memory>, Saboteur, Arc<Shared>),
    /// A file, or a server that is not to be restarted.
    Url(String),
    #[cfg(feature = "postgres")]
    Postgres(PostgresServer),
}

impl Store {
    fn memory(how: Saboteur) -> Self {
        let memory = Memory::with_clock(Clock::tokio());
        Store::Memory(Arc::new(memory), how, Arc::default())
    }
}

#[async_trait]
impl Fixture for Store {
    fn scheme(&self) -> &'static str {
        "any"
    }

    async fn connect(&self) -> Arc<dyn Engine> {
        match self {
            Store::Memory(memory, how, shared) => {
                let inner = Arc::<Memory>::clone(memory);
                Arc::new(Sabotaged::new(inner, *how, Arc::clone(shared)))
            }
            Store::Url(url) => Arc::clone(Locks::connect(url).await.unwrap().engine()),
            #[cfg(feature = "postgres")]
            Store::Postgres(server) => {
                Arc::clone(Locks::connect(server.url()).await.unwrap().engine())
            }
        }
    }

    async fn restart(&self) {
        #[cfg(feature = "postgres")]
        if let Store::Postgres(server) = self {
            server.stop(if fastrand::bool() {
                Stop::Kill
            } else {
                Stop::Fast
            });
            server.revive();
        }
    }
}

/// On a clock that jumps over every sleep.
fn on_memory(how: Saboteur, cases: u32) -> Result<(), String> {
    deadline::begin();
    let mut runner = TestRunner::new(config(cases));
    let run = runner.run(&steps(120), |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let checked = runtime.block_on(async {
            let ground = Ground::new(Arc::new(Store::memory(how)), Duration::from_secs(20));
            check(&ground, &steps).await
        });
        checked.map_err(|violation| TestCaseError::fail(violation.to_string()))
    });
    run.map_err(|failure| failure.to_string())
}

fn on_store(store: Store, cases: u32) {
    deadline::begin();
    let mut runner = TestRunner::new(Config {
        max_shrink_iters: 20,
        ..config(cases)
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = Arc::new(store);
    let run = runner.run(&steps(50), |steps| {
        let ground = Ground::new(Arc::<Store>::clone(&store), Duration::from_secs(20));
        let checked = runtime.block_on(check(&ground, &steps));
        checked.map_err(|violation| TestCaseError::fail(violation.to_string()))
    });
    if let Err(failure) = run {
        panic!("{failure}");
    }
}

#[test]
fn memory_obeys_in_every_order() {
    on_memory(Saboteur::Nobody, 1_000).unwrap();
}

#[test]
fn what_breaks_a_rule_is_found() {
    for how in [
        Saboteur::GrantsSometimes,
        Saboteur::GrantsAnew,
        Saboteur::ExpiresEarly,
        Saboteur::RenewShortens,
        Saboteur::RenewTakesTheLock,
        Saboteur::RenewSaysLost,
        Saboteur::RenewDoesNothing,
        Saboteur::ReleaseLeavesGhosts,
        Saboteur::TokensRepeat,
    ] {
        assert!(on_memory(how, 1_000).is_err(), "{how} is not found");
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_obeys_in_every_order() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    on_store(Store::Url(url), 30);
}

#[cfg(feature = "redis")]
#[test]
fn redis_obeys_in_every_order() {
    let server = RedisServer::start();
    on_store(Store::Url(server.url()), 15);
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_obeys_in_every_order() {
    // What nobody waits for stays in memory, and is lost with it.
    let server = PostgresServer::with(&["wal_writer_delay=10s"]);
    on_store(Store::Postgres(server), 15);
}
