//! Guarded records.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Error as Cause, Row, Value};

use super::failure::{self, Remedy};
use super::server::{Lane, Lent, Server};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guard::{Checked, Fenced, GuardedStore, Key, Pass, Record, Stamp, Version};
use crate::name::LockName;
use crate::token::FencingToken;

#[derive(Debug)]
pub(super) struct Records {
    server: Arc<Server>,
}

/// Someone else has made the record first.
const DUPLICATE: u16 = 1062;

/// Why a write did not come about.
enum Stopped {
    /// Nothing was done.
    Before(Cause),
    /// Nobody knows.
    AtCommit(Cause),
    Refused(Error),
}

impl Records {
    pub(super) fn on(server: &Arc<Server>) -> Self {
        Self {
            server: Arc::clone(server),
        }
    }

    /// Carries out one transaction: what is there decides what is written, if anything.
    async fn write<T>(
        &self,
        key: &Key,
        value: &[u8],
        decide: impl Fn(Option<&Stamp>) -> Result<std::result::Result<Stamp, T>>,
    ) -> Result<std::result::Result<Version, T>> {
        let give_up = Clock::machine().now() + self.server.settings().timeout;
        loop {
            let mut lent = self.server.lend(Lane::Begin).await?;
            let tried = self.transaction(&mut lent, key, value, &decide);
            let limit = self.server.settings().timeout + Duration::from_secs(1);
            let Ok(tried) = tokio::time::timeout(limit, tried).await else {
                return Err(failure::no_answer_in_time());
            };
            let cause = match tried {
                Ok(done) => {
                    lent.give_back();
                    return Ok(done);
                }
                Err(Stopped::Refused(error)) => return Err(error),
                Err(Stopped::AtCommit(cause)) => {
                    return Err(failure::of_call(cause).of_unknown_effect());
                }
                Err(Stopped::Before(cause)) => cause,
            };
            let duplicate = matches!(&cause, Cause::Server(said) if said.code == DUPLICATE);
            let may_be_repeated = duplicate || failure::remedy(&cause) != Remedy::None;
            if !may_be_repeated || Clock::machine().now() >= give_up {
                return Err(failure::of_call(cause));
            }
            // What was begun ends with its connection.
            drop(lent);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..=20))).await;
        }
    }

    async fn transaction<T>(
        &self,
        lent: &mut Lent<'_>,
        key: &Key,
        value: &[u8],
        decide: impl Fn(Option<&Stamp>) -> Result<std::result::Result<Stamp, T>>,
    ) -> std::result::Result<std::result::Result<Version, T>, Stopped> {
        let connection = &mut lent.connection;
        let id = || Value::from(key.as_str().as_bytes());
        for begin in [
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "START TRANSACTION",
        ] {
            connection
                .query_drop(begin)
                .await
                .map_err(Stopped::Before)?;
        }
        let look = self.server.named(
            "SELECT version, token, guarded_by FROM leasehold_records WHERE id = ? FOR UPDATE",
        );
        let there: Option<Row> = connection
            .exec_first(look, vec![id()])
            .await
            .map_err(Stopped::Before)?;
        let there = there.map(|row| stamp(&row, 0));
        let stamp = match decide(there.as_ref()).map_err(Stopped::Refused)? {
            Ok(stamp) => stamp,
            Err(refused) => {
                connection
                    .query_drop("ROLLBACK")
                    .await
                    .map_err(Stopped::Before)?;
                return Ok(Err(refused));
            }
        };
        let put = match there {
            Some(_) => {
                "UPDATE leasehold_records SET value = ?, version = ?, token = ?, guarded_by = ? WHERE id = ?"
            }
            None => {
                "INSERT INTO leasehold_records (value, version, token, guarded_by, id) VALUES (?, ?, ?, ?, ?)"
            }
        };
        let lock = stamp.lock.as_ref().map(|lock| lock.as_str().as_bytes());
        let parameters: Vec<Value> = vec![
            value.into(),
            stamp.version.get().into(),
            stamp.token.get().into(),
            lock.into(),
            id(),
        ];
        connection
            .exec_drop(self.server.named(put), parameters)
            .await
            .map_err(Stopped::Before)?;
        connection
            .query_drop("COMMIT")
            .await
            .map_err(Stopped::AtCommit)?;
        Ok(Ok(stamp.version))
    }
}

fn stamp(row: &Row, first: usize) -> Stamp {
    let number = |column: usize| row.get::<u64, _>(first + column).unwrap_or(0);
    let lock: Option<Vec<u8>> = row.get::<Option<Vec<u8>>, _>(first + 2).flatten();
    Stamp {
        version: Version::new(number(0)),
        token: FencingToken::new(number(1)).unwrap_or(FencingToken::MAX),
        lock: lock.and_then(|name| LockName::new(String::from_utf8(name).ok()?).ok()),
    }
}

#[async_trait]
impl GuardedStore for Records {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let sql = "SELECT value, version, token, guarded_by FROM leasehold_records WHERE id = ?";
        let parameters = vec![key.as_str().as_bytes().into()];
        let answer = self.server.call(Lane::Begin, sql, parameters).await?;
        Ok(answer.rows.first().map(|row| {
            let Stamp {
                version,
                token,
                lock,
            } = stamp(row, 1);
            Record {
                value: row.get(0).unwrap_or_default(),
                version,
                token,
                lock,
            }
        }))
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        let written = self.write(key, value, |there| Stamp::fenced(there, pass));
        Ok(match written.await? {
            Ok(version) => Fenced::Written { version },
            Err(highest) => Fenced::Refused { highest },
        })
    }

    async fn write_if(&self, key: &Key, value: &[u8], version: Option<Version>) -> Result<Checked> {
        let written = self.write(key, value, |there| Ok(Stamp::checked(there, version)));
        Ok(match written.await? {
            Ok(version) => Checked::Written { version },
            Err(version) => Checked::Changed { version },
        })
    }
}
