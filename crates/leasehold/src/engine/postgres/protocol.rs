//! The calls of the functions, and how their answers are read.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::client::{Call, cell};
use super::failure;
use crate::engine::wakeup::offer::{Notice, Offer};
use crate::error::Result;
use crate::token::FencingToken;

/// All functions that are called, in one schema. A connection's search_path is not relied on: what is not a function of ours is named
/// in full, or has operands of exactly the types of the server's own operators.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) acquire: Call,
    pub(crate) release: Call,
    pub(crate) renew: Call,
    pub(crate) force_release: Call,
    pub(crate) sweep: Call,
    pub(crate) stop_listening: Call,
    pub(crate) holders: Call,
    pub(crate) read_record: Call,
    pub(crate) write_record: Call,
    pub(crate) waiters: Call,
}

impl Calls {
    pub(crate) fn in_schema(schema: &str) -> Self {
        let call = |sql: &str, types| Call {
            sql: sql.replace("leasehold.", &format!("\"{schema}\".")),
            types,
            may_repeat: true,
            may_borrow: true,
            is_patient: false,
        };
        let patient_call = |sql: &str, types| Call {
            is_patient: true,
            ..call(sql, types)
        };
        Self {
            acquire: patient_call(
                "SELECT outcome, token, now_us, left_ms, is_next, $2 \
                 FROM leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
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
                    Type::TEXT,
                    Type::INT8,
                ],
            ),
            release: patient_call(
                "SELECT was_held, now_us, number, token, offer_ms, $2 \
                 FROM leasehold.release($1, $2, $3, $4)",
                &[Type::TEXT, Type::BYTEA, Type::TEXT, Type::INT8],
            ),
            renew: patient_call(
                "SELECT nth, token, ($2)[nth] FROM leasehold.renew($1, $2, $3, $4, $5)",
                &[
                    Type::TEXT_ARRAY,
                    Type::BYTEA_ARRAY,
                    Type::INT8_ARRAY,
                    Type::BOOL_ARRAY,
                    Type::INT8,
                ],
            ),
            // A second one could break the lock of whoever the first let in.
            force_release: Call {
                may_repeat: false,
                ..patient_call(
                    "SELECT leasehold.force_release($1, $2)",
                    &[Type::TEXT, Type::INT8],
                )
            },
            stop_listening: call(
                "DELETE FROM leasehold.listeners l WHERE l.id OPERATOR(pg_catalog.=) $1 \
                 AND NOT EXISTS (SELECT FROM leasehold.waiters w WHERE w.listener OPERATOR(pg_catalog.=) l.id)",
                &[Type::TEXT],
            ),
            sweep: call("SELECT leasehold.sweep()", &[]),
            read_record: call(
                "SELECT version, token, lock, value IS NULL, ends_at <= now, leasehold.micros(now), CASE WHEN $2 THEN value END \
                 FROM pg_catalog.clock_timestamp() now LEFT JOIN leasehold.records ON key = $1",
                &[Type::TEXT, Type::BOOL],
            ),
            // One that is carried out late, after it was repeated elsewhere, could undo a later one of the same holder.
            write_record: Call {
                may_repeat: false,
                may_borrow: false,
                ..call(
                    "SELECT leasehold.write_record($1, $2, $3, $4, $5, $6, $7)",
                    &[
                        Type::TEXT,
                        Type::BYTEA,
                        Type::INT8,
                        Type::INT8,
                        Type::TEXT,
                        Type::INT8,
                        Type::INT8,
                    ],
                )
            },
            holders: call(
                "SELECT name, owner, host, pid, reason, mode, \
                 leasehold.micros(now) - leasehold.micros(since), leasehold.micros(expires_at) - leasehold.micros(now), token \
                 FROM leasehold.holders, pg_catalog.clock_timestamp() now \
                 WHERE claim IS NOT NULL AND expires_at > now \
                 AND CASE WHEN $1 THEN name = $2 ELSE pg_catalog.starts_with(name, $2) END ORDER BY name, token",
                &[Type::BOOL, Type::TEXT],
            ),
            waiters: call(
                "SELECT name, owner, host, pid, reason, mode, leasehold.micros(now) - leasehold.micros(since) \
                 FROM leasehold.waiters JOIN leasehold.listeners ON id = listener, pg_catalog.clock_timestamp() now \
                 WHERE alive_until > now AND NOT lapsed AND CASE WHEN $1 THEN name = $2 ELSE pg_catalog.starts_with(name, $2) END ORDER BY name, position",
                &[Type::BOOL, Type::TEXT],
            ),
        }
    }
}

/// The parameters of a call.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The waiter of this very process that a release has offered the lock to, if any.
pub(crate) fn offer(row: &Row) -> Option<(u64, Notice)> {
    let number = |column| {
        cell::<Option<i64>>(row, column)
            .ok()?
            .map(i64::unsigned_abs)
    };
    let offer = Offer {
        token: FencingToken::new(number(3)?)?,
        lasts: Duration::from_millis(number(4)?),
        granted_at: number(1)?,
    };
    Some((number(2)?, Notice::Offered(offer)))
}

/// An answer must be to what was asked: a pooler that mixes them up must not give the lock to two.
pub(crate) fn check_signature(row: &Row, column: usize, asked: &[u8]) -> Result<()> {
    match cell::<Vec<u8>>(row, column)? == asked {
        true => Ok(()),
        false => Err(failure::nonsense("the answer to another claim")),
    }
}
