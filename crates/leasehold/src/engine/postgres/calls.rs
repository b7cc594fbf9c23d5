//! What is said to the functions, and what they answer.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::failure;
use super::server::{Call, cell};
use crate::claim::{Claim, ClaimId, Mode};
use crate::engine::handover::{HandedOver, Heirs};
use crate::engine::rows::{signature, token};
use crate::error::{Error, Result};
use crate::token::FencingToken;

/// All functions that are called, in one schema.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) acquire: Call,
    pub(crate) release: Call,
    pub(crate) renew: Call,
    pub(crate) break_lock: Call,
    pub(crate) sweep: Call,
    pub(crate) holders: Call,
    pub(crate) read_record: Call,
    pub(crate) write_fenced: Call,
    pub(crate) write_if: Call,
    pub(crate) waiters: Call,
}

impl Calls {
    pub(crate) fn in_schema(schema: &str) -> Self {
        let call = |sql: &str, types| Call {
            sql: sql.replace("leasehold.", &format!("\"{schema}\".")),
            types,
            may_repeat: true,
        };
        Self {
            acquire: call(
                "SELECT outcome, token, now_us, left_ms, is_next, $2 \
                 FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
                &[
                    Type::TEXT,
                    Type::BYTEA,
                    Type::INT4,
                    Type::INT8,
                    Type::TEXT,
                    Type::INT8,
                    Type::TEXT,
                    Type::TEXT,
                    Type::INT8,
                    Type::TEXT,
                    Type::INT8,
                ],
            ),
            release: call(
                "SELECT was_held, now_us, number, token, offer_ms, heirs, heir_token, heir_offer_ms \
                 FROM leasehold.release($1, $2, $3, $4, $5, $6)",
                &[
                    Type::TEXT,
                    Type::BYTEA,
                    Type::TEXT,
                    Type::BYTEA_ARRAY,
                    Type::INT8_ARRAY,
                    Type::INT8,
                ],
            ),
            renew: call(
                "SELECT nth, token, ($2)[nth] FROM leasehold.renew($1, $2, $3, $4)",
                &[
                    Type::TEXT_ARRAY,
                    Type::BYTEA_ARRAY,
                    Type::INT8_ARRAY,
                    Type::INT8,
                ],
            ),
            // A second one could break the lock of whoever the first let in.
            break_lock: Call {
                may_repeat: false,
                ..call(
                    "SELECT leasehold.break_lock($1, $2)",
                    &[Type::TEXT, Type::INT8],
                )
            },
            sweep: call("SELECT leasehold.sweep()", &[]),
            read_record: call(
                "SELECT value, version, token, lock FROM leasehold.records WHERE key = $1",
                &[Type::TEXT],
            ),
            write_fenced: call(
                "SELECT outcome, version, token, lock FROM leasehold.write_fenced($1, $2, $3, $4)",
                &[Type::TEXT, Type::BYTEA, Type::INT8, Type::TEXT],
            ),
            write_if: call(
                "SELECT outcome, version FROM leasehold.write_if($1, $2, $3)",
                &[Type::TEXT, Type::BYTEA, Type::INT8],
            ),
            holders: call(
                "SELECT name, owner, host, pid, reason, mode, \
                 leasehold.micros(now) - leasehold.micros(since), leasehold.micros(expires_at) - leasehold.micros(now), token \
                 FROM leasehold.holders, clock_timestamp() now \
                 WHERE claim IS NOT NULL AND expires_at > now \
                 AND CASE WHEN $1 THEN name = $2 ELSE starts_with(name, $2) END ORDER BY name, token",
                &[Type::BOOL, Type::TEXT],
            ),
            waiters: call(
                "SELECT name, owner, host, pid, reason, mode, leasehold.micros(now) - leasehold.micros(since) \
                 FROM leasehold.waiters JOIN leasehold.listeners ON id = listener, clock_timestamp() now \
                 WHERE alive_until > now AND NOT lapsed AND CASE WHEN $1 THEN name = $2 ELSE starts_with(name, $2) END ORDER BY name, place",
                &[Type::BOOL, Type::TEXT],
            ),
        }
    }
}

/// The answer to an attempt.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted {
        token: FencingToken,
        now: u64,
    },
    Held {
        now: u64,
        /// Until the first holder expires.
        left: Duration,
        is_next: bool,
    },
}

impl Outcome {
    pub(crate) fn read(rows: &[Row], claim: &Claim) -> Result<Self> {
        let row = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
        check_signature(row, 5, &claim.id)?;
        let number = |column| Ok::<_, Error>(cell::<Option<i64>>(row, column)?.unwrap_or(0));
        let now = number(2)?.unsigned_abs();
        match cell(row, 0)? {
            "granted" => Ok(Outcome::Granted {
                token: token(number(1)?)?,
                now,
            }),
            "held" => Ok(Outcome::Held {
                now,
                left: Duration::from_millis(u64::try_from(number(3)?).unwrap_or(0)),
                is_next: cell::<Option<bool>>(row, 4)?.unwrap_or(true),
            }),
            "mismatch" => {
                let of = u32::try_from(number(1)?).unwrap_or(0);
                claim.mode.agrees_with(Mode::Permit { of })?;
                Err(failure::nonsense("mismatch"))
            }
            other => Err(failure::nonsense(other)),
        }
    }
}

/// Which waiter of this very process was handed the lock by a release, if any.
pub(crate) fn handed_over(rows: &[Row]) -> Option<(u64, HandedOver)> {
    let row = rows.first()?;
    let number = |column| {
        cell::<Option<i64>>(row, column)
            .ok()?
            .map(i64::unsigned_abs)
    };
    let heirs = || {
        let numbers = cell::<Option<Vec<i64>>>(row, 5).ok()??;
        Some(Heirs {
            numbers: numbers.into_iter().map(i64::unsigned_abs).collect(),
            first_token: FencingToken::new(number(6)?)?,
            offer: Duration::from_millis(number(7)?),
        })
    };
    let handed_over = HandedOver {
        token: FencingToken::new(number(3)?)?,
        offer: Duration::from_millis(number(4)?),
        granted_at: number(1)?,
        heirs: heirs(),
    };
    Some((number(2)?, handed_over))
}

/// An answer must be to what was asked: a pooler that mixes them up must not give the lock to two.
pub(crate) fn check_signature(row: &Row, column: usize, id: &ClaimId) -> Result<()> {
    match cell::<Vec<u8>>(row, column)? == signature(id) {
        true => Ok(()),
        false => Err(failure::nonsense("the answer to another claim")),
    }
}
