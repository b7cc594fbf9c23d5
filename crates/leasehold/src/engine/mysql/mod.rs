//! `mysql://`: locks as rows in a MySQL or MariaDB database.
//!
//! The database decides, in stored procedures: one call is one transaction. The Rust code calls them, and delivers their answers. The engine itself, which
//! PostgreSQL shares, is `engine/sql/engine.rs`; what waiters share is in `engine/wakeup/`. The life of a claim:
//!
//! | event | what happens |
//! |---|---|
//! | attempt | `leasehold_acquire` inserts a row into `leasehold_holders`, with a new token and the time when it expires; or it answers that others hold the lock |
//! | queue | a refused claim that queues gets a number in this process, waits until the process's listener is connected, and calls `leasehold_acquire` once more, with the number: that inserts a row into `leasehold_waiters` |
//! | listen | one connection for the process calls `leasehold_listen` again and again. It sleeps there, on the server, until there is an offer or a notice for one of the process's waiters |
//! | offer | whoever makes a lock free calls `leasehold_admit`, which moves the first waiter's row to `leasehold_holders`, to expire in half a second, and wakes its listener (`KILL QUERY`). The waiter enters with the token of the offer, and the core renews it within some 20 ms, unless it is released before |
//! | renewal | `leasehold_renew` sets the time when the row expires. An offer that is renewed is a grant like any other |
//! | release | `leasehold_release` deletes the claim's row, be it a holder's or a waiter's, and offers the lock to the next |
//! | break | `leasehold_force_release` deletes the rows of all holders, and offers the lock to the next |
//! | loss | a row that has expired no longer counts. The next call that decides about the lock removes it; if it was an offer, any process that listens does so, and offers the lock to the next |
//!
//! To read it from top to bottom: `sql/tables.sql`, which explains the rows; `sql/acquire.sql`, `sql/admit.sql` and `sql/release.sql`; `sql/listen.sql` with
//! `listener.rs`; then the others.
//!
//! | file | what is there |
//! |---|---|
//! | `sql/` | the tables, and a procedure in each file |
//! | `schema.rs` | how they are created |
//! | `store.rs` | what the engine of `engine/sql` calls |
//! | `protocol.rs` | the calls, and how their answers are read |
//! | `listener.rs` | how waiters learn of offers |
//! | `client.rs` | a few connections, and how a call is sent over one of them |
//! | `health.rs` | whether the server can be trusted with locks |
//! | `config.rs`, `failure.rs` | configuration and errors |

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
mod store;

pub use self::config::{DEFAULT_TABLE, MysqlConfig};
// In the version whose types `MysqlConfig` takes.
pub use mysql_async;

use crate::engine::Driver;

/// How `mysql:` URLs are connected.
pub const DRIVER: Driver = Driver {
    schemes: &["mysql", "mariadb"],
    options: config::OPTIONS,
    example: "mysql://user:password@127.0.0.1:3306/database",
    connect: |url| Box::pin(async move { MysqlConfig::from_url(&url)?.connect().await }),
    #[cfg(feature = "bench")]
    baseline: Some(|url| {
        let config = MysqlConfig::from_url(url)?;
        Ok(std::sync::Arc::new(baseline::MysqlBaseline::on(&config)))
    }),
};
