//! Guarded records: a row each, written by one function call.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::Shared;
use super::failure;
use super::server::{Answer, Lane};
use crate::engine::rows::token;
use crate::error::Result;
use crate::guard::{Checked, Fenced, GuardedStore, Key, Pass, Record, Version, other_lock};
use crate::name::LockName;

#[derive(Debug)]
pub(super) struct Records(pub(super) Arc<Shared>);

fn only(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| failure::nonsense("no row"))
}

fn version(row: &Row, column: usize) -> Option<Version> {
    let number: Option<i64> = row.get(column);
    number.map(|number| Version::new(number.unsigned_abs()))
}

fn written(row: &Row) -> Result<Version> {
    version(row, 1).ok_or_else(|| failure::nonsense("a record without a version"))
}

#[async_trait]
impl GuardedStore for Records {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let Shared { server, calls, .. } = &*self.0;
        let Answer { rows, .. } = server
            .call(Lane::Begin, &calls.read_record, &[&key.as_str()])
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let lock: Option<String> = row.get(3);
        Ok(Some(Record {
            value: row.get(0),
            version: written(row)?,
            token: token(row.get(2))?,
            lock: lock.and_then(|name| LockName::new(name).ok()),
        }))
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        let Shared { server, calls, .. } = &*self.0;
        let number = pass.token.get().cast_signed();
        let lock = pass.lock.as_ref().map(LockName::as_str);
        // May be carried out twice if the first reply is lost: the same holder writes the same again.
        let Answer { rows, .. } = server
            .call(
                Lane::Begin,
                &calls.write_fenced,
                &[&key.as_str(), &value, &number, &lock],
            )
            .await?;
        let row = only(&rows)?;
        match (row.get(0), &pass.lock) {
            ("written", _) => Ok(Fenced::Written {
                version: written(row)?,
            }),
            ("refused", _) => Ok(Fenced::Refused {
                highest: token(row.get(2))?,
            }),
            ("other lock", Some(given)) => Err(other_lock(row.get(3), given)),
            (other, _) => Err(failure::nonsense(other)),
        }
    }

    async fn write_if(
        &self,
        key: &Key,
        value: &[u8],
        expected: Option<Version>,
    ) -> Result<Checked> {
        let Shared { server, calls, .. } = &*self.0;
        // No record has a version that does not fit.
        let number = expected.map(|version| i64::try_from(version.get()).unwrap_or(-1));
        let Answer { rows, doubt, .. } = server
            .call(
                Lane::Begin,
                &calls.write_if,
                &[&key.as_str(), &value, &number],
            )
            .await?;
        let row = only(&rows)?;
        match (row.get(0), doubt) {
            ("written", _) => Ok(Checked::Written {
                version: written(row)?,
            }),
            // It may have been changed by the first try, whose reply was lost.
            ("changed", Some(doubt)) => Err(doubt),
            ("changed", None) => Ok(Checked::Changed {
                version: version(row, 1),
            }),
            (other, _) => Err(failure::nonsense(other)),
        }
    }
}
