//! A model of the hand-over that the Redis, PostgreSQL and MySQL engines share, searched state by state.
//!
//! One server keeps one exclusive lock: a record of its holder, and a queue. When the lock becomes free, the server
//! *offers* it to the waiter at the head of the queue. An offer is a grant that ends soon unless its client confirms
//! it. Notices tell waiters to look. They can be lost, late, repeated or forged: so a waiter may look at any time, and
//! may miss any notice. Requests and answers take as long as they like. A process that is stopped is one that does
//! nothing while time passes; one that has died leaves, and its release never arrives.
//!
//! Time is counted in ticks. States hold differences of time and the order of tokens only, so the numbers of ticks,
//! notices, attempts, renewals and offers in a run are not bounded. Then each safeguard is switched off, and the search
//! must find what breaks.
//!
//! # Bounds
//!
//! Each search is done twice, for Redis and for the SQL engines; TTL 4 ticks, offer 2 ticks, unless said otherwise.
//!
//! | search | claims | answers | requests arrive late | waiters passed over | clocks drift | forced releases | notices lost |
//! |---|---|---|---|---|---|---|---|
//! | slow processes | 3 | at once | no | living too | no | 0 | noticed |
//! | forced release | 3 | at once | no | dead | no | 1 | noticed |
//! | late answers | 3 | travel | no | dead | no | 0 | noticed |
//! | forced release, late answers | 3 | travel | no | dead | no | 1 | noticed |
//! | late requests | 2 | travel | yes | living too | no | 1 | noticed |
//! | drift | 2 | at once | yes | dead | yes | 0 | noticed |
//! | silent loss | 3 | at once | no | living too | no | 0 | silently |
//! | four claims (Redis; TTL 3, offer 1) | 4 | at once | no | dead | no | 0 | noticed |
//! | wide (`--release`) | up to 4 | travel | yes | living too | yes | 0 | noticed |
//!
//! What is abstracted, the results, and the counter-examples in words: `docs/dev/handover-model.md`.

mod claim;
mod client;
mod holds;
mod model;
mod needed;
mod properties;
mod rules;
mod server;
mod state;

use properties::Asked;
use rules::{Learns, Rules};

/// What is promised on every engine.
const PROMISES: [Asked; 4] = [
    Asked::Exclusion,
    Asked::TokensRise,
    Asked::NoWakeUpIsLost,
    Asked::FirstComeFirstServed,
];

/// Redis where a message only wakes: a node of Redlock.
fn redis() -> Rules {
    Rules::new(Learns::Attempt, &PROMISES)
}

/// Redis on one server, where the inbox tells of offers.
fn inbox() -> Rules {
    Rules::new(Learns::Inbox, &PROMISES)
}

/// PostgreSQL and MySQL.
fn sql() -> Rules {
    Rules::new(Learns::Listener, &PROMISES)
}
