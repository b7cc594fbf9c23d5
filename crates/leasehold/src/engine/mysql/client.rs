//! A few connections to one server, and how the procedures are called over them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, DriverError, Error as Cause, Params, Row, Value};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::config::{MysqlConfig, SESSION, Tls};
use super::failure::{self, Remedy};
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::sql::engine::UNUSED;
use crate::engine::sql::retry::Tries;
use crate::engine::sql::rows::Cells;
use crate::engine::sql::store::{Answer, Lane};
use crate::engine::sql::turns::{Turn, Turns};
use crate::engine::tls;
use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::url::invalid;

pub(crate) struct Client {
    config: MysqlConfig,
    pool: Pool,
    turns: Turns,
    /// The program's own pool, if it was given one: all connections come from there.
    given: Option<mysql_async::Pool>,
    sent: AtomicU64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

struct Pool {
    size: usize,
    permits: Semaphore,
    /// Each with when it was returned, the latest last.
    idle: Mutex<Vec<(Moment, Conn)>>,
}

/// A connection for one call. If it is dropped before it was put back, it is closed, since a transaction may still be open in it. (The program's own pool resets
/// connections itself.)
struct Lent<'a> {
    connection: Conn,
    /// Whether it is from the program's own pool.
    is_given: bool,
    pool: &'a Pool,
    _turn: Turn<'a>,
    _permit: SemaphorePermit<'a>,
}

impl Lent<'_> {
    fn put_back(self) {
        if !self.is_given {
            let now = Clock::machine().now();
            self.pool.idle.lock().push((now, self.connection));
        }
    }

    /// The server has closed it, and so probably the idle ones too.
    fn was_lost(self) {
        self.pool.idle.lock().clear();
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

    /// Whether there are connections, or one is about to be made.
    fn has_any(&self) -> bool {
        self.permits.available_permits() < self.size || !self.idle.lock().is_empty()
    }

    fn idle(&self) -> Option<(Conn, SemaphorePermit<'_>)> {
        let permit = self.permits.try_acquire().ok()?;
        let (_, connection) = self.idle.lock().pop()?;
        Some((connection, permit))
    }

    /// Closes those that nobody has used since then, but leaves so many.
    fn close_unused_since(&self, then: Moment, leave: usize) {
        let mut idle = self.idle.lock();
        let unused = idle.partition_point(|(used, _)| *used < then);
        let count = unused.min(idle.len().saturating_sub(leave));
        let closed: Vec<_> = idle.drain(..count).collect();
        drop(idle);
        drop(closed);
    }
}

/// How much longer than the server's own time limits to wait for an answer.
const GRACE: Duration = Duration::from_millis(500);

/// A new connection.
pub(crate) async fn connect(config: &MysqlConfig) -> Result<Conn> {
    let connecting = async {
        match &config.tls {
            Tls::No => Conn::new(config.opts(None)).await,
            Tls::Yes(ssl) => Conn::new(config.opts(Some(ssl))).await,
            Tls::Prefer(ssl) => match Conn::new(config.opts(Some(ssl))).await {
                Err(Cause::Driver(DriverError::NoClientSslFlagFromServer)) => {
                    Conn::new(config.opts(None)).await
                }
                connected => connected,
            },
        }
    };
    tls::install();
    match tokio::time::timeout(config.connect_timeout, connecting).await {
        Ok(Err(cause)) if matches!(config.tls, Tls::No) => Err(failure::of_plain_connection(cause)),
        Ok(connected) => connected.map_err(failure::of_connection),
        Err(_) => Err(failure::no_connection_in_time()),
    }
}

/// A connection of the program's own pool, which resets it when it is returned.
async fn take(pool: &mysql_async::Pool, config: &MysqlConfig) -> Result<Conn> {
    let taking = async {
        let taken = pool.get_conn().await;
        let mut taken = taken.map_err(failure::of_connection)?;
        check_pool(&taken)?;
        for setting in SESSION {
            let set = taken.query_drop(setting).await;
            set.map_err(failure::of_connection)?;
        }
        Ok(taken)
    };
    let taken = tokio::time::timeout(config.connect_timeout, taking).await;
    taken.unwrap_or_else(|_| Err(failure::none_given_in_time()))
}

/// The same, in the database of the configuration: the program may have chosen another one, and a reset does not change that.
async fn take_here(pool: &mysql_async::Pool, config: &MysqlConfig) -> Result<Conn> {
    let mut taken = take(pool, config).await?;
    let here = format!("USE `{}`", config.database().replace('`', "``"));
    match tokio::time::timeout(config.connect_timeout, taken.query_drop(here)).await {
        Ok(chosen) => chosen.map_err(failure::of_connection)?,
        Err(_) => return Err(failure::none_given_in_time()),
    }
    Ok(taken)
}

