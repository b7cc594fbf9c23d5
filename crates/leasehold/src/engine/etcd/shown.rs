//! What people see of the locks on a cluster, and what an operator does.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::join_all;

use super::Client;
use super::cluster::Haste;
use super::entry::{self, Told};
use super::line;
use super::proto::*;
use crate::engine::lineup;
use crate::engine::{HolderInfo, LockInfo, Query, Released, WaiterInfo};
use crate::error::Result;
use crate::name::LockName;

impl Client {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let span = match query {
            Query::Name(name) => self.keys.line(name),
            Query::Prefix(beginning) => self.keys.beginning(beginning),
        };
        let found = self.cluster.range(line::whole(&span)).await?.message.kvs;
        let mut locks: BTreeMap<LockName, Vec<KeyValue>> = BTreeMap::new();
        for entry in found {
            if let Some(name) = self.keys.name_of(&entry.key)
                && query.asks_for(&name)
            {
                locks.entry(name).or_default().push(entry);
            }
        }
        let holders =
            |line: &[KeyValue]| lineup::holders(&line.iter().map(entry::mode).collect::<Vec<_>>());
        let mut leases: Vec<_> = locks
            .values()
            .flat_map(|line| &line[..holders(line)])
            .map(|entry| entry.lease)
            .collect();
        leases.sort_unstable();
        leases.dedup();
        let left = self.times_left(leases).await?;
        let locks = locks.into_iter().map(|(name, line)| {
            let (holding, waiting) = line.split_at(holders(&line));
            LockInfo {
                name,
                holders: holding.iter().map(|entry| holder(entry, &left)).collect(),
                waiters: waiting.iter().map(waiter).collect(),
            }
        });
        Ok(locks.collect())
    }

    /// What is left of each lease, in whole seconds.
    async fn times_left(&self, leases: Vec<i64>) -> Result<HashMap<i64, u64>> {
        let asked = leases
            .into_iter()
            .filter(|id| *id != 0)
            .map(|id| async move {
                let left = self.cluster.time_left(id).await?.message.ttl;
                Ok((id, u64::try_from(left).unwrap_or(0)))
            });
        join_all(asked).await.into_iter().collect()
    }

    pub(super) async fn break_lock(&self, name: &LockName) -> Result<Released> {
        let whole = line::whole(&self.keys.line(name));
        let line = self.cluster.range(whole).await?.message.kvs;
        let modes: Vec<_> = line.iter().map(entry::mode).collect();
        let mut broken = false;
        for part in line[..lineup::holders(&modes)].chunks(100) {
            let delete = |entry: &KeyValue| Request::DeleteRange(line::delete(&entry.key)).into();
            let txn = TxnRequest {
                success: part.iter().map(delete).collect(),
                ..TxnRequest::default()
            };
            let reply = self.cluster.txn(txn, Haste::Urgent).await?.message;
            broken |= (0..part.len()).any(|nth| reply.deleted(nth) > 0);
        }
        Ok(match broken {
            true => Released::Yes,
            false => Released::WasNotHeld,
        })
    }
}

fn holder(entry: &KeyValue, left: &HashMap<i64, u64>) -> HolderInfo {
    let Told {
        claimant,
        reason,
        mode,
        age,
        own_time_left,
        token,
    } = entry::told(entry);
    // The server tells whole seconds, rounded down. Which part of the last one, the claim's own TTL may tell.
    let at_least = Duration::from_secs(left.get(&entry.lease).copied().unwrap_or(0));
    let at_most = at_least + Duration::from_secs(1);
    HolderInfo {
        claimant,
        reason,
        mode,
        held_for: age,
        time_left: own_time_left.clamp(at_least, at_most),
        token,
    }
}

fn waiter(entry: &KeyValue) -> WaiterInfo {
    let Told {
        claimant,
        reason,
        mode,
        age,
        ..
    } = entry::told(entry);
    WaiterInfo {
        claimant,
        reason,
        mode,
        waited_for: age,
    }
}
