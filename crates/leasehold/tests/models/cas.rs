//! A model of locks on a store that has nothing but compare-and-swap, searched state by state.
//!
//! One document with a version, a token, a holder and a queue. Clients read it and replace it on condition of the version they have read. Requests
//! take as long as they like: every write ever sent can arrive at any time, any number of times or never, and answers are lost. There is no common
//! clock: a client times the sign of life that it sees on its own, which may run fast. Clients die at any moment.
//!
//! Then each safeguard is switched off, and the search must find what breaks.
//!
//! # Bounds
//!
//! Reads, ticks, lost, late and repeated messages are not bounded; writes are. A TTL is two ticks, validity one.
//!
//! | search | clients | writes in all | clocks | deaths |
//! |---|---|---|---|---|
//! | clients that die | 2 | 2 | drift | yes |
//! | renewals and releases | 2 | 3 | alike, wall clocks of two readings | no |
//! | an offer | 3 | 2 | alike | no |
//! | wide (`--release`) | 2 and 3 | 4 and 3 | drift | yes |
//!
//! What is abstracted, the results, and the counter-examples in words: `docs/dev/cas.md`.

mod client;
mod holds;
mod model;
mod needed;
mod rules;
