//! What is written in a claim's key, and read from it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::proto::KeyValue;
use crate::claim::{Claim, Claimant, Mode};
use crate::engine::meta::{Meta, another_program};
use crate::token::{FencingToken, wall_clock_micros};

/// A key's value. That of another program's key is empty, or whatever it likes.
#[derive(Debug, Serialize, Deserialize)]
struct Value {
    #[serde(flatten)]
    described: Meta,
    #[serde(default)]
    shared: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    /// It has not taken the lock, and so may be passed over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    /// When it was asked for, or granted: in microseconds by the claimant's clock.
    since: u64,
    /// In milliseconds.
    ttl: u64,
}

/// What is to be written for a claim that waits, or holds the lock, since this time.
pub(crate) fn value(claim: &Claim, waits: bool, since: u64) -> Vec<u8> {
    let value = Value {
        described: Meta::of(claim),
        shared: claim.mode == Mode::Shared,
        permits: match claim.mode {
            Mode::Permit { of } => Some(of),
            _ => None,
        },
        waits,
        since,
        ttl: claim.ttl.get().as_millis() as u64,
    };
    serde_json::to_vec(&value).unwrap_or_default()
}

/// How the claim of this key wants the lock. Other programs know one way only.
pub(crate) fn mode(entry: &KeyValue) -> Mode {
    match serde_json::from_slice(&entry.value) {
        Ok(Value {
            permits: Some(of), ..
        }) => Mode::Permit { of },
        Ok(Value { shared: true, .. }) => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// Whether the claim of this key has not taken the lock yet, though it may be its turn. Other programs do not say.
pub(crate) fn waits(entry: &KeyValue) -> bool {
    matches!(
        serde_json::from_slice(&entry.value),
        Ok(Value { waits: true, .. })
    )
}

/// An entry as people see it.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) claimant: Claimant,
    pub(crate) reason: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) age: Duration,
    /// What is left of its TTL by the claimant's clock, if it was not renewed.
    pub(crate) own_time_left: Duration,
    pub(crate) token: FencingToken,
}

pub(crate) fn told(entry: &KeyValue) -> Told {
    let read: Option<Value> = serde_json::from_slice(&entry.value).ok();
    let now = wall_clock_micros();
    let (age, ttl) = match &read {
        Some(value) => (
            Duration::from_micros(now.saturating_sub(value.since)),
            Duration::from_millis(value.ttl),
        ),
        None => (Duration::ZERO, Duration::ZERO),
    };
    let (claimant, reason) = match read {
        Some(value) => value.described.split(),
        None => (another_program(), None),
    };
    Told {
        claimant,
        reason,
        mode: mode(entry),
        age,
        own_time_left: ttl.saturating_sub(age),
        token: token(entry.create_revision).unwrap_or(FencingToken::NONE),
    }
}

/// The token of a claim whose key was created then.
pub(crate) fn token(create_revision: i64) -> Option<FencingToken> {
    FencingToken::new(u64::try_from(create_revision).ok()?)
}
