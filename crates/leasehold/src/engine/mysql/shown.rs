//! What people see of the locks on a server.

use std::time::Duration;

use mysql_async::Row;

use super::failure;
use super::server::{Lane, Server};
use crate::claim::Claimant;
use crate::engine::rows::{Listed, mode, token};
use crate::engine::{HolderInfo, LockInfo, Query, WaiterInfo};
use crate::error::Result;

const NOW: &str =
    "(SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now) clock";

pub(crate) async fn inspect(server: &Server, query: &Query) -> Result<Vec<LockInfo>> {
    // A prefix is compared as bytes: nothing in it has another meaning.
    let (asked, text) = match query {
        Query::Name(name) => ("name = ?", name.as_str()),
        Query::Prefix(prefix) => ("LEFT(name, LENGTH(?)) = ?", prefix.as_str()),
    };
    let text = text.as_bytes().to_vec();
    let parameters = || asked.matches('?').map(|_| text.clone().into()).collect();
    let holders = format!(
        "SELECT name, owner, host, pid, reason, mode, now - since, expires_at - now, token \
         FROM leasehold_holders, {NOW} WHERE expires_at > now AND {asked} ORDER BY name, token"
    );
    let waiters = format!(
        "SELECT name, owner, host, pid, reason, mode, now - since \
         FROM leasehold_waiters JOIN leasehold_listeners ON id = listener, {NOW} \
         WHERE alive_until > now AND {asked} ORDER BY name, place"
    );
    let holders = server.call(Lane::Begin, &holders, parameters()).await?.rows;
    let waiters = server.call(Lane::Begin, &waiters, parameters()).await?.rows;
    let mut locks = Listed::default();
    for row in &holders {
        let holder = HolderInfo {
            claimant: claimant(row),
            reason: text_in(row, 4),
            mode: mode(row.get(5).unwrap_or(0)),
            held_for: micros(row, 6),
            time_left: micros(row, 7),
            token: token(row.get(8).unwrap_or(-1))?,
        };
        locks.named(&name(row)?)?.holders.push(holder);
    }
    for row in &waiters {
        let waiter = WaiterInfo {
            claimant: claimant(row),
            reason: text_in(row, 4),
            mode: mode(row.get(5).unwrap_or(0)),
            waited_for: micros(row, 6),
        };
        locks.named(&name(row)?)?.waiters.push(waiter);
    }
    Ok(locks.in_order())
}

fn name(row: &Row) -> Result<String> {
    text_in(row, 0).ok_or_else(|| failure::nonsense("no name"))
}

fn text_in(row: &Row, column: usize) -> Option<String> {
    let bytes: Vec<u8> = row.get::<Option<Vec<u8>>, _>(column)??;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn claimant(row: &Row) -> Claimant {
    let text = |column| text_in(row, column).unwrap_or_default();
    Claimant {
        owner: text(1),
        host: text(2),
        pid: row.get::<u32, _>(3).unwrap_or(0),
    }
}

fn micros(row: &Row, column: usize) -> Duration {
    let number = row.get::<i64, _>(column).unwrap_or(0);
    Duration::from_micros(u64::try_from(number).unwrap_or(0))
}
