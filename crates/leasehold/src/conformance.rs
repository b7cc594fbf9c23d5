//! The one suite that every engine passes; also for those who write an engine of their own.
//!
//! Implement [`Fixture`], and let a test file with `harness = false` say
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use leasehold::engine::{Engine, memory::Memory};
//! # use leasehold::conformance::{self, Fixture};
//! # struct Mine;
//! # impl Mine { async fn start() -> Self { Mine } }
//! # #[async_trait::async_trait]
//! # impl Fixture for Mine {
//! #     fn scheme(&self) -> &'static str { "mine" }
//! #     async fn connect(&self) -> Arc<dyn Engine> { Arc::new(Memory::default()) }
//! #     async fn restart(&self) {}
//! # }
//! fn main() -> std::process::ExitCode {
//!     conformance::main(Mine::start)
//! }
//! ```
//!
//! Each case is a test of its own, named `scheme::theme::case`; the engine's
//! [capabilities](crate::engine::Capabilities) choose which. One store serves all cases of a run at
//! the same time, so each case uses lock names of its own.
//!
//! `LEASEHOLD_TORTURE_SECONDS` says for how long processes are killed at random; else a few seconds.
//!
//! | module | what is there |
//! |---|---|
//! | [`main`], [`Suite`] | runs the cases on one engine, or on several in one test file |
//! | [`Case`], [`Need`], [`THEMES`] | the cases as data; one file a theme |
//! | [`Fixture`], [`Ground`] | what brings the store, and what a case is given |
//! | [`child`] | other processes: this test binary, started again |
//! | [`faulty`] | an engine whose replies get lost |
//! | [`saboteur`] | engines broken on purpose, to show that each case can fail |
//! | [`operations`] | random sequences of all operations, checked step by step |
//! | [`Stalls`] | tells a host that took the processor away from an engine that was late |
//! | [`history`] | what was done under the locks, checked for overlaps and falling tokens |

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod broken_records;
mod case;
pub mod child;
pub mod faulty;
mod fixture;
mod ground;
mod runner;
pub mod saboteur;
mod stalls;

mod exclusion;
mod expiry;
mod fuzz;
mod inspect;
mod loss;
mod modes;
mod names;
pub mod operations;
mod reentrancy;
mod release;
mod store;
mod tokens;
mod torture;
mod waiting;

pub use crate::torture::history;
pub use case::{Case, Need, Theme};
pub use fixture::Fixture;
pub use ground::Ground;
pub use runner::{Suite, main, run, run_trials};
pub use stalls::{Stalls, unless_stalled};

/// Every case there is.
pub const THEMES: &[Theme] = &[
    exclusion::THEME,
    release::THEME,
    expiry::THEME,
    loss::THEME,
    waiting::THEME,
    store::writes::THEME,
    store::keys::THEME,
    store::ends::THEME,
    store::contention::THEME,
    modes::THEME,
    tokens::THEME,
    reentrancy::THEME,
    names::THEME,
    inspect::THEME,
    fuzz::THEME,
];
