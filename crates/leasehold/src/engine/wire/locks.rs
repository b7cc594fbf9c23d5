//! Which locks, and who holds and waits for them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{micros, nonsense, token};
use crate::claim::{Claimant, Mode};
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::Result;
use crate::name::LockName;

/// The name of a lock, for `force_release`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameMessage {
    name: String,
}

impl From<&LockName> for NameMessage {
    fn from(name: &LockName) -> Self {
        Self {
            name: name.as_str().to_owned(),
        }
    }
}

impl NameMessage {
    /// The name, which may be one of the crate's own.
    ///
    /// # Errors
    ///
    /// `InvalidName` if it cannot be used.
    pub fn into_name(self) -> Result<LockName> {
        LockName::stored(self.name)
    }
}

/// A [`Query`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryMessage {
    /// See [`Query::Name`].
    Name(String),
    /// See [`Query::Prefix`].
    Prefix(String),
}

impl From<&Query> for QueryMessage {
    fn from(query: &Query) -> Self {
        match query {
            Query::Name(name) => Self::Name(name.as_str().to_owned()),
            Query::Prefix(prefix) => Self::Prefix(prefix.clone()),
        }
    }
}

impl QueryMessage {
    /// The query.
    ///
    /// # Errors
    ///
    /// `InvalidName` if the name cannot be used.
    pub fn into_query(self) -> Result<Query> {
        Ok(match self {
            Self::Name(name) => Query::Name(LockName::stored(name)?),
            Self::Prefix(prefix) => Query::Prefix(prefix),
        })
    }
}

/// A [`LockInfo`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockMessage {
    name: String,
    holders: Vec<PersonMessage>,
    waiters: Vec<PersonMessage>,
}

/// A holder, or a waiter.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct PersonMessage {
    label: String,
    host: String,
    pid: u32,
    reason: Option<String>,
    mode: i64,
    for_us: u64,
    left_us: u64,
    token: u64,
}

impl From<&LockInfo> for LockMessage {
    fn from(lock: &LockInfo) -> Self {
        let person = |who: &Claimant, reason: &Option<String>, mode: Mode, since| PersonMessage {
            label: who.label.clone(),
            host: who.host.clone(),
            pid: who.pid,
            reason: reason.clone(),
            mode: mode.to_number(),
            for_us: micros(since),
            left_us: 0,
            token: 0,
        };
        let holders = lock.holders.iter().map(|holder| PersonMessage {
            left_us: micros(holder.time_left),
            token: holder.token.get(),
            ..person(
                &holder.claimant,
                &holder.reason,
                holder.mode,
                holder.held_for,
            )
        });
        let waiters = lock.waiters.iter().map(|waiter| {
            person(
                &waiter.claimant,
                &waiter.reason,
                waiter.mode,
                waiter.waited_for,
            )
        });
        Self {
            name: lock.name.as_str().to_owned(),
            holders: holders.collect(),
            waiters: waiters.collect(),
        }
    }
}

impl LockMessage {
    /// The lock.
    ///
    /// # Errors
    ///
    /// `Unexpected` if there is no such name or token.
    pub fn into_info(self) -> Result<LockInfo> {
        let name = LockName::stored(&self.name).map_err(|_| nonsense("a lock's name"))?;
        let holders = self.holders.into_iter().map(|holder| {
            let mode = Mode::from_number(holder.mode);
            let token = token(holder.token)?;
            let (for_us, left_us) = (holder.for_us, holder.left_us);
            let claimant = Claimant::new(holder.label, holder.host, holder.pid);
            Ok(HolderInfo {
                reason: holder.reason,
                held_for: Duration::from_micros(for_us),
                time_left: Duration::from_micros(left_us),
                ..HolderInfo::new(claimant, mode, token)
            })
        });
        let waiters = self.waiters.into_iter().map(|waiter| WaiterInfo {
            reason: waiter.reason,
            waited_for: Duration::from_micros(waiter.for_us),
            ..WaiterInfo::new(
                Claimant::new(waiter.label, waiter.host, waiter.pid),
                Mode::from_number(waiter.mode),
            )
        });
        Ok(LockInfo {
            name,
            holders: holders.collect::<Result<_>>()?,
            waiters: waiters.collect(),
        })
    }
}
