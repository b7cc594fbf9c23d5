//! What people see of the locks on a server.

use std::time::Duration;

use serde::Deserialize;

use super::keys::Keys;
use super::node::{Call, Node, SHOW};
use crate::claim::Mode;
use crate::engine::meta::{self, Meta};
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// The answer of show.lua. Times are in microseconds by the server's clock, as text: Lua writes large numbers short.
#[derive(Debug, Deserialize)]
struct Shown {
    now: String,
    left: i64,
    #[serde(default)]
    holders: Vec<ShownHolder>,
    #[serde(default)]
    waiters: Vec<ShownWaiter>,
}

/// Empty but for `expires` if another program holds the lock.
#[derive(Debug, Deserialize)]
struct ShownHolder {
    token: Option<String>,
    since: Option<String>,
    expires: Option<String>,
    mode: Option<i64>,
    meta: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ShownWaiter {
    since: String,
    mode: i64,
    meta: String,
}

pub(crate) async fn inspect(node: &Node, keys: &Keys, query: &Query) -> Result<Vec<LockInfo>> {
    let names = match query {
        Query::Name(name) => vec![name.clone()],
        Query::Prefix(beginning) => find(node, keys, beginning).await?,
    };
    let call = |name: &LockName| Call {
        lock: keys.of(name),
        arguments: vec![String::new()],
    };
    let calls: Vec<_> = names.iter().map(call).collect();
    let mut locks = Vec::new();
    for (name, answer) in names
        .into_iter()
        .zip(node.call_all::<String>(&SHOW, &calls).await)
    {
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
async fn find(node: &Node, keys: &Keys, beginning: &str) -> Result<Vec<LockName>> {
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
            let (next, found): (u64, Vec<Vec<u8>>) = node.send(&scan).await?;
            let found = found
                .into_iter()
                .filter_map(|key| String::from_utf8(key).ok());
            names.extend(found.filter_map(|key| keys.name_of(&key)));
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
    let shown: Shown = serde_json::from_str(json).map_err(|cause| {
        Error::new(ErrorKind::Unexpected, "the server's answer cannot be read").caused_by(cause)
    })?;
    let now: u64 = shown.now.parse().unwrap_or(0);
    let since = |then: &str| Duration::from_micros(now.saturating_sub(then.parse().unwrap_or(now)));
    let left = Duration::from_millis(u64::try_from(shown.left).unwrap_or(0));
    let holder = |holder: ShownHolder| {
        let (claimant, reason) = match holder.meta {
            Some(meta) => Meta::read(meta.as_bytes()).unwrap_or_default().split(),
            None => (meta::another_program(), None),
        };
        HolderInfo {
            claimant,
            reason,
            mode: mode(holder.mode.unwrap_or(0)),
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
    let waiter = |waiter: ShownWaiter| {
        let meta = Meta::read(waiter.meta.as_bytes());
        let (claimant, reason) = meta.unwrap_or_default().split();
        WaiterInfo {
            claimant,
            reason,
            mode: mode(waiter.mode),
            waited_for: since(&waiter.since),
        }
    };
    let mut holders: Vec<_> = shown.holders.into_iter().map(holder).collect();
    holders.sort_by_key(|holder| holder.token);
    Ok(LockInfo {
        name,
        holders,
        waiters: shown.waiters.into_iter().map(waiter).collect(),
    })
}

fn mode(number: i64) -> Mode {
    match number {
        0 => Mode::Exclusive,
        -1 => Mode::Shared,
        of => Mode::Permit {
            of: of.unsigned_abs() as u32,
        },
    }
}
