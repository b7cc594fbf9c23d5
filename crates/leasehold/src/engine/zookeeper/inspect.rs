//! What is shown of the locks on a cluster.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::layout::Node;
use super::nodes::Nodes;
use super::path::Root;
use crate::engine::meta::{self, Meta};
use crate::engine::queue_rules::{Described, describe};
use crate::engine::{LockInfo, Query};
use crate::error::Result;
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

pub(crate) async fn inspect(nodes: &Nodes<'_>, query: &Query) -> Result<Vec<LockInfo>> {
    nodes.catch_up().await?;
    let mut names = match query {
        Query::Name(name) => vec![name.clone()],
        Query::Prefix(_) => all(nodes).await?,
    };
    names.retain(|name| query.asks_for(name));
    names.sort();
    let locks = try_join_all(names.into_iter().map(|name| look(nodes, name))).await?;
    let in_use = |lock: &LockInfo| !lock.holders.is_empty() || !lock.waiters.is_empty();
    Ok(locks.into_iter().filter(in_use).collect())
}

async fn all(nodes: &Nodes<'_>) -> Result<Vec<LockName>> {
    let found = nodes.children(nodes.config.root.node()).await?;
    Ok(found
        .iter()
        .filter_map(|node| Root::name_of(node))
        .collect())
}

async fn look(nodes: &Nodes<'_>, name: LockName) -> Result<LockInfo> {
    let lock = nodes.lock(&name);
    let (_, queue) = nodes.look(&lock).await?;
    let seen = try_join_all(queue.0.iter().map(|node| see(nodes, &lock, node))).await?;
    // Without those that have gone since.
    Ok(describe(name, seen.into_iter().flatten().collect()))
}

async fn see(nodes: &Nodes<'_>, lock: &str, node: &Node) -> Result<Option<Described>> {
    let path = format!("{lock}/{}", node.name);
    Ok(nodes.data(&path).await?.map(|(data, stat)| {
        let made = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
        // By the wall clock, of the server and of ours: for people only.
        let age = Duration::from_micros(wall_clock_micros()).saturating_sub(made);
        let meta = Meta::read(&data);
        let ttl = meta.as_ref().and_then(Meta::ttl).unwrap_or_default();
        let (claimant, reason) = meta.map_or_else(|| (meta::another_program(), None), Meta::split);
        let token = u64::try_from(stat.czxid).ok().and_then(FencingToken::new);
        Described {
            claimant,
            reason,
            mode: node.mode,
            waits: false,
            age,
            // Renewals leave no trace on the servers.
            time_left: if age >= ttl { ttl } else { ttl - age },
            token: token.unwrap_or(FencingToken::NONE),
        }
    }))
}