/// Whether the pool that it is from can be used.
fn check_pool(connection: &Conn) -> Result<()> {
    let pool = connection.opts().pool_opts();
    match (pool.constraints().max(), pool.reset_connection()) {
        (..2, _) => Err(invalid("the pool has 1 connection at most").advise(
            "give a pool of 2 or more (PoolConstraints): renewals must not wait behind attempts",
        )),
        (_, false) => Err(
            invalid("the pool does not reset connections that are returned").advise(
                "leave PoolOpts::with_reset_connection on: leasehold needs settings that others do not expect",
            ),
        ),
        (_, true) => Ok(()),
    }
}

/// Checks that a connection of a pool leads to the same server and database as the configuration: both must see the same user-level lock.
async fn check_target(connection: &mut Conn, config: &MysqlConfig) -> Result<()> {
    // Nothing but digits and letters.
    let lock = format!("'leasehold-{}'", ClaimId::random()?.reveal());
    let mut own = connect(config).await?;
    let here = ask_target(&mut own, &format!("GET_LOCK({lock}, 0)")).await?;
    let there = ask_target(connection, &format!("IS_USED_LOCK({lock})")).await?;
    let what = match (
        there.is_locked && here.is_locked,
        here.database == there.database,
    ) {
        (true, true) => return Ok(()),
        (true, false) => format!(
            "the pool leads to {}, the configuration to {}",
            there.database, here.database
        ),
        (false, _) => "the pool leads to another server than the configuration".to_owned(),
    };
    Err(invalid(what)
        .advise("give the configuration the address and the database that the pool has"))
}

struct Target {
    is_locked: bool,
    database: String,
}

async fn ask_target(connection: &mut Conn, lock: &str) -> Result<Target> {
    let question = format!("SELECT {lock}, DATABASE()");
    let row = connection.query_first::<(Option<i64>, Option<String>), _>(question);
    let row = row.await.map_err(failure::of_call)?;
    let (lock, database) = row.ok_or_else(|| failure::nonsense("no row"))?;
    Ok(Target {
        is_locked: lock.is_some_and(|lock| lock > 0),
        database: match database {
            Some(name) => format!("the database {name:?}"),
            None => "no database".to_owned(),
        },
    })
}

impl Client {
    pub(crate) fn new(config: &MysqlConfig) -> Self {
        Self::of(config, config.pool)
    }

    fn of(config: &MysqlConfig, size: usize) -> Self {
        Self {
            pool: Pool::of(size),
            turns: Turns::new(size, config.timeout),
            given: None,
            config: config.clone(),
            sent: AtomicU64::new(0),
        }
    }

    /// Over the connections of the program's own pool.
    pub(crate) async fn over(config: &MysqlConfig, pool: mysql_async::Pool) -> Result<Self> {
        let taken = take(&pool, config).await;
        let mut taken =
            taken.map_err(|error| error.with_context("over the pool that was given"))?;
        let size = taken.opts().pool_opts().constraints().max();
        let compared = check_target(&mut taken, config);
        let limit = config.connect_timeout + config.timeout;
        let compared = tokio::time::timeout(limit, compared).await;
        compared.unwrap_or_else(|_| Err(failure::no_answer_in_time()))?;
        Ok(Self {
            given: Some(pool),
            ..Self::of(config, size)
        })
    }

    pub(crate) fn config(&self) -> &MysqlConfig {
        &self.config
    }

    pub(crate) fn calls_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The statement with the names of this engine's tables and procedures.
    pub(crate) fn named(&self, sql: &str) -> String {
        sql.replace("leasehold_", &format!("{}_", self.config.table))
    }

