//! One server: a few connections that mend themselves, and the procedures called over them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, Error as Cause, Params, Row, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::failure::{self, Remedy};
use super::settings::{Settings, Tls};
use crate::clock::{Clock, Moment};
use crate::engine::tls;
use crate::error::{Error, Result};

/// Connections are kept apart, so that what ends or is renewed never waits behind a thousand attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Attempts, and what people ask.
    Begin,
    /// Renewals and releases.
    GoOn,
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

impl Answer {
    pub(crate) fn first(&self) -> Result<&Row> {
        self.rows.first().ok_or_else(|| failure::nonsense("no row"))
    }
}

pub(crate) struct Server {
    settings: Settings,
    begin: Pool,
    go_on: Pool,
    sent: AtomicU64,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

struct Pool {
    size: usize,
    permits: Semaphore,
    idle: Mutex<Vec<Conn>>,
}

/// A connection for one call. One that is dropped without a word is closed: nobody knows what is still open in it.
pub(crate) struct Lent<'a> {
    pub(crate) connection: Conn,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl Lent<'_> {
    pub(crate) fn give_back(self) {
        self.pool.idle().push(self.connection);
    }

    /// The server has closed it; then it has closed the others too.
    fn was_lost(self) {
        self.pool.idle().clear();
    }
}

impl Pool {
    fn of(size: usize) -> Self {
        Self {
            size,
            permits: Semaphore::new(size),
            idle: Mutex::default(),
        }
    }

    /// Whether there are connections, or someone is about to have one.
    fn has_any(&self) -> bool {
        self.permits.available_permits() < self.size || !self.idle().is_empty()
    }

    fn lend_idle(&self) -> Option<Lent<'_>> {
        let permit = self.permits.try_acquire().ok()?;
        let connection = self.idle().pop()?;
        Some(Lent {
            connection,
            pool: self,
            _permit: permit,
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much longer than the server to wait.
const GRACE: Duration = Duration::from_millis(500);

/// A new connection.
pub(crate) async fn connect(settings: &Settings) -> Result<Conn> {
    let connecting = async {
        match &settings.tls {
            Tls::No => Conn::new(settings.opts(None)).await,
            Tls::Yes(ssl) => Conn::new(settings.opts(Some(ssl))).await,
            Tls::Prefer(ssl) => match Conn::new(settings.opts(Some(ssl))).await {
                Err(Cause::Driver(DriverError::NoClientSslFlagFromServer)) => {
                    Conn::new(settings.opts(None)).await
                }
                connected => connected,
            },
        }
    };
    tls::install();
    match tokio::time::timeout(settings.connect_timeout, connecting).await {
        Ok(Err(cause)) if matches!(settings.tls, Tls::No) => {
            Err(failure::of_plain_connection(cause))
        }
        Ok(connected) => connected.map_err(failure::of_connection),
        Err(_) => Err(failure::no_connection_in_time()),
    }
}

impl Server {
    pub(crate) fn new(settings: &Settings) -> Self {
        let go_on = (settings.pool / 4).max(1);
        Self {
            begin: Pool::of(settings.pool - go_on),
            go_on: Pool::of(go_on),
            settings: settings.clone(),
            sent: AtomicU64::new(0),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn calls_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The statement with the names of this engine's tables and procedures.
    pub(crate) fn named(&self, sql: &str) -> String {
        sql.replace("leasehold_", &format!("{}_", self.settings.table))
    }

    pub(crate) async fn lend(&self, lane: Lane) -> Result<Lent<'_>> {
        let pool = match lane {
            Lane::Begin => &self.begin,
            Lane::GoOn => &self.go_on,
        };
        let permit = tokio::time::timeout(self.settings.timeout, pool.permits.acquire()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(failure::all_busy(pool.size));
        };
        let idle = pool.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => match connect(&self.settings).await {
                Ok(connection) => connection,
                Err(refused) if failure::is_full(&refused) => {
                    drop(permit);
                    return self.make_do(lane, refused).await;
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Lent {
            connection,
            pool,
            _permit: permit,
        })
    }

    /// The server takes no more connections: one that is there must do, as soon as it is free.
    async fn make_do(&self, lane: Lane, refused: Error) -> Result<Lent<'_>> {
        let pools: &[&Pool] = match lane {
            Lane::Begin => &[&self.begin],
            Lane::GoOn => &[&self.go_on, &self.begin],
        };
        let give_up = Clock::machine().now() + self.settings.timeout;
        while Clock::machine().now() < give_up && pools.iter().any(|pool| pool.has_any()) {
            if let Some(lent) = pools.iter().find_map(|pool| pool.lend_idle()) {
                return Ok(lent);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(refused)
    }

    /// Makes a call; again if it was rolled back for no fault of its own, or if the connection was lost: all of
    /// them may be made twice.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        sql: &str,
        parameters: Vec<Value>,
    ) -> Result<Answer> {
        let parameters = match parameters.is_empty() {
            true => Params::Empty,
            false => Params::Positional(parameters),
        };
        let sql = &self.named(sql);
        let give_up = Clock::machine().now() + self.settings.timeout;
        let mut doubt = None;
        let mut reconnected = 0;
        loop {
            let mut lent = match self.lend(lane).await {
                Ok(lent) => lent,
                Err(error) => return Err(doubt.unwrap_or(error)),
            };
            self.sent.fetch_add(1, Ordering::Relaxed);
            let sent = Clock::machine().now();
            let asked = lent
                .connection
                .exec::<Row, _, _>(sql.as_str(), parameters.clone());
            let answer = tokio::time::timeout(self.settings.timeout + GRACE, asked).await;
            let cause = match answer {
                Err(_) => return Err(failure::no_answer_in_time()),
                Ok(Ok(rows)) => {
                    lent.give_back();
                    return Ok(Answer { rows, sent, doubt });
                }
                Ok(Err(cause)) => cause,
            };
            match failure::remedy(&cause) {
                Remedy::Again if Clock::machine().now() < give_up => {
                    lent.give_back();
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(..=20))).await;
                }
                Remedy::Reconnect => {
                    lent.was_lost();
                    let lost = failure::of_call(cause);
                    if reconnected == 2 {
                        return Err(lost);
                    }
                    reconnected += 1;
                    doubt = Some(lost);
                }
                _ => {
                    lent.give_back();
                    return Err(failure::of_call(cause));
                }
            }
        }
    }

    /// Statements that are carried out one by one, on one connection.
    pub(crate) async fn run(&self, lane: Lane, statements: &[String]) -> Result<()> {
        let mut lent = self.lend(lane).await?;
        // Others may be at it, and it is done once only.
        let limit = self.settings.timeout + Duration::from_secs(30);
        for statement in statements {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let done = lent.connection.query_drop(statement.as_str());
            match tokio::time::timeout(limit, done).await {
                Ok(done) => done.map_err(failure::of_call)?,
                Err(_) => return Err(failure::no_answer_in_time()),
            }
        }
        lent.give_back();
        Ok(())
    }
}
