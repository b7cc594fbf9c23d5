//! Locks as rows of a database: what engines for different databases share.
//!
//! | file | what is there |
//! |---|---|
//! | `engine.rs` | the engine, over a `RowStore` |
//! | `store.rs` | the trait `RowStore`, which a database implements, and the answers to its calls |
//! | `turns.rs`, `retry.rs` | how many connections attempts may use, and when a call is repeated |
//! | `records.rs` | guarded records |
//! | `rows.rs` | how a claim is written into rows, and how rows are read |
//! | `config.rs`, `failure.rs` | options and errors that are the same everywhere |

pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod engine;
pub(crate) mod failure;
pub(crate) mod records;
pub(crate) mod retry;
pub(crate) mod rows;
pub(crate) mod store;
pub(crate) mod turns;
