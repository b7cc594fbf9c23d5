//! A lock as JSON, in the stable shapes of docs/cli.md.

use std::time::Duration;

use leasehold::{FencingToken, HolderInfo, LockInfo, Mode, WaiterInfo};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct LockJson<'a> {
    name: &'a str,
    held: bool,
    holders: Vec<HolderJson<'a>>,
    waiters: Vec<WaiterJson<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct HolderJson<'a> {
    #[serde(flatten)]
    who: WhoJson<'a>,
    held_ms: u64,
    time_left_ms: u64,
    token: u64,
    /// Whether it is held without a process, by `acquire --until`.
    sticky: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct WaiterJson<'a> {
    #[serde(flatten)]
    who: WhoJson<'a>,
    waited_ms: u64,
}

#[derive(Debug, Serialize)]
struct WhoJson<'a> {
    owner: &'a str,
    host: &'a str,
    pid: u32,
    mode: &'static str,
    /// The lock's number of permits, in permit mode.
    permits: Option<u32>,
    reason: Option<&'a str>,
}

impl<'a> LockJson<'a> {
    pub(crate) fn of(lock: &'a LockInfo) -> Self {
        Self {
            name: lock.name.as_str(),
            held: !lock.holders.is_empty(),
            holders: lock.holders.iter().map(HolderJson::of).collect(),
            waiters: lock.waiters.iter().map(WaiterJson::of).collect(),
        }
    }
}

impl<'a> HolderJson<'a> {
    pub(crate) fn of(holder: &'a HolderInfo) -> Self {
        Self {
            who: WhoJson::of(&holder.claimant, holder.mode, &holder.reason),
            held_ms: millis(holder.held_for),
            time_left_ms: millis(holder.time_left),
            token: holder.token.get(),
            sticky: is_sticky(holder),
        }
    }
}

impl<'a> WaiterJson<'a> {
    pub(crate) fn of(waiter: &'a WaiterInfo) -> Self {
        Self {
            who: WhoJson::of(&waiter.claimant, waiter.mode, &waiter.reason),
            waited_ms: millis(waiter.waited_for),
        }
    }
}

impl<'a> WhoJson<'a> {
    fn of(who: &'a leasehold::Claimant, mode: Mode, reason: &'a Option<String>) -> Self {
        let (mode, permits) = match mode {
            Mode::Shared => ("shared", None),
            Mode::Permit { of } => ("permit", Some(of)),
            _ => ("exclusive", None),
        };
        Self {
            owner: &who.label,
            host: &who.host,
            pid: who.pid,
            mode,
            permits,
            reason: reason.as_deref(),
        }
    }
}

/// Whether the lock is held without a process, by `acquire --until`, which needs a reason. One of another program, which has no token, has no process id
/// either, and one of a client of the lock server need not have one.
pub(crate) fn is_sticky(holder: &HolderInfo) -> bool {
    holder.claimant.pid == 0 && holder.token != FencingToken::NONE && holder.reason.is_some()
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
