//! What answers are made of.

use leasehold::{Claimant, HolderInfo, LockInfo, Mode, WaiterInfo};
use serde::Serialize;

use crate::time::millis;

/// Who, as people read it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Who {
    pub(crate) label: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
}

impl From<&Claimant> for Who {
    fn from(who: &Claimant) -> Self {
        Self {
            label: who.label.clone(),
            host: who.host.clone(),
            pid: who.pid,
        }
    }
}

/// How a lock is held.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ModeShape {
    pub(crate) mode: &'static str,
    pub(crate) permits: Option<u32>,
}

impl From<Mode> for ModeShape {
    fn from(mode: Mode) -> Self {
        let (mode, permits) = match mode {
            Mode::Exclusive => ("exclusive", None),
            Mode::Shared => ("shared", None),
            Mode::Permit { of } => ("permit", Some(of)),
            _ => ("other", None),
        };
        Self { mode, permits }
    }
}

/// A holder.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Holder {
    #[serde(flatten)]
    pub(crate) who: Who,
    #[serde(flatten)]
    pub(crate) mode: ModeShape,
    pub(crate) reason: Option<String>,
    pub(crate) held_ms: u64,
    pub(crate) time_left_ms: u64,
    pub(crate) token: u64,
}

impl From<&HolderInfo> for Holder {
    fn from(holder: &HolderInfo) -> Self {
        Self {
            who: (&holder.claimant).into(),
            mode: holder.mode.into(),
            reason: holder.reason.clone(),
            held_ms: millis(holder.held_for),
            time_left_ms: millis(holder.time_left),
            token: holder.token.get(),
        }
    }
}

/// A waiter.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Waiter {
    #[serde(flatten)]
    pub(crate) who: Who,
    #[serde(flatten)]
    pub(crate) mode: ModeShape,
    pub(crate) reason: Option<String>,
    pub(crate) waited_ms: u64,
}

impl From<&WaiterInfo> for Waiter {
    fn from(waiter: &WaiterInfo) -> Self {
        Self {
            who: (&waiter.claimant).into(),
            mode: waiter.mode.into(),
            reason: waiter.reason.clone(),
            waited_ms: millis(waiter.waited_for),
        }
    }
}

/// A lock.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
}

impl From<&LockInfo> for Lock {
    fn from(lock: &LockInfo) -> Self {
        Self {
            name: lock.name.as_str().to_owned(),
            holders: lock.holders.iter().map(Into::into).collect(),
            waiters: lock.waiters.iter().map(Into::into).collect(),
        }
    }
}

/// The holders of a lock, as JSON.
pub(crate) fn holders(lock: &LockInfo) -> serde_json::Value {
    let holders: Vec<Holder> = lock.holders.iter().map(Into::into).collect();
    serde_json::to_value(holders).unwrap_or_default()
}

/// A grant.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Granted {
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) valid_ms: u64,
    pub(crate) took_ms: u64,
    pub(crate) ttl_ms: u64,
}
