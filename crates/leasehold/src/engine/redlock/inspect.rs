//! Inspection of a deployment: what the nodes agree on.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;

use super::nodes::Nodes;
use crate::engine::redis::inspect;
use crate::engine::redis::keys::Keys;
use crate::engine::{LockInfo, Query};
use crate::error::Result;

/// A look may take longer than a vote.
const PATIENCE: Duration = Duration::from_secs(2);

/// A holder counts if a quorum has it; a waiter waits wherever it does.
pub(super) async fn inspect(nodes: &Nodes, keys: &Keys, query: &Query) -> Result<Vec<LockInfo>> {
    let looks = nodes
        .members
        .iter()
        .map(|member| member.in_time(PATIENCE, inspect::inspect(&member.client, keys, query)));
    let mut seen: BTreeMap<_, Vec<LockInfo>> = BTreeMap::new();
    let mut failed = Vec::new();
    for look in join_all(looks).await {
        match look {
            Ok(locks) => {
                for lock in locks {
                    seen.entry(lock.name.clone()).or_default().push(lock);
                }
            }
            Err(error) => failed.push(error),
        }
    }
    if nodes.leaves_no_quorum(failed.len()) {
        return Err(nodes.no_quorum(&failed));
    }
    let agreed = seen.into_values().map(|views| agree(views, nodes.quorum));
    Ok(agreed
        .filter(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty())
        .collect())
}

fn agree(views: Vec<LockInfo>, quorum: usize) -> LockInfo {
    let name = views[0].name.clone();
    let mut holders = BTreeMap::new();
    let mut waiters = Vec::new();
    for view in views {
        for holder in view.holders {
            let (votes, _) = holders.entry(holder.token).or_insert((0, holder));
            *votes += 1;
        }
        // The node with the longest queue knows best.
        if view.waiters.len() > waiters.len() {
            waiters = view.waiters;
        }
    }
    let holders = holders.into_values().filter(|(votes, _)| *votes >= quorum);
    let holders: Vec<_> = holders.map(|(_, holder)| holder).collect();
    LockInfo {
        name,
        holders,
        waiters,
    }
}
