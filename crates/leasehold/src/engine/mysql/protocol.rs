//! The calls of the procedures, and how their answers are read.

use mysql_async::{Row, Value};

use super::failure;
use super::schema::LIFE_OF_L;
use crate::claim::Claim;
use crate::engine::sql::records::Write;
use crate::engine::sql::rows::{Cells, RenewalRow, millis, mode_number, signature};
use crate::engine::sql::store::{Answer, Decided};
use crate::engine::wakeup::offer::Notice;
use crate::error::Result;
use crate::name::LockName;

pub(crate) const ACQUIRE: &str = "CALL leasehold_acquire(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
pub(crate) const RELEASE: &str = "CALL leasehold_release(?, ?, ?)";
pub(crate) const RENEW: &str = "CALL leasehold_renew(?)";
pub(crate) const LOOK: &str = "CALL leasehold_look(?, ?, ?)";
pub(crate) const FORCE_RELEASE: &str = "CALL leasehold_force_release(?, ?)";
pub(crate) const WRITE_RECORD: &str = "CALL leasehold_write_record(?, ?, ?, ?, ?, ?, ?)";

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
        claim.claimant.label.as_bytes().into(),
        claim.claimant.host.as_bytes().into(),
        claim.claimant.pid.into(),
        claim.reason.as_deref().map(str::as_bytes).into(),
        (!claim.queues).into(),
    ]
}

pub(crate) fn release(claim: &Claim, listener: &str) -> Vec<Value> {
    vec![
        name(&claim.name),
        signature(&claim.id).into(),
        listener.into(),
    ]
}

pub(crate) fn look(claim: &RenewalRow<'_>, listener: &str) -> Vec<Value> {
    vec![
        claim.name.as_bytes().into(),
        claim.ttl.into(),
        listener.into(),
    ]
}

pub(crate) fn force_release(lock: &LockName, listener: &str) -> Vec<Value> {
    vec![name(lock), listener.into()]
}

/// The claims as one JSON text, as `renew.sql` explains.
pub(crate) fn renew(claims: &[RenewalRow<'_>]) -> String {
    let texts: Vec<_> = claims
        .iter()
        .map(|claim| {
            let (name, signature) = (hex(claim.name.as_bytes()), hex(&claim.signature));
            let (ttl, shorten) = (claim.ttl, u8::from(claim.shorten));
            format!("[\"{name}\",\"{signature}\",{ttl},{shorten}]")
        })
        .collect();
    format!("[{}]", texts.join(","))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The server's time in microseconds since 1970.
const NOW: &str =
    "(SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS now) clock";

pub(crate) fn holders(asked: &str) -> String {
    format!(
        "SELECT name, owner, host, pid, reason, mode, now - since, expires_at - now, token \
         FROM leasehold_holders, {NOW} WHERE expires_at > now AND {asked} ORDER BY name, token"
    )
}

pub(crate) fn waiters(asked: &str) -> String {
    format!(
        "SELECT name, owner, host, pid, reason, mode, now - since \
         FROM leasehold_waiters JOIN leasehold_listeners l ON l.id = listener, {NOW} \
         WHERE l.alive_until > now AND (l.sure_until > now OR {LIFE_OF_L}) AND {asked} ORDER BY name, position"
    )
}

pub(crate) fn read_record() -> String {
    format!(
        "SELECT version, token, guarded_by, value IS NULL, ends_at <= now, now, IF(?, value, NULL) \
         FROM {NOW} LEFT JOIN leasehold_records ON id = ?"
    )
}

pub(crate) fn write_record(write: &Write<'_>) -> Vec<Value> {
    vec![
        write.key.as_bytes().into(),
        write.value.into(),
        write.version.into(),
        write.token.into(),
        write.lock.map(str::as_bytes).into(),
        write.lifetime.into(),
        write.expected.into(),
    ]
}

/// The answer to a call that may have offered the lock to waiters: whether it was held, the server's time, and notices.
pub(crate) fn decided(answer: Answer<Row>) -> Result<Decided<bool>> {
    let row = answer.first()?;
    let (held, now) = (row.number(0)?, row.number(1)?);
    Ok(Decided {
        what: held.ok_or_else(|| failure::nonsense("no answer"))? == 1,
        sent: answer.sent,
        now: now.map(i64::unsigned_abs),
        notices: notices(row, 2)?,
        maybe_applied: answer.maybe_applied,
    })
}

/// The notices to waiters of this process in the answer to a call, separated by `;`.
pub(crate) fn notices(row: &Row, column: usize) -> Result<Vec<(u64, Notice)>> {
    let text = row.text(column)?.unwrap_or_default();
    Ok(text.split(';').filter_map(Notice::read).collect())
}
