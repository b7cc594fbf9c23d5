#![doc = include_str!("../../../README.md")]
//!
//! # A map of the crate
//!
//! | module | what is there |
//! |---|---|
//! | [`LockName`], [`Claim`], [`Mode`], [`Ttl`] | what is asked (`name.rs`, `claim.rs`) |
//! | [`Locks`], [`LockRequest`] | the handle that users hold, and what they build with it (`locks.rs`) |
//! | `acquire.rs`, [`backoff`] | the only waiting loop, and its random delays |
//! | [`Lease`], [`LeaseView`], `hold.rs`, `keep_alive.rs`, `owner.rs` | what a grant gives, how it is renewed, and how an owner takes it again |
//! | [`FencingToken`] | the number that never goes back (`token.rs`) |
//! | [`Error`], [`ErrorKind`], [`Effect`] | what can go wrong (`error.rs`) |
//! | [`url`] | pure parsing, then connecting |
//! | [`engine`] | the contract, and one module an engine |
//! | [`recipe`] | several locks at once, elections, once per period, unique ids, barriers, revokes |
//! | [`guard`] | the resource's side: fenced and optimistic writes |
//! | [`clock`] | the clock that counts time asleep |
//! | [`blocking`] | the same without async |
//! | [`conformance`] | the suite that every engine passes (feature `conformance`) |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
pub mod backoff;
#[cfg(feature = "blocking")]
pub mod blocking;
mod claim;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod engine;
mod error;
pub mod guard;
mod hold;
mod keep_alive;
mod lease;
mod locks;
mod name;
mod observe;
mod owner;
pub mod recipe;
mod token;
pub mod url;

pub use acquire::Wait;
pub use claim::{Claim, ClaimId, Claimant, Mode, Ttl};
pub use engine::{Grant, HolderInfo, LockInfo, LossReason, Released, WaiterInfo};
pub use error::{Effect, Error, ErrorKind, Result};
pub use lease::{Lease, LeaseState, LeaseView};
pub use locks::{LockRequest, Locks, Resumed};
pub use name::LockName;
pub use token::{FencingToken, wall_clock_micros};

/// The pages under `docs/`, so that their examples are compiled with the tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/guarantees.md")]
    mod guarantees {}
    #[doc = include_str!("../../../docs/recipes.md")]
    mod recipes {}
    #[doc = include_str!("../../../docs/fencing.md")]
    mod fencing {}
    #[doc = include_str!("../../../docs/engines/sqlite.md")]
    mod sqlite {}
    #[doc = include_str!("../../../docs/engines/redis.md")]
    mod redis {}
    #[doc = include_str!("../../../docs/engines/redlock.md")]
    mod redlock {}
    #[doc = include_str!("../../../docs/engines/postgres.md")]
    mod postgres {}
    #[doc = include_str!("../../../docs/engines/mysql.md")]
    mod mysql {}
    #[doc = include_str!("../../../docs/engines/etcd.md")]
    mod etcd {}
    #[doc = include_str!("../../../docs/engines/zookeeper.md")]
    mod zookeeper {}
}
