//! A model of Redlock with fencing tokens, searched state by state.
//!
//! N nodes, one lock, clients that propose, acquire, renew and release it, and a network that loses, delays,
//! reorders and repeats as it likes: every message ever sent can arrive at any time, any number of times or never.
//! Two worlds:
//!
//! * **lawless**: a node may drop its holder at any moment, clocks say anything, a client believes in its lease for
//!   ever. Tokens must be unique and follow the grants all the same.
//! * **lawful**: a node keeps a claim until the validity that its client counts has ended, and a node that has
//!   restarted, without its memory or with an old one, does not vote before every validity that it may have forgotten has
//!   ended. At most one client holds the lock.
//!
//! Then each safeguard is switched off, and the search must find what breaks.
//!
//! # Bounds
//!
//! Lost, late and repeated messages are not bounded.
//!
//! | search | nodes / quorum | clients × claims | renewals a claim | restarts | tokens |
//! |---|---|---|---|---|---|
//! | lawless, renewals | 3 / 2 | 3 × 1 | 1 | 0 | any of 1–3 |
//! | lawless, retries | 3 / 2 | 2 × 2 | 0 | 0 | any of 1–3 |
//! | lawful, nodes remember | 3 / 2 | 2 × 2 | 1 | 0 | any of 1–3 |
//! | lawful, three clients | 3 / 2 | 3 × 1 | 1 | 1 | any of 1–3 |
//! | lawful, retries | 3 / 2 | 2 × 2 | 1 | 1 | any of 1–2 |
//! | lawful, nodes forget again | 3 / 2 | 2 × 1 | 2 | 2 | any of 1–2 |
//! | lawful, old memories | 3 / 2 | 2 × 1 | 1 | 1 | any of 1–2 |
//! | lawful, replies travel | 3 / 2 | 2 × 1 | 2 | 1 | any of 1–2 |
//! | lawful, five nodes | 5 / 3 | 2 × 1 | 1 | 2 | any of 1–2 |
//! | lawful, right clocks | 3 / 2 | 3 × 1 | 1 | 2 | grow |
//! | no quarantine, higher quorum | 3 / 3 and 5 / 4 | 2 × 1 | 1 | 2 | any of 1–2 |
//! | wide (`--release`) | 3 / 2 | up to 3 × 2 | up to 2 | up to 3 | any of up to 1–4 |
//!
//! What is abstracted, the results, and the counter-examples in words: `docs/dev/redlock-model.md`.

mod claim;
mod holds;
mod model;
mod needed;
mod node;
mod properties;
mod rules;
mod state;
mod symmetry;

use properties::Asked;
use rules::{Clocks, Expiry, Rules};

fn lawless(asked: &[Asked]) -> Rules {
    Rules::new(Expiry::AtAnyTime, asked)
}

fn lawful(asked: &[Asked]) -> Rules {
    Rules {
        restarts: 1,
        clocks: Clocks::Arbitrary(2),
        ..Rules::new(Expiry::AfterValidity, asked)
    }
}
