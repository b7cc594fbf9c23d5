//! `postgres://`: locks as rows in a PostgreSQL database.
//!
//! The database decides, in functions: one call is one transaction. The Rust code calls them, and delivers their answers. The engine itself, which MySQL
//! shares, is `engine/sql/engine.rs`; what waiters share is in `engine/wakeup/`. The life of a claim:
//!
//! | event | what happens |
//! |---|---|
//! | attempt | `acquire` writes the claim into the lock's row of `holders`, or into a row of its own if the lock is shared, with a new token and the time when it expires; or it answers that others hold the lock |
//! | queue | a refused claim that queues gets a number in this process, waits until the process's listener is connected, and calls `acquire` once more, with the number: that inserts a row into `waiters` |
//! | listen | one connection for the process receives messages (`LISTEN`), and calls `beat` three times a second, which reports that the process is alive |
//! | offer | whoever makes a lock free calls `admit`, which makes the first waiter the holder for half a second and sends its process a message (`NOTIFY`). The process asks the server about it (`offers`), the waiter enters with the token of the offer, and the core renews it within some 20 ms, unless it is released before |
//! | renewal | `renew` sets the time when the holder expires. An offer that is renewed is a grant like any other |
//! | release | `release` removes the claim, be it a holder or a waiter, and offers the lock to the next |
//! | break | `force_release` removes all holders, and offers the lock to the next |
//! | loss | a holder that has expired no longer counts. The next call that decides about the lock removes it (`expire`); if it was an offer, the next `beat` of a process that waits for the lock does so, and offers it to the next |
//!
//! To read it from top to bottom: `sql/tables.sql`, which explains the rows; `sql/turns.sql`, `sql/queue.sql`, `sql/acquire.sql` and `sql/release.sql`;
//! `sql/listen.sql` with `listener.rs`; then the others.
//!
//! | file | what is there |
//! |---|---|
//! | `sql/` | the tables, and the functions by subject |
//! | `schema.rs` | how they are created |
//! | `store.rs` | what the engine of `engine/sql` calls |
//! | `protocol.rs` | the calls, and how their answers are read |
//! | `listener.rs` | how waiters learn of offers |
//! | `client.rs` | a few connections, and how a call is sent over one of them |
//! | `shared_session.rs` | how calls use the listener's connection |
//! | `health.rs` | whether the server can be trusted with locks, and whether a pooler is in between |
//! | `config.rs`, `tls.rs`, `failure.rs` | configuration, encryption and errors |

#[cfg(feature = "bench")]
mod baseline;
mod client;
mod config;
mod doctor;
mod failure;
mod health;
mod listener;
mod protocol;
pub mod schema;
mod shared_session;
mod store;
mod tls;

pub use self::config::{DEFAULT_SCHEMA, PostgresConfig};
// In the versions whose types `PostgresConfig` takes.
pub use {deadpool_postgres, rustls, tokio_postgres};

use crate::engine::Driver;

/// How `postgres:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["postgres", "postgresql"],
    options: config::OPTIONS,
    example: "postgres://user@127.0.0.1:5432/database",
    connect: |url| Box::pin(async move { PostgresConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| {
        let config = PostgresConfig::from_url(url)?;
        Ok(std::sync::Arc::new(baseline::PostgresBaseline::on(&config)))
    }),
};
