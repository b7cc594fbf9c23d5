//! What people see of the locks on a cluster.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::failure;
use super::layout::{Entry, Line};
use super::nodes::Nodes;
use super::path::Root;
use crate::engine::lineup;
use crate::engine::meta::{self, Meta};
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
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
    let locks = try_join_all(names.into_iter().map(|name| describe(nodes, name))).await?;
    let in_use = |lock: &LockInfo| !lock.holders.is_empty() || !lock.waiters.is_empty();
    Ok(locks.into_iter().filter(in_use).collect())
}

async fn all(nodes: &Nodes<'_>) -> Result<Vec<LockName>> {
    let sent = nodes.session.sending();
    let list = nodes
        .session
        .client
        .list_children(nodes.settings.root.node());
    let found = failure::unless_missing(nodes.session.read(sent, list).await)?;
    let found = found.unwrap_or_default();
    Ok(found
        .iter()
        .filter_map(|node| Root::name_of(node))
        .collect())
}

async fn describe(nodes: &Nodes<'_>, name: LockName) -> Result<LockInfo> {
    let lock = nodes.lock(&name);
    let (_, line) = nodes.look(&lock).await?;
    let seen = try_join_all(line.0.iter().map(|entry| see(nodes, &lock, entry))).await?;
    // Who has gone since stands in no line.
    let (line, seen): (Vec<_>, Vec<_>) = line
        .0
        .into_iter()
        .zip(seen)
        .filter_map(|(entry, seen)| Some((entry, seen?)))
        .unzip();
    let holding = lineup::holders(&Line(line.clone()).modes());
    let mut info = LockInfo {
        name,
        holders: Vec::new(),
        waiters: Vec::new(),
    };
    for (at, (entry, seen)) in line.into_iter().zip(seen).enumerate() {
        let (claimant, reason, ttl) = match seen.meta {
            Some(meta) => {
                let ttl = meta.ttl();
                let (claimant, reason) = meta.split();
                (claimant, reason, ttl)
            }
            None => (meta::another_program(), None, None),
        };
        let mode = entry.mode;
        if at >= holding {
            info.waiters.push(WaiterInfo {
                claimant,
                reason,
                mode,
                waited_for: seen.age,
            });
            continue;
        }
        let ttl = ttl.unwrap_or_default();
        let renewed = seen.age >= ttl;
        info.holders.push(HolderInfo {
            claimant,
            reason,
            mode,
            held_for: seen.age,
            // Renewals leave no trace on the servers.
            time_left: if renewed { ttl } else { ttl - seen.age },
            token: seen.token,
        });
    }
    Ok(info)
}

struct Seen {
    meta: Option<Meta>,
    /// By the wall clock, of the server and of ours: for people only.
    age: Duration,
    token: FencingToken,
}

async fn see(nodes: &Nodes<'_>, lock: &str, entry: &Entry) -> Result<Option<Seen>> {
    let path = format!("{lock}/{}", entry.node);
    let sent = nodes.session.sending();
    let data = nodes.session.client.get_data(&path);
    let data = failure::unless_missing(nodes.session.read(sent, data).await)?;
    Ok(data.map(|(data, stat)| {
        let made = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
        Seen {
            meta: Meta::read(&data),
            age: Duration::from_micros(wall_clock_micros()).saturating_sub(made),
            token: u64::try_from(stat.czxid)
                .ok()
                .and_then(FencingToken::new)
                .unwrap_or(FencingToken::NONE),
        }
    }))
}
