//! Guarded records, a row each. A write reads the row, decides, and writes on condition that the row still has the same version.

use std::sync::Arc;

use async_trait::async_trait;

use super::rows::Cells;
use super::store::RowStore;
use crate::error::Result;
use crate::guard::optimistic::{TRIES, unlucky};
use crate::guard::{AtomicStore, Content, Decide, Key, Record, Stamp, Version};
use crate::name::LockName;
use crate::token::FencingToken;

#[derive(Debug)]
pub(crate) struct Records<S>(pub(crate) Arc<S>);

/// A row of the table of records as it is to be written.
pub(crate) struct Write<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) version: i64,
    pub(crate) token: i64,
    pub(crate) lock: Option<&'a str>,
    /// In microseconds; for zero, no row is left.
    pub(crate) lifetime: Option<i64>,
    /// The version of the row that is there, whether or not its lifetime is over; `None` if there is none.
    pub(crate) expected: Option<i64>,
}

/// A record's stamp, from a row of version, token, lock, whether it was deleted, and whether its lifetime is over. `None` if that is over, or there is no row.
fn stamp(row: &impl Cells) -> Result<Option<Stamp>> {
    let Some(version) = row.number(0)? else {
        return Ok(None);
    };
    let token = row.number(1)?.unwrap_or(0).unsigned_abs();
    let lock = row.text(2)?.and_then(|name| LockName::new(name).ok());
    let stamp = Stamp {
        version: Version::new(version.unsigned_abs()),
        token: FencingToken::new(token).unwrap_or(FencingToken::MAX),
        lock,
        deleted: row.number(3)? == Some(1),
    };
    Ok((row.number(4)? != Some(1)).then_some(stamp))
}

#[async_trait]
impl<S: RowStore> AtomicStore for Records<S> {
    async fn load(&self, key: &Key) -> Result<Option<Record>> {
        let row = self.0.read_record(key, true).await?;
        let value = row.bytes(6)?;
        Ok(stamp(&row)?.and_then(|stamp| stamp.with(value)))
    }

    async fn write<T: Send + 'static>(
        &self,
        key: &Key,
        content: Content<'_>,
        decide: Decide<T>,
    ) -> Result<Result<Version, T>> {
        for _ in 0..TRIES {
            let row = self.0.read_record(key, false).await?;
            let (there, expected) = (stamp(&row)?, row.number(0)?);
            let now = row.number(5)?.unwrap_or(0).unsigned_abs();
            let new = match decide(there.as_ref(), &content, Version::new(now))? {
                Ok(new) => new,
                Err(refused) => return Ok(Err(refused)),
            };
            let write = Write {
                key: key.as_str(),
                value: content.value,
                version: new.version.get().cast_signed(),
                token: new.token.get().cast_signed(),
                lock: new.lock.as_ref().map(LockName::as_str),
                lifetime: content.lifetime_micros().map(u64::cast_signed),
                expected,
            };
            let is_done = content.is_nothing() && expected.is_none();
            if is_done || self.0.write_record(&write).await? {
                return Ok(Ok(new.version));
            }
        }
        Err(unlucky(key))
    }
}
