//! How waiters learn that it is their turn.
//!
//! | file | what is there |
//! |---|---|
//! | `local_waiters.rs` | the waiters of this process, each with a mailbox |
//! | `listener.rs` | the thread that listens to the server while anyone waits |
//! | `offer.rs` | a lock that was offered to a waiter, which lasts until it is renewed |
//! | `fallback.rs` | whether messages come through; if not, the listener polls |
//! | `look_again.rs` | when to look again without a message |

pub(crate) mod fallback;
pub(crate) mod listener;
pub(crate) mod local_waiters;
pub(crate) mod look_again;
pub(crate) mod offer;
