//! One server: a few connections that mend themselves, and the functions called over them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime, Timeouts,
};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Error as Cause, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::{self, Remedy};
use super::settings::Settings;
use super::tls;
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};

/// Connections are kept apart, so that what ends or is renewed never waits behind a thousand attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Attempts, and what people ask.
    Begin,
    /// Renewals and releases.
    GoOn,
}

/// One of the functions: how it is called.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) sql: String,
    pub(crate) types: &'static [Type],
    /// Whether to do it twice is as good as once.
    pub(crate) may_repeat: bool,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    /// When the request left that was answered.
    pub(crate) sent: Moment,
    /// An earlier try was lost with its connection, so this answer may be the second to the same request.
    pub(crate) doubt: Option<Error>,
}

pub(crate) struct Server {
    settings: Settings,
    tls: MakeRustlsConnect,
    begin: Pool,
    go_on: Pool,
    /// Whether statements stay prepared.
    prepares: AtomicBool,
    sent: AtomicU64,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// How often a call that was rolled back is made again at most.
const TRIES: u32 = 20;

impl Server {
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let tls = tls::connector(&settings.trust)?;
        let go_on = (settings.pool / 4).max(1);
        Ok(Self {
            begin: pool(settings, &tls, settings.pool - go_on)?,
            go_on: pool(settings, &tls, go_on)?,
            settings: settings.clone(),
            tls,
            prepares: AtomicBool::new(true),
            sent: AtomicU64::new(0),
        })
    }

    pub(crate) fn schema(&self) -> &str {
        &self.settings.schema
    }

    pub(crate) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.settings.schema)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn calls_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// No statement stays prepared from one transaction to the next.
    pub(crate) fn stop_preparing(&self) {
        self.prepares.store(false, Ordering::Relaxed);
    }

    /// For how long the server may wait for others, in its own unit.
    pub(crate) fn patience(&self) -> i64 {
        self.settings.patience()
    }

    pub(crate) async fn connection(&self, lane: Lane) -> Result<Object> {
        // One that is idle is better than one more: a session that was busy a moment ago is faster.
        if lane == Lane::GoOn
            && self.begin.status().available > 0
            && let Ok(idle) = self.begin.timeout_get(&self.at_once()).await
        {
            return Ok(idle);
        }
        let pool = match lane {
            Lane::Begin => &self.begin,
            Lane::GoOn => &self.go_on,
        };
        let got = pool.get().await;
        got.map_err(|cause| failure::of_pool(cause, pool.status().max_size))
    }

    fn at_once(&self) -> Timeouts {
        Timeouts {
            wait: Some(Duration::ZERO),
            ..self.begin.timeouts()
        }
    }

    /// Calls a function; again if it was rolled back for no fault of its own, or if the connection was lost and it may
    /// be called twice.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        call: &Call,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Answer> {
        let mut doubt = None;
        let mut reconnected = 0;
        for nth in 0.. {
            let connection = match self.connection(lane).await {
                Ok(connection) => connection,
                Err(error) => return Err(doubt.unwrap_or(error)),
            };
            self.sent.fetch_add(1, Ordering::Relaxed);
            let sent = Clock::machine().now();
            let connection = InUse(Some(connection));
            let prepared = self.prepares.load(Ordering::Relaxed);
            let asked = query(connection.get()?, call, parameters, prepared);
            let limit = self.settings.limit();
            let Ok(answer) = tokio::time::timeout(limit, asked).await else {
                if let Some(connection) = connection.done() {
                    self.discard(connection);
                }
                return Err(failure::no_answer_in_time());
            };
            let connection = connection.done();
            let cause = match answer {
                Ok(rows) => return Ok(Answer { rows, sent, doubt }),
                Err(cause) => cause,
            };
            match failure::remedy(&cause) {
                Remedy::Again if nth < TRIES => {
                    drop(connection);
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(..=20))).await;
                }
                Remedy::Unprepare if prepared => {
                    self.stop_preparing();
                    drop(connection.map(Object::take));
                }
                Remedy::Reconnect if call.may_repeat && reconnected < 2 => {
                    reconnected += 1;
                    drop(connection.map(Object::take));
                    doubt = Some(failure::of_call(cause));
                }
                _ => return Err(failure::of_call(cause)),
            }
        }
        Err(failure::no_answer_in_time())
    }

    /// A query that is asked once, without parameters.
    pub(crate) async fn ask(&self, lane: Lane, query: &str) -> Result<Asked> {
        let connection = self.connection(lane).await?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        let asked = connection.query_typed(query, &[]);
        match tokio::time::timeout(self.settings.limit(), asked).await {
            Ok(asked) => Ok(asked),
            Err(_) => {
                self.discard(connection);
                Err(failure::no_answer_in_time())
            }
        }
    }

    /// Several statements, as one transaction.
    pub(crate) async fn run_script(&self, lane: Lane, script: &str) -> Result<()> {
        let done = self.try_script(lane, script).await?;
        done.map_err(failure::of_call)
    }

    /// The same, with what the server itself says of it.
    pub(crate) async fn try_script(
        &self,
        lane: Lane,
        script: &str,
    ) -> Result<std::result::Result<(), Cause>> {
        let connection = self.connection(lane).await?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        // Others may be at it, and it is done once only.
        let limit = self.settings.timeout + Duration::from_secs(30);
        match tokio::time::timeout(limit, connection.batch_execute(script)).await {
            Ok(done) => Ok(done),
            Err(_) => {
                self.discard(connection);
                Err(failure::no_answer_in_time())
            }
        }
    }

    /// A connection whose answer did not come is of no use; what it still waits for is to end.
    fn discard(&self, connection: Object) {
        let connection = Object::take(connection);
        let cancel = connection.cancel_token();
        let tls = self.tls.clone();
        let patience = self.settings.connect_timeout;
        tokio::spawn(async move {
            let _ = tokio::time::timeout(patience, cancel.cancel_query(tls)).await;
        });
    }
}

