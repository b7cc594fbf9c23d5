//! What people see of the locks on a server.

use std::time::Duration;

use tokio_postgres::Row;

use super::calls::{Calls, mode, token};
use super::server::{Lane, Server};
use crate::claim::Claimant;
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::Result;
use crate::name::LockName;

pub(crate) async fn inspect(
    server: &Server,
    calls: &Calls,
    query: &Query,
) -> Result<Vec<LockInfo>> {
    let (exactly, text) = match query {
        Query::Name(name) => (true, name.as_str()),
        Query::Prefix(prefix) => (false, prefix.as_str()),
    };
    // No name has one, and no parameter can.
    if text.contains('\0') {
        return Ok(Vec::new());
    }
    let holders = server
        .call(Lane::Begin, &calls.holders, &[&exactly, &text])
        .await?
        .rows;
    let waiters = server
        .call(Lane::Begin, &calls.waiters, &[&exactly, &text])
        .await?
        .rows;
    let mut locks = Locks::default();
    for row in &holders {
        let holder = HolderInfo {
            claimant: claimant(row),
            reason: row.get(4),
            mode: mode(row.get(5)),
            held_for: micros(row, 6),
            time_left: micros(row, 7),
            token: token(row.get(8))?,
        };
        locks.named(row)?.holders.push(holder);
    }
    for row in &waiters {
        let waiter = WaiterInfo {
            claimant: claimant(row),
            reason: row.get(4),
            mode: mode(row.get(5)),
            waited_for: micros(row, 6),
        };
        locks.named(row)?.waiters.push(waiter);
    }
    Ok(locks.0.into_values().collect())
}

#[derive(Default)]
struct Locks(std::collections::BTreeMap<LockName, LockInfo>);

impl Locks {
    fn named(&mut self, row: &Row) -> Result<&mut LockInfo> {
        let name = LockName::new(row.get::<_, &str>(0))?;
        Ok(self.0.entry(name.clone()).or_insert(LockInfo {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        }))
    }
}

fn claimant(row: &Row) -> Claimant {
    Claimant {
        owner: row.get(1),
        host: row.get(2),
        pid: u32::try_from(row.get::<_, i64>(3)).unwrap_or(0),
    }
}

fn micros(row: &Row, column: usize) -> Duration {
    Duration::from_micros(u64::try_from(row.get::<_, i64>(column)).unwrap_or(0))
}
