//! Locks on stores that have nothing but compare-and-swap: a document each, replaced if it has not changed.
//!
//! | file | what is there |
//! |---|---|
//! | `document.rs` | a lock as one document |
//! | `rules.rs` | what requests do to a document |
//! | `sightings.rs` | when signs of life were first seen: leases without a common clock |
//! | `store.rs` | what a store brings |
//! | `lock.rs` | one lock: its requests, served together, and writes whose answers are lost |
//! | `engine.rs` | the engine |
//! | `poller.rs` | how waiters learn that it is their turn |
//! | `inspect.rs`, `records.rs` | what is shown of a lock, and guarded records |
//! | `config.rs` | options that are the same with every store |

pub(crate) mod config;
pub(crate) mod document;
pub(crate) mod engine;
mod inspect;
mod lock;
mod poller;
pub(crate) mod records;
pub(crate) mod rules;
pub(crate) mod sightings;
pub(crate) mod store;
#[cfg(test)]
mod test_store;
#[cfg(test)]
mod tests;
