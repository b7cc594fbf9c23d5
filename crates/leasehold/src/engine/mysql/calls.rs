//! What is said to the procedures, and what they answer.

use std::time::Duration;

use mysql_async::{Row, Value};

use super::failure;
use crate::claim::{Claim, Mode};
use crate::engine::Renew;
use crate::engine::rows::{millis, mode_number, signature, token};
use crate::error::Result;
use crate::name::LockName;
use crate::token::FencingToken;

pub(crate) const ACQUIRE: &str = "CALL leasehold_acquire(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
pub(crate) const RELEASE: &str = "CALL leasehold_release(?, ?, ?)";
pub(crate) const RENEW: &str = "CALL leasehold_renew(?)";
pub(crate) const LOOK: &str = "CALL leasehold_look(?, ?, ?)";
pub(crate) const BREAK: &str = "CALL leasehold_break_lock(?, ?)";
pub(crate) const SWEEP: &str = "CALL leasehold_sweep()";

fn name(name: &LockName) -> Value {
    name.as_str().as_bytes().into()
}

pub(crate) fn acquire(claim: &Claim, listener: &str, number: Option<u64>) -> Vec<Value> {
    vec![
        name(&claim.name),
        signature(&claim.id).into(),
        mode_number(claim.mode).into(),
        millis(claim.ttl.get()).into(),
        listener.into(),
        number.into(),
        claim.claimant.owner.as_bytes().into(),
        claim.claimant.host.as_bytes().into(),
        claim.claimant.pid.into(),
        claim.reason.as_deref().map(str::as_bytes).into(),
    ]
}

pub(crate) fn release(claim: &Claim, listener: &str) -> Vec<Value> {
    vec![
        name(&claim.name),
        signature(&claim.id).into(),
        listener.into(),
    ]
}

pub(crate) fn look(claim: &Claim, listener: &str) -> Vec<Value> {
    vec![
        name(&claim.name),
        millis(claim.ttl.get()).into(),
        listener.into(),
    ]
}

pub(crate) fn break_lock(lock: &LockName, listener: &str) -> Vec<Value> {
    vec![name(lock), listener.into()]
}

/// The claims as one text, in the order in which rows are locked by all; and which is which.
pub(crate) fn renew(held: &[Renew<'_>]) -> (String, Vec<usize>) {
    let mut claims: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(nth, Renew { claim, .. })| {
            let ttl = millis(claim.ttl.get());
            (claim.name.as_str(), signature(&claim.id), ttl, nth)
        })
        .collect();
    claims.sort();
    let texts: Vec<_> = claims
        .iter()
        .map(|(name, claim, ttl, _)| {
            format!("[\"{}\",\"{}\",{ttl}]", hex(name.as_bytes()), hex(claim))
        })
        .collect();
    let order = claims.iter().map(|(.., nth)| *nth).collect();
    (format!("[{}]", texts.join(",")), order)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The answer to an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted {
        token: FencingToken,
    },
    Held {
        /// Until the first holder expires.
        left: Duration,
        rank: usize,
        holders: usize,
    },
}

impl Outcome {
    /// With what the server's clock said, and what is said to others of this process.
    pub(crate) fn read(row: &Row, claim: &Claim) -> Result<(Self, u64, String)> {
        let number = |column: usize| row.get::<Option<i64>, _>(column).flatten().unwrap_or(0);
        let count = |column| usize::try_from(number(column)).unwrap_or(0);
        let outcome = match text(row, 0).as_str() {
            "granted" => Outcome::Granted {
                token: token(number(1))?,
            },
            "held" => Outcome::Held {
                left: Duration::from_millis(u64::try_from(number(3)).unwrap_or(0)),
                rank: count(4),
                holders: count(5),
            },
            "mismatch" => {
                let of = u32::try_from(number(1)).unwrap_or(0);
                claim.mode.agrees_with(Mode::Permit { of })?;
                return Err(failure::nonsense("mismatch"));
            }
            other => return Err(failure::nonsense(other)),
        };
        Ok((outcome, number(2).unsigned_abs(), text(row, 6)))
    }
}

/// Whether it was held, what the server's clock said, and what is said to waiters of this process.
pub(crate) fn told(row: &Row) -> Result<(bool, u64, String)> {
    let nonsense = || failure::nonsense("no answer");
    Ok((
        row.get(0).ok_or_else(nonsense)?,
        row.get(1).ok_or_else(nonsense)?,
        text(row, 2),
    ))
}

fn text(row: &Row, column: usize) -> String {
    row.get::<Option<String>, _>(column)
        .flatten()
        .unwrap_or_default()
}
