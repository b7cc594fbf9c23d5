//! Guarded records, in a file of their own beside that of the locks: locks end with the machine and need no fsync, records must
//! outlive it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::failure::{self, unfit};
use super::file;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Checked, Fenced, GuardedStore, Key, Pass, Record, Stamp, Version};
use crate::name::LockName;
use crate::token::FencingToken;

/// "LeaR".
const APPLICATION: i32 = 0x4c65_6152;
const VERSION: i32 = 1;

const LAYOUT: &str = "CREATE TABLE records (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    token INTEGER NOT NULL,
    lock TEXT
) WITHOUT ROWID, STRICT;";

/// Opened at the first use.
#[derive(Debug, Clone)]
pub(super) struct Records {
    path: Arc<Path>,
    busy_timeout: Duration,
    connection: Arc<Mutex<Option<Connection>>>,
}

impl Records {
    pub(super) fn beside(locks: &Path, busy_timeout: Duration) -> Self {
        let mut path = locks.as_os_str().to_owned();
        path.push("-records");
        Self {
            path: PathBuf::from(path).into(),
            busy_timeout,
            connection: Arc::default(),
        }
    }

    /// Carries out one transaction, away from the runtime's threads.
    async fn transaction<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> failure::Result<T> + Send + 'static,
    ) -> Result<T> {
        let records = self.clone();
        let done = tokio::task::spawn_blocking(move || -> failure::Result<T> {
            let mut connection = records
                .connection
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let connection = match &mut *connection {
                Some(connection) => connection,
                none => none.insert(open(&records.path, records.busy_timeout)?),
            };
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
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
    file::create(path)?;
    let mut connection = file::connect(path, busy_timeout)?;
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 1000")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let number = |sql| transaction.query_row(sql, [], |row| row.get::<_, i32>(0));
    match (
        number("PRAGMA application_id")?,
        number("PRAGMA user_version")?,
    ) {
        (APPLICATION, VERSION) => {}
        (0, 0) if number("SELECT count(*) FROM sqlite_schema")? == 0 => {
            transaction.execute_batch(LAYOUT)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        _ => {
            return Err(unfit(format!(
                "{} is no file of guarded records of this version",
                path.display()
            ))
            .advise("move it aside, or use another path for the locks")
            .into());
        }
    }
    transaction.commit()?;
    Ok(connection)
}

fn stamp(row: &Row<'_>) -> rusqlite::Result<Stamp> {
    let lock: Option<String> = row.get("lock")?;
    Ok(Stamp {
        version: Version::new(row.get("version")?),
        token: FencingToken::new(row.get("token")?).unwrap_or(FencingToken::MAX),
        lock: lock.and_then(|name| LockName::new(name).ok()),
    })
}

fn look(transaction: &Transaction<'_>, key: &Key) -> rusqlite::Result<Option<Stamp>> {
    transaction
        .prepare_cached("SELECT version, token, lock FROM records WHERE key = ?1")?
        .query_row([key.as_str()], stamp)
        .optional()
}

fn put(
    transaction: &Transaction<'_>,
    key: &Key,
    value: &[u8],
    stamp: &Stamp,
) -> rusqlite::Result<Version> {
    let lock = stamp.lock.as_ref().map(LockName::as_str);
    transaction
        .prepare_cached(
            "REPLACE INTO records (key, value, version, token, lock) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            key.as_str(),
            value,
            stamp.version.get(),
            stamp.token.get(),
            lock
        ])?;
    Ok(stamp.version)
}

#[async_trait]
impl GuardedStore for Records {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        self.transaction(move |transaction| {
            let record = transaction
                .prepare_cached("SELECT value, version, token, lock FROM records WHERE key = ?1")?
                .query_row([key.as_str()], |row| {
                    let Stamp {
                        version,
                        token,
                        lock,
                    } = stamp(row)?;
                    let value = row.get("value")?;
                    Ok(Record {
                        value,
                        version,
                        token,
                        lock,
                    })
                })
                .optional()?;
            Ok(record)
        })
        .await
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        let (key, value, pass) = (key.clone(), value.to_vec(), pass.clone());
        self.transaction(move |transaction| {
            let there = look(transaction, &key)?;
            Ok(match Stamp::fenced(there.as_ref(), &pass)? {
                Ok(stamp) => Fenced::Written {
                    version: put(transaction, &key, &value, &stamp)?,
                },
                Err(highest) => Fenced::Refused { highest },
            })
        })
        .await
    }

    async fn write_if(&self, key: &Key, value: &[u8], version: Option<Version>) -> Result<Checked> {
        let (key, value) = (key.clone(), value.to_vec());
        self.transaction(move |transaction| {
            let there = look(transaction, &key)?;
            Ok(match Stamp::checked(there.as_ref(), version) {
                Ok(stamp) => Checked::Written {
                    version: put(transaction, &key, &value, &stamp)?,
                },
                Err(version) => Checked::Changed { version },
            })
        })
        .await
    }
}
