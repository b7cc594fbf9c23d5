//! Distributed locks on the store that you already run: a local file, Redis, PostgreSQL, MySQL, etcd, ZooKeeper, DynamoDB or S3.
//!
//! A lock is a *lease*. It is granted for a bounded time, its TTL, and renewed in the background while you hold it. It has a
//! fencing token that grows with every holder, so that a resource can reject writes of earlier ones. The holder learns that
//! the lease is lost before the lock can be granted to another.
//!
//! ```
//! use leasehold::Locks;
//!
//! #[tokio::main]
//! async fn main() -> leasehold::Result<()> {
//!     let locks = Locks::connect("memory:").await?; // or "sqlite:", "redis://10.0.0.7", "postgres://…"
//!
//!     // Waits for up to 10 s, in a queue.
//!     let lease = locks.lock("orders/42").acquire().await?;
//!     println!("writing with token {}", lease.token()); // give it to the store with every write
//!     lease.release().await?;
//!
//!     // Does not wait: `None` if another holds the lock.
//!     if let Some(lease) = locks.lock("report").try_acquire().await? {
//!         lease.release().await?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Where to start
//!
//! | to | see |
//! |---|---|
//! | connect to an engine | [`Locks::connect`] with a URL; a typed configuration such as [`SqliteConfig`](engine::sqlite::SqliteConfig), which also takes your own client or pool |
//! | acquire a lock | [`Locks::lock`] and [`LockRequest`] |
//! | work with a held lock | [`Lease`], [`LeaseView`] |
//! | handle errors | [`Error`], [`ErrorKind`] |
//! | reject stale writes | [`guard`], [`Lease::check_sql`] |
//! | run elections, barriers, jobs once per period | [`recipe`] |
//! | see who holds a lock, or take it away | [`Locks::inspect`], [`Locks::list`], [`Locks::force_release`] |
//! | use locks without async | [`blocking`] |
//! | write an engine | [`engine::Engine`], [`Registry`], [`conformance`] |
//!
//! The [guide](https://github.com/leasehold/leasehold/blob/main/docs/README.md) explains how to choose an engine, what each of them
//! guarantees, and how to operate it.
//!
//! # Cargo features
//!
//! | feature | adds |
//! |---|---|
//! | `sqlite` (default) | `sqlite:` URLs |
//! | `redis` | `redis:`, `redis+sentinel:`, `redis+cluster:` and `redlock:` URLs |
//! | `postgres`, `mysql`, `etcd`, `zookeeper`, `dynamodb`, `s3`, `http` | the URLs of the same name; `http` is a leasehold server |
//! | `zookeeper-tls` | `zookeepers:` URLs |
//! | `blocking` (default) | the module [`blocking`] |
//! | `files` (default) | [`guard::FileStore`]: guarded files in a folder |
//! | `tower` | `guard::FenceLayer`, which checks tokens in front of an HTTP service |
//! | `tracing`, `metrics` | spans and events; counters and histograms |
//! | `conformance` | the module [`conformance`]: the test suite that every engine passes |
//! | `bench`, `torture` | what `leasehold bench` and `leasehold torture` are made of |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
pub mod backoff;
#[cfg(feature = "blocking")]
pub mod blocking;
mod claim;
mod claims;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod core;
pub mod engine;
mod error;
pub mod guard;
mod hold;
mod lease;
mod locks;
mod name;
mod observe;
mod owner;
pub mod recipe;
mod registry;
mod renewer;
mod sync;
mod token;
#[cfg(feature = "torture")]
pub mod torture;
pub mod url;

pub use acquire::Wait;
pub use claim::{Claim, ClaimId, Claimant, Mode, Ttl};
pub use engine::{Grant, HolderInfo, LockInfo, LossReason, Released, WaiterInfo};
pub use error::{Effect, Error, ErrorKind, Result};
pub use hold::LeaseState;
pub use lease::{Lease, LeaseView};
pub use locks::{Broker, Brokered, LockRequest, Locks, Resumed};
pub use name::LockName;
pub use registry::Registry;
pub use token::{FencingToken, wall_clock_micros};