/// A connection that is waited on. Dropped before the answer is there, it is closed: a pooler could give what is asked next the
/// answer to what was asked before.
struct InUse(Option<Object>);

impl InUse {
    fn get(&self) -> Result<&Object> {
        self.0.as_ref().ok_or_else(failure::no_answer_in_time)
    }

    fn done(mut self) -> Option<Object> {
        self.0.take()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        drop(self.0.take().map(Object::take));
    }
}

/// One cell of an answer.
pub(crate) fn cell<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column)
        .map_err(|cause| failure::nonsense(&cause.to_string()))
}

async fn query(
    connection: &Object,
    call: &Call,
    parameters: &[&(dyn ToSql + Sync)],
    prepared: bool,
) -> Asked {
    if prepared {
        let statement = connection
            .prepare_typed_cached(&call.sql, call.types)
            .await?;
        return connection.query(&statement, parameters).await;
    }
    let typed: Vec<_> = parameters
        .iter()
        .zip(call.types)
        .map(|(parameter, kind)| (*parameter, kind.clone()))
        .collect();
    connection.query_typed(&call.sql, &typed).await
}

/// What came of a query that was asked once.
pub(crate) type Asked = std::result::Result<Vec<Row>, Cause>;

fn pool(settings: &Settings, tls: &MakeRustlsConnect, size: usize) -> Result<Pool> {
    let manager = Manager::from_config(
        settings.server.clone(),
        tls.clone(),
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    let timeouts = Timeouts {
        wait: Some(settings.timeout),
        create: Some(settings.connect_timeout),
        recycle: None,
    };
    Pool::builder(manager)
        .max_size(size)
        .queue_mode(QueueMode::Lifo)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|cause| failure::nonsense(&cause.to_string()))
}
