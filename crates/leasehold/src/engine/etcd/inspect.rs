//! What is shown of the locks on a cluster, and what an operator does.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::join_all;

use super::Shared;
use super::client::Haste;
use super::proto::*;
use super::protocol;
use super::value;
use crate::engine::queue_rules;
use crate::engine::{LockInfo, Query, Released};
use crate::error::Result;
use crate::name::LockName;

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let span = match query {
            Query::Name(name) => self.keys.queue(name),
            Query::Prefix(beginning) => self.keys.beginning(beginning),
        };
        let found = self.client.range(protocol::whole(&span)).await?.message.kvs;
        let mut locks: BTreeMap<LockName, Vec<KeyValue>> = BTreeMap::new();
        for entry in found {
            if let Some(name) = self.keys.name_of(&entry.key)
                && query.asks_for(&name)
            {
                locks.entry(name).or_default().push(entry);
            }
        }
        let mut leases: Vec<_> = locks
            .values()
            .flat_map(|queue| protocol::holders(queue))
            .map(|entry| entry.lease)
            .collect();
        leases.sort_unstable();
        leases.dedup();
        let left = self.times_left(leases).await?;
        let locks = locks.into_iter().map(|(name, queue)| {
            let queue = queue.iter().map(|entry| {
                // The server returns whole seconds, rounded down.
                let left = left.get(&entry.lease).copied().unwrap_or(0);
                value::describe(entry, Duration::from_secs(left))
            });
            queue_rules::describe(name, queue.collect())
        });
        Ok(locks.collect())
    }

    /// What is left of each lease, in whole seconds.
    async fn times_left(&self, leases: Vec<i64>) -> Result<HashMap<i64, u64>> {
        let asked = leases
            .into_iter()
            .filter(|id| *id != 0)
            .map(|id| async move {
                let left = self.client.time_left(id).await?.message.ttl;
                Ok((id, u64::try_from(left).unwrap_or(0)))
            });
        join_all(asked).await.into_iter().collect()
    }

    pub(super) async fn force_release(&self, name: &LockName) -> Result<Released> {
        let whole = protocol::whole(&self.keys.queue(name));
        let queue = self.client.range(whole).await?.message.kvs;
        let holders: Vec<_> = protocol::holders(&queue).collect();
        let mut broken = false;
        for part in holders.chunks(100) {
            let delete =
                |entry: &&KeyValue| Request::DeleteRange(protocol::delete(&entry.key)).into();
            let txn = TxnRequest {
                success: part.iter().map(delete).collect(),
                ..TxnRequest::default()
            };
            let reply = self.client.txn(txn, Haste::Urgent).await?;
            let deleted = (0..part.len()).any(|nth| reply.message.deleted(nth) > 0);
            // An earlier try, whose answer was lost, may have been the one that deleted them.
            broken |= deleted || reply.maybe_applied;
        }
        Ok(Released::from_held(broken))
    }
}
