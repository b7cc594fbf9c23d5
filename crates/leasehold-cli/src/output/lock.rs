//! A lock as JSON: the shapes of docs/cli.md, which stay as they are.

use std::time::Duration;

use leasehold::{HolderInfo, LockInfo, Mode, WaiterInfo};
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
    /// How many permits the lock has, in permit mode.
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
            Mode::Exclusive => ("exclusive", None),
            Mode::Shared => ("shared", None),
            Mode::Permit { of } => ("permit", Some(of)),
        };
        Self {
            owner: &who.owner,
            host: &who.host,
            pid: who.pid,
            mode,
            permits,
            reason: reason.as_deref(),
        }
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
