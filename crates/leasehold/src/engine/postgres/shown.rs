//! What people see of the locks on a server.

use std::time::Duration;

use tokio_postgres::Row;

use super::calls::Calls;
use super::server::{Lane, Server, cell};
use crate::claim::Claimant;
use crate::engine::rows::{Listed, mode, token};
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::Result;

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
    let mut locks = Listed::default();
    for row in &holders {
        let holder = HolderInfo {
            claimant: claimant(row)?,
            reason: cell(row, 4)?,
            mode: mode(cell(row, 5)?),
            held_for: micros(row, 6)?,
            time_left: micros(row, 7)?,
            token: token(cell(row, 8)?)?,
        };
        locks.named(cell(row, 0)?)?.holders.push(holder);
    }
    for row in &waiters {
        let waiter = WaiterInfo {
            claimant: claimant(row)?,
            reason: cell(row, 4)?,
            mode: mode(cell(row, 5)?),
            waited_for: micros(row, 6)?,
        };
        locks.named(cell(row, 0)?)?.waiters.push(waiter);
    }
    Ok(locks.in_order())
}

fn claimant(row: &Row) -> Result<Claimant> {
    Ok(Claimant {
        owner: cell(row, 1)?,
        host: cell(row, 2)?,
        pid: u32::try_from(cell::<i64>(row, 3)?).unwrap_or(0),
    })
}

fn micros(row: &Row, column: usize) -> Result<Duration> {
    let micros = u64::try_from(cell::<i64>(row, column)?).unwrap_or(0);
    Ok(Duration::from_micros(micros))
}