    async fn lend(&self, lane: Lane) -> Result<Lent<'_>> {
        let turn = self.turns.take(lane).await?;
        let pool = &self.pool;
        let permit = tokio::time::timeout(self.config.timeout, pool.permits.acquire()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(failure::all_busy(pool.size));
        };
        let idle = pool.idle.lock().pop();
        let (connection, permit) = match (&self.given, idle) {
            (Some(given), _) => (take_here(given, &self.config).await?, permit),
            (None, Some((_, connection))) => (connection, permit),
            (None, None) => match connect(&self.config).await {
                Ok(connection) => (connection, permit),
                Err(refused) if refused.is_busy() => {
                    drop(permit);
                    self.make_do(refused).await?
                }
                Err(error) => return Err(error),
            },
        };
        Ok(self.lent(connection, turn, permit))
    }

    fn lent<'a>(
        &'a self,
        connection: Conn,
        turn: Turn<'a>,
        permit: SemaphorePermit<'a>,
    ) -> Lent<'a> {
        Lent {
            connection,
            is_given: self.given.is_some(),
            pool: &self.pool,
            _turn: turn,
            _permit: permit,
        }
    }

    /// The server accepts no more connections: waits for one that exists to become free.
    async fn make_do(&self, refused: Error) -> Result<(Conn, SemaphorePermit<'_>)> {
        let deadline = Clock::machine().now() + self.config.timeout;
        while Clock::machine().now() < deadline && self.pool.has_any() {
            if let Some(idle) = self.pool.idle() {
                return Ok(idle);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(refused)
    }

    /// Makes a call that may be carried out twice. It is repeated if it was rolled back because of others, or if the connection was lost.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        sql: &str,
        parameters: Vec<Value>,
    ) -> Result<Answer<Row>> {
        self.ask(lane, sql, parameters, true).await
    }

    /// Makes a call that must not be carried out twice. If the connection is lost with the answer, its effect is unknown.
    pub(crate) async fn call_once(
        &self,
        lane: Lane,
        sql: &str,
        parameters: Vec<Value>,
    ) -> Result<Answer<Row>> {
        // So that a connection that was lost while it was idle is found out before.
        self.call(lane, "DO 0", Vec::new()).await?;
        self.ask(lane, sql, parameters, false).await
    }

    /// Closes connections that are not needed while this process waits. One stays, with which an offer can be renewed even if the server accepts no more.
    pub(crate) fn close_unused(&self) {
        let now = Clock::machine().now();
        self.pool.close_unused_since(now - UNUSED, 1);
    }

    /// Sweeps if a connection is idle; false if none is. If it fails, other processes sweep.
    pub(crate) async fn sweep(&self) -> bool {
        let lent = match &self.given {
            Some(_) => self.lend(Lane::Attempts).await.ok(),
            None => {
                let idle = self.pool.idle();
                idle.map(|(connection, permit)| self.lent(connection, None, permit))
            }
        };
        let Some(mut lent) = lent else {
            return false;
        };
        self.sent.fetch_add(1, Ordering::Relaxed);
        let sweep = self.named("CALL leasehold_sweep()");
        let swept = lent.connection.query_drop(sweep);
        if let Ok(Ok(())) = tokio::time::timeout(self.config.timeout, swept).await {
            lent.put_back();
        }
        true
    }

    async fn ask(
        &self,
        lane: Lane,
        sql: &str,
        parameters: Vec<Value>,
        may_repeat: bool,
    ) -> Result<Answer<Row>> {
        let parameters = match parameters.is_empty() {
            true => Params::Empty,
            false => Params::Positional(parameters),
        };
        let sql = &self.named(sql);
        let mut tries = Tries::new(self.config.timeout, may_repeat);
        loop {
            let mut lent = match self.lend(lane).await {
                Ok(lent) => lent,
                Err(error) => {
                    tries.not_connected(error).await?;
                    continue;
                }
            };
            self.sent.fetch_add(1, Ordering::Relaxed);
            let sent = tries.begin();
            let asked = lent
                .connection
                .exec::<Row, _, _>(sql.as_str(), parameters.clone());
            let answer = tokio::time::timeout(self.config.timeout + GRACE, asked).await;
            let cause = match answer {
                Err(_) => {
                    // If it was lost in silence, as when a firewall forgets it, the others were too.
                    self.pool.close_unused_since(sent, 0);
                    return Err(failure::no_answer_in_time());
                }
                Ok(Ok(rows)) => {
                    lent.put_back();
                    return Ok(tries.answered(rows, sent));
                }
                Ok(Err(cause)) => cause,
            };
            match failure::remedy(&cause) {
                Remedy::Again => {
                    lent.put_back();
                    tries.rolled_back(failure::of_call(cause)).await?;
                }
                Remedy::Reconnect => {
                    lent.was_lost();
                    tries.lost(failure::of_call(cause))?;
                }
                Remedy::None => {
                    lent.put_back();
                    return Err(tries.refused(failure::of_call(cause)));
                }
            }
        }
    }

    /// Runs statements one after the other on one connection.
    pub(crate) async fn run(&self, lane: Lane, statements: &[String]) -> Result<()> {
        let mut lent = self.lend(lane).await?;
        // Another process may be running the same statements, and they are rarely run.
        let limit = self.config.timeout + Duration::from_secs(30);
        for statement in statements {
            self.sent.fetch_add(1, Ordering::Relaxed);
            let done = lent.connection.query_drop(statement.as_str());
            match tokio::time::timeout(limit, done).await {
                Ok(done) => done.map_err(failure::of_call)?,
                Err(_) => return Err(failure::no_answer_in_time()),
            }
        }
        lent.put_back();
        Ok(())
    }
}

impl Cells for Row {
    fn text(&self, column: usize) -> Result<Option<String>> {
        let bytes = self.bytes(column)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn number(&self, column: usize) -> Result<Option<i64>> {
        cell(self, column)
    }

    fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>> {
        cell(self, column)
    }
}

fn cell<T: FromValue>(row: &Row, column: usize) -> Result<T> {
    match row.get_opt(column) {
        Some(Ok(value)) => Ok(value),
        Some(Err(cause)) => Err(failure::nonsense(&cause.to_string())),
        None => Err(failure::nonsense("too few columns")),
    }
}
