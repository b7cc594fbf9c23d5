//! What a server's engine is, and what it can do.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::nonsense;
use crate::engine::{Capabilities, Expiry, Fairness, Reach, Safety, Survives, TokenSource};
use crate::error::{Error, Result};
use crate::sync::Mutex;

/// What a server answers to `GET /v1/engine`, as far as the engine needs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EngineMessage {
    /// [`PROTOCOL`](super::PROTOCOL).
    pub protocol: u32,
    /// The scheme of the engine behind the server.
    pub scheme: String,
    /// Where that is, without passwords.
    pub location: String,
    /// What its user should know.
    pub warnings: Vec<String>,
    /// How many requests it has made, if it counts them.
    pub requests: Option<u64>,
    /// What it can do.
    pub capabilities: CapabilitiesMessage,
}

/// [`Capabilities`] in words.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CapabilitiesMessage {
    /// See [`Capabilities::shared`].
    pub shared: bool,
    /// See [`Capabilities::permits`].
    pub permits: bool,
    /// `fifo` or `random`.
    pub fairness: String,
    /// `hybrid_clock` or `store_revision`.
    pub tokens: String,
    /// `ttl` or `session`.
    pub expiry: String,
    /// `process`, `machine` or `network`.
    pub reach: String,
    /// `efficiency` or `correctness`.
    pub safety: String,
    /// See [`Capabilities::store`].
    pub store: bool,
    /// `client_killed`, `engine_restart`, `power_loss`, `node_loss`, `clock_step`.
    pub survives: Vec<String>,
}

const FAIRNESS: &[(Fairness, &str)] = &[(Fairness::Fifo, "fifo"), (Fairness::Random, "random")];
const TOKENS: &[(TokenSource, &str)] = &[
    (TokenSource::HybridClock, "hybrid_clock"),
    (TokenSource::StoreRevision, "store_revision"),
];
const EXPIRY: &[(Expiry, &str)] = &[
    (Expiry::Ttl, "ttl"),
    (Expiry::Observed, "observed"),
    (Expiry::Session, "session"),
];
const REACH: &[(Reach, &str)] = &[
    (Reach::Process, "process"),
    (Reach::Machine, "machine"),
    (Reach::Network, "network"),
];
const SAFETY: &[(Safety, &str)] = &[
    (Safety::Efficiency, "efficiency"),
    (Safety::Correctness, "correctness"),
];
const SURVIVES: &[(Survives, &str)] = &[
    (Survives::ClientKilled, "client_killed"),
    (Survives::EngineRestart, "engine_restart"),
    (Survives::PowerLoss, "power_loss"),
    (Survives::NodeLoss, "node_loss"),
    (Survives::ClockStep, "clock_step"),
];

fn word<T: PartialEq>(table: &[(T, &str)], value: &T) -> String {
    let mut known = table.iter();
    let found = known.find(|(known, _)| known == value);
    found.map_or("unknown", |(_, word)| word).to_owned()
}

fn meaning<T: Copy>(table: &[(T, &str)], word: &str) -> Result<T> {
    let mut known = table.iter();
    let found = known.find(|(_, known)| *known == word);
    found
        .map(|(value, _)| *value)
        .ok_or_else(|| nonsense(&format!("the capability {word:?}")))
}

impl From<Capabilities> for CapabilitiesMessage {
    fn from(able: Capabilities) -> Self {
        Self {
            shared: able.shared,
            permits: able.permits,
            fairness: word(FAIRNESS, &able.fairness),
            tokens: word(TOKENS, &able.tokens),
            expiry: word(EXPIRY, &able.expiry),
            reach: word(REACH, &able.reach),
            safety: word(SAFETY, &able.safety),
            store: able.store,
            survives: able.survives.iter().map(|it| word(SURVIVES, it)).collect(),
        }
    }
}

impl TryFrom<&CapabilitiesMessage> for Capabilities {
    type Error = Error;

    fn try_from(told: &CapabilitiesMessage) -> Result<Self> {
        let survives = told.survives.iter().map(|word| meaning(SURVIVES, word));
        Ok(Self {
            shared: told.shared,
            permits: told.permits,
            fairness: meaning(FAIRNESS, &told.fairness)?,
            tokens: meaning(TOKENS, &told.tokens)?,
            expiry: meaning(EXPIRY, &told.expiry)?,
            reach: meaning(REACH, &told.reach)?,
            safety: meaning(SAFETY, &told.safety)?,
            store: told.store,
            survives: interned(&survives.collect::<Result<Vec<_>>>()?),
        })
    }
}

/// There are 32 sets at most, and each is kept for good.
fn interned(survives: &[Survives]) -> &'static [Survives] {
    static KEPT: OnceLock<Mutex<HashMap<usize, &'static [Survives]>>> = OnceLock::new();
    let is_in = |(nth, (known, _)): (usize, &(Survives, _))| match survives.contains(known) {
        true => 1 << nth,
        false => 0,
    };
    let set: usize = SURVIVES.iter().enumerate().map(is_in).sum();
    let mut kept = KEPT.get_or_init(Mutex::default).lock();
    kept.entry(set).or_insert_with(|| {
        let members = SURVIVES.iter().map(|(known, _)| *known);
        let members: Vec<_> = members.filter(|it| survives.contains(it)).collect();
        Vec::leak(members)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_back() {
        let mut able = Capabilities::new(Reach::Machine, Safety::Correctness);
        able.survives = &[Survives::ClientKilled, Survives::ClockStep];
        let told = CapabilitiesMessage::from(able);
        assert_eq!(Capabilities::try_from(&told).unwrap(), able);
        let other = CapabilitiesMessage {
            reach: "galaxy".to_owned(),
            ..told
        };
        assert!(Capabilities::try_from(&other).is_err());
    }
}
