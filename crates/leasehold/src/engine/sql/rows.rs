//! How a claim is written into rows, and how rows are read.

use std::collections::BTreeMap;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::failure;
use super::store::Outcome;
use crate::claim::{Claim, ClaimId, Claimant, Mode};
use crate::engine::{HolderInfo, LockInfo, Renew, WaiterInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// What the database stores of a claim id: a hash, with which nobody can release or renew.
pub(crate) fn signature(id: &ClaimId) -> Vec<u8> {
    Sha256::digest(id.as_bytes()).to_vec()
}

pub(crate) fn mode_number(mode: Mode) -> i32 {
    i32::try_from(mode.to_number()).unwrap_or(i32::MAX)
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn token(number: i64) -> Result<FencingToken> {
    let token = u64::try_from(number).ok().and_then(FencingToken::new);
    token.ok_or_else(|| {
        Error::new(
            ErrorKind::EngineUnfit,
            format!("the fencing token {number} is out of range"),
        )
        .advise("set the server's clock right; if the table of tokens is wrong, use other tables")
        .of_unknown_effect()
    })
}

/// The cells of a row, by column.
pub(crate) trait Cells {
    fn text(&self, column: usize) -> Result<Option<String>>;

    /// 0 or 1 for a boolean.
    fn number(&self, column: usize) -> Result<Option<i64>>;

    fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>>;
}

/// The outcome of an attempt, from a row of its name, a token (for a mismatch: the other mode), the server's time, and the milliseconds until the
/// first holder expires.
pub(crate) fn outcome(
    row: &impl Cells,
    claim: &Claim,
    is_next: bool,
    ahead: Option<usize>,
) -> Result<Outcome> {
    let number = |column| Ok::<_, Error>(row.number(column)?.unwrap_or(0));
    match row.text(0)?.as_deref().unwrap_or("") {
        "granted" => Ok(Outcome::Granted(token(number(1)?)?)),
        "held" => Ok(Outcome::Held {
            left: Duration::from_millis(u64::try_from(number(3)?).unwrap_or(0)),
            is_next,
            ahead,
        }),
        "mismatch" => {
            let there = Mode::from_number(number(1)?);
            claim.mode.agrees_with(there)?;
            claim.mode.is_still(there)?;
            Err(failure::nonsense("mismatch"))
        }
        other => Err(failure::nonsense(other)),
    }
}

/// Locks, from rows of name, owner, host, pid, reason, mode, and age in microseconds; of holders also the microseconds until it expires, and the token.
pub(crate) fn locks<R: Cells>(holders: &[R], waiters: &[R]) -> Result<Vec<LockInfo>> {
    let mut locks = BTreeMap::new();
    for row in holders {
        let holder = HolderInfo {
            claimant: claimant(row)?,
            reason: row.text(4)?,
            mode: mode(row)?,
            held_for: micros(row, 6)?,
            time_left: micros(row, 7)?,
            token: token(row.number(8)?.unwrap_or(-1))?,
        };
        lock_of(&mut locks, row)?.holders.push(holder);
    }
    for row in waiters {
        let waiter = WaiterInfo {
            claimant: claimant(row)?,
            reason: row.text(4)?,
            mode: mode(row)?,
            waited_for: micros(row, 6)?,
        };
        lock_of(&mut locks, row)?.waiters.push(waiter);
    }
    Ok(locks.into_values().collect())
}

fn lock_of<'a>(
    locks: &'a mut BTreeMap<LockName, LockInfo>,
    row: &impl Cells,
) -> Result<&'a mut LockInfo> {
    let name = LockName::stored(row.text(0)?.unwrap_or_default())?;
    Ok(locks.entry(name.clone()).or_insert(LockInfo {
        name,
        holders: Vec::new(),
        waiters: Vec::new(),
    }))
}

fn claimant(row: &impl Cells) -> Result<Claimant> {
    Ok(Claimant {
        label: row.text(1)?.unwrap_or_default(),
        host: row.text(2)?.unwrap_or_default(),
        pid: u32::try_from(row.number(3)?.unwrap_or(0)).unwrap_or(0),
    })
}

fn mode(row: &impl Cells) -> Result<Mode> {
    Ok(Mode::from_number(row.number(5)?.unwrap_or(0)))
}

fn micros(row: &impl Cells, column: usize) -> Result<Duration> {
    let micros = row.number(column)?.unwrap_or(0);
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// A claim that is to be renewed, as the database knows it.
#[derive(Debug)]
pub(crate) struct RenewalRow<'a> {
    pub(crate) name: &'a str,
    pub(crate) signature: Vec<u8>,
    /// In milliseconds.
    pub(crate) ttl: i64,
    pub(crate) shorten: bool,
    /// Its place in the batch.
    pub(crate) nth: usize,
}

impl<'a> RenewalRow<'a> {
    /// In the order in which all calls lock the rows of holders, so that no two wait for each other.
    pub(crate) fn in_order(batch: &[Renew<'a>]) -> Vec<Self> {
        let rows = batch.iter().enumerate().map(|(nth, renew)| Self {
            name: renew.claim.name.as_str(),
            signature: signature(&renew.claim.id),
            ttl: millis(renew.claim.ttl.get()),
            shorten: renew.shorten,
            nth,
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable_by(|a, b| (a.name, &a.signature).cmp(&(b.name, &b.signature)));
        rows
    }
}
