//! Guarded records, in a file of their own beside that of the locks: locks end with the machine and need no fsync, records must
//! outlive it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::database::{self, Database, Location};
use super::failure;
use super::number::Number;
use super::owner::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{AtomicStore, Content, Decide, Key, Record, Stamp, Version, ends_at};
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::{FencingToken, wall_clock_micros};

/// "LeaR".
const APPLICATION: i32 = 0x4c65_6152;

/// A record without a value was deleted. Times are microseconds since 1970: records outlive the machine's own clock.
const LAYOUT: &str = "CREATE TABLE records (
    key TEXT PRIMARY KEY,
    value BLOB,
    version INTEGER NOT NULL,
    token INTEGER NOT NULL,
    lock TEXT,
    ends INTEGER
) WITHOUT ROWID, STRICT;
CREATE INDEX ending ON records (ends) WHERE ends IS NOT NULL;";

/// How many that have ended each write takes away that adds one.
const SWEEP: u32 = 8;

/// Opened at the first use.
#[derive(Debug, Clone)]
pub(super) struct Records {
    locks: Location,
    location: Location,
    busy_timeout: Duration,
    database: Arc<Mutex<Option<Database>>>,
}

impl Records {
    pub(super) fn beside(locks: &Location, busy_timeout: Duration) -> Self {
        Self {
            locks: locks.clone(),
            location: Location::at(locks.beside("-records")),
            busy_timeout,
            database: Arc::default(),
        }
    }

    /// Opens the file, and makes it if need be: for the owner of the locks, whoever this is.
    fn open(&self) -> failure::Result<Database> {
        // What is beyond a link is not even looked at.
        self.location.check()?;
        let locks = fs::metadata(self.locks.file()).ok();
        database::create(self.location.file(), locks.as_ref().map(Owner::of))?;
        Database::open(&self.location, |path| open(path, self.busy_timeout))
    }

    /// Carries out one transaction, away from the runtime's threads.
    async fn transaction<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> failure::Result<T> + Send + 'static,
    ) -> Result<T> {
        let records = self.clone();
        let done = tokio::task::spawn_blocking(move || -> failure::Result<T> {
            let mut database = records.database.lock();
            records.locks.check()?;
            loop {
                let open = match &mut *database {
                    Some(open) => open,
                    none => none.insert(records.open()?),
                };
                let transaction =
                    Transaction::new_unchecked(&open.connection, TransactionBehavior::Immediate)?;
                if open.is_current()? {
                    let result = work(&transaction)?;
                    transaction.commit().map_err(failure::at_commit)?;
                    return Ok(result);
                }
                drop(transaction);
                *database = None;
            }
        });
        match done.await {
            Ok(done) => Ok(done?),
            Err(cause) => {
                let error = Error::new(ErrorKind::Unexpected, "the work on a record was given up");
                Err(error.caused_by(cause).of_unknown_effect())
            }
        }
    }
}

fn open(path: &Path, busy_timeout: Duration) -> failure::Result<Connection> {
    let mut connection = database::connect(path, busy_timeout, Some(APPLICATION))?;
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 1000")?;
    database::lay_out(&mut connection, APPLICATION, LAYOUT)?;
    Ok(connection)
}

fn stamp(row: &Row<'_>) -> rusqlite::Result<Stamp> {
    let lock: Option<String> = row.get("lock")?;
    Ok(Stamp {
        version: Version::new(row.get::<_, Number>("version")?.0),
        token: FencingToken::new(row.get::<_, Number>("token")?.0).unwrap_or(FencingToken::MAX),
        lock: lock.and_then(|name| LockName::new(name).ok()),
        deleted: row.get("deleted")?,
    })
}

fn now() -> Number {
    Number(wall_clock_micros())
}

fn look(transaction: &Transaction<'_>, key: &Key) -> rusqlite::Result<Option<Stamp>> {
    transaction
        .prepare_cached(
            "SELECT version, token, lock, value IS NULL AS deleted FROM records
             WHERE key = ?1 AND (ends IS NULL OR ends > ?2)",
        )?
        .query_row(params![key.as_str(), now()], stamp)
        .optional()
}

fn put(
    transaction: &Transaction<'_>,
    key: &Key,
    content: &Content<'_>,
    stamp: &Stamp,
) -> rusqlite::Result<Version> {
    if content.is_nothing() {
        transaction
            .prepare_cached("DELETE FROM records WHERE key = ?1")?
            .execute([key.as_str()])?;
        return Ok(stamp.version);
    }
    let lock = stamp.lock.as_ref().map(LockName::as_str);
    transaction
        .prepare_cached(
            "REPLACE INTO records (key, value, version, token, lock, ends) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            key.as_str(),
            content.value,
            Number(stamp.version.get()),
            Number(stamp.token.get()),
            lock,
            content.lifetime.map(|lifetime| Number(ends_at(lifetime)))
        ])?;
    if content.lifetime.is_some() {
        transaction
            .prepare_cached(
                "DELETE FROM records WHERE key IN
                 (SELECT key FROM records WHERE ends <= ?1 ORDER BY ends LIMIT ?2)",
            )?
            .execute(params![now(), SWEEP])?;
    }
    Ok(stamp.version)
}

#[async_trait]
impl AtomicStore for Records {
    async fn load(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        self.transaction(move |transaction| {
            let record = transaction
                .prepare_cached(
                    "SELECT value, version, token, lock, 0 AS deleted FROM records
                     WHERE key = ?1 AND value IS NOT NULL AND (ends IS NULL OR ends > ?2)",
                )?
                .query_row(params![key.as_str(), now()], |row| {
                    Ok(stamp(row)?.with(row.get("value")?))
                })
                .optional()?;
            Ok(record.flatten())
        })
        .await
    }

    async fn write<T: Send + 'static>(
        &self,
        key: &Key,
        content: Content<'_>,
        decide: Decide<T>,
    ) -> Result<Result<Version, T>> {
        let (key, lifetime) = (key.clone(), content.lifetime);
        let value = content.value.map(<[u8]>::to_vec);
        self.transaction(move |transaction| {
            let content = Content {
                value: value.as_deref(),
                lifetime,
            };
            let there = look(transaction, &key)?;
            Ok(match decide(there.as_ref(), &content, Version::first())? {
                Ok(stamp) => Ok(put(transaction, &key, &content, &stamp)?),
                Err(refused) => Err(refused),
            })
        })
        .await
    }
}
