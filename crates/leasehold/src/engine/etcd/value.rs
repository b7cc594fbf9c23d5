//! What is written in a claim's key, and read from it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::proto::KeyValue;
use crate::claim::{Claim, Mode};
use crate::engine::meta::{Meta, another_program};
use crate::engine::queue_rules::Described;
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
    /// It has not taken the lock, and so may be removed by others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    /// Another process than the one that wrote this has renewed it by its id: its lease lasts for longer than anyone relies on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    taken_over: bool,
    /// When it was asked for, or granted: in microseconds by the claimant's clock.
    since: u64,
    /// In milliseconds.
    ttl: u64,
}

/// What is to be written for a claim that waits, or holds the lock, since this time.
pub(crate) fn write(claim: &Claim, waits: bool, since: u64) -> Vec<u8> {
    let value = Value {
        described: Meta::of(claim),
        shared: claim.mode == Mode::Shared,
        permits: match claim.mode {
            Mode::Permit { of } => Some(of),
            _ => None,
        },
        waits,
        taken_over: false,
        since,
        ttl: claim.ttl.get().as_millis() as u64,
    };
    serde_json::to_vec(&value).unwrap_or_default()
}

/// What is to be written for a claim that is taken over; nothing if another program has written what is there.
pub(crate) fn taken_over(entry: &KeyValue) -> Vec<u8> {
    let value = read(entry).map(|value| Value {
        taken_over: true,
        ..value
    });
    let written = value.and_then(|value| serde_json::to_vec(&value).ok());
    written.unwrap_or_default()
}

/// `None` if another program has written it.
fn read(entry: &KeyValue) -> Option<Value> {
    serde_json::from_slice(&entry.value).ok()
}

/// How the claim of this key wants the lock. Other programs know one way only.
pub(crate) fn mode(entry: &KeyValue) -> Mode {
    match read(entry) {
        Some(Value {
            permits: Some(of), ..
        }) => Mode::Permit { of },
        Some(Value { shared: true, .. }) => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// Whether the claim of this key has not taken the lock yet, though it may be its turn. Other programs do not say.
pub(crate) fn waits(entry: &KeyValue) -> bool {
    read(entry).is_some_and(|value| value.waits)
}

/// Whether the lease of this key was chosen by a process that has taken the claim over.
pub(crate) fn is_taken_over(entry: &KeyValue) -> bool {
    read(entry).is_some_and(|value| value.taken_over)
}

/// An entry for people. Its lease has this time left, or up to a second more.
pub(crate) fn describe(entry: &KeyValue, at_least: Duration) -> Described {
    let (age, ttl, (claimant, reason)) = match read(entry) {
        Some(value) => (
            Duration::from_micros(wall_clock_micros().saturating_sub(value.since)),
            Duration::from_millis(value.ttl),
            value.described.split(),
        ),
        None => (Duration::ZERO, Duration::ZERO, (another_program(), None)),
    };
    // The claim's own TTL may show which part of the last second.
    let at_most = at_least + Duration::from_secs(1);
    Described {
        claimant,
        reason,
        mode: mode(entry),
        waits: waits(entry),
        age,
        time_left: ttl.saturating_sub(age).clamp(at_least, at_most),
        token: token(entry.create_revision).unwrap_or(FencingToken::NONE),
    }
}

/// The token of a claim whose key was created then.
pub(crate) fn token(create_revision: i64) -> Option<FencingToken> {
    FencingToken::new(u64::try_from(create_revision).ok()?)
}
