//! Inspection: holders and waiters of the locks on a server.

use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;

use super::client::Client;
use super::cluster::nodes::Nodes;
use super::keys::Keys;
use super::protocol;
use super::servers::Servers;
use crate::claim::Mode;
use crate::engine::meta::{self, Meta};
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// How many locks are looked at in one go.
const AT_A_TIME: usize = 256;

/// The answer of inspect.lua. Times are in microseconds by the server's clock, as text: Lua writes large numbers short.
#[derive(Debug, Deserialize)]
struct Inspected {
    now: String,
    left: i64,
    #[serde(default)]
    holders: Vec<Holder>,
    #[serde(default)]
    waiters: Vec<Waiter>,
}

/// Empty if another program holds the lock.
#[derive(Debug, Deserialize)]
struct Holder {
    token: Option<String>,
    since: Option<String>,
    expires: Option<String>,
    mode: Option<i64>,
    meta: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Waiter {
    since: String,
    mode: i64,
    meta: String,
}

pub(crate) async fn inspect(client: &Client, keys: &Keys, query: &Query) -> Result<Vec<LockInfo>> {
    let names = match query {
        Query::Name(name) => vec![name.clone()],
        Query::Prefix(beginning) => find(client, keys, beginning).await?,
    };
    let calls = names.iter().map(|name| protocol::inspect(keys, name));
    let answers = client.call_all::<String>(&calls.collect::<Vec<_>>()).await;
    read(names.into_iter().zip(answers), query)
}

/// The same on all nodes of a cluster.
pub(super) async fn inspect_cluster(
    servers: &Servers,
    nodes: &Nodes,
    keys: &Keys,
    query: &Query,
) -> Result<Vec<LockInfo>> {
    let names = match query {
        Query::Name(name) => vec![name.clone()],
        Query::Prefix(beginning) => {
            let primaries = nodes.primaries()?;
            let found = primaries.iter().map(async |(server, client)| {
                let found = find(client, keys, beginning).await;
                found.map_err(|error| error.with_context(server))
            });
            let mut names = try_join_all(found).await?.concat();
            names.sort();
            names.dedup();
            names
        }
    };
    let answers = stream::iter(names).map(async |name| {
        let call = protocol::inspect(keys, &name);
        let answer = servers.call::<String>(&keys.lock(&name), &call).await;
        (name, answer)
    });
    let answers: Vec<_> = answers.buffered(AT_A_TIME).collect().await;
    read(answers, query)
}

fn read(
    answers: impl IntoIterator<Item = (LockName, Result<String>)>,
    query: &Query,
) -> Result<Vec<LockInfo>> {
    let mut locks = Vec::new();
    for (name, answer) in answers {
        let info = match answer {
            Ok(json) => describe(name, &json)?,
            // Some other key that happens to begin alike.
            Err(error)
                if error.kind() == ErrorKind::EngineUnfit && matches!(query, Query::Prefix(_)) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        if !info.holders.is_empty() || !info.waiters.is_empty() {
            locks.push(info);
        }
    }
    Ok(locks)
}

/// The names of all locks in use that begin with this.
async fn find(client: &Client, keys: &Keys, beginning: &str) -> Result<Vec<LockName>> {
    let mut names = Vec::new();
    for pattern in keys.patterns(beginning) {
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(1000);
            let (next, found): (u64, Vec<Vec<u8>>) = client.send(&scan).await?;
            let found = found
                .into_iter()
                .filter_map(|key| String::from_utf8(key).ok());
            let found = found.filter_map(|key| keys.name_of(&key));
            names.extend(found.filter(|name| name.as_str().starts_with(beginning)));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn describe(name: LockName, json: &str) -> Result<LockInfo> {
    let lock: Inspected = serde_json::from_str(json).map_err(|cause| {
        Error::new(ErrorKind::Unexpected, "the server's answer cannot be read").caused_by(cause)
    })?;
    let now: u64 = lock.now.parse().unwrap_or(0);
    let since = |then: &str| Duration::from_micros(now.saturating_sub(then.parse().unwrap_or(now)));
    let left = Duration::from_millis(u64::try_from(lock.left).unwrap_or(0));
    let holder = |holder: Holder| {
        let (claimant, reason) = match holder.meta {
            Some(meta) => Meta::read(meta.as_bytes()).unwrap_or_default().split(),
            None => (meta::another_program(), None),
        };
        HolderInfo {
            claimant,
            reason,
            mode: Mode::from_number(holder.mode.unwrap_or(0)),
            held_for: since(holder.since.as_deref().unwrap_or_default()),
            time_left: match holder.expires {
                Some(expires) => {
                    Duration::from_micros(expires.parse::<u64>().unwrap_or(0).saturating_sub(now))
                }
                None => left,
            },
            token: holder
                .token
                .and_then(|token| FencingToken::new(token.parse().ok()?))
                .unwrap_or(FencingToken::NONE),
        }
    };
    let waiter = |waiter: Waiter| {
        let meta = Meta::read(waiter.meta.as_bytes());
        let (claimant, reason) = meta.unwrap_or_default().split();
        WaiterInfo {
            claimant,
            reason,
            mode: Mode::from_number(waiter.mode),
            waited_for: since(&waiter.since),
        }
    };
    let mut holders: Vec<_> = lock.holders.into_iter().map(holder).collect();
    holders.sort_by_key(|holder| holder.token);
    Ok(LockInfo {
        name,
        holders,
        waiters: lock.waiters.into_iter().map(waiter).collect(),
    })
}
