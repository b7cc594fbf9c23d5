//! A few connections to one server, and how the functions are called over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime,
    Timeouts,
};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Error as Cause, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::PostgresConfig;
use super::failure::{self, Remedy};
use super::protocol::{Calls, Parameters};
use super::shared_session::{Borrowed, SharedSession};
use super::tls;
use crate::clock::{Clock, Moment};
use crate::engine::sql::engine::UNUSED;
use crate::engine::sql::retry::Tries;
use crate::engine::sql::rows::Cells;
use crate::engine::sql::store::{Answer, Lane};
use crate::engine::sql::turns::{Turn, Turns};
use crate::error::Result;
use crate::url::invalid;

/// One of the functions: how it is called.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) sql: String,
    pub(crate) types: &'static [Type],
    /// Whether it may be carried out twice.
    pub(crate) may_repeat: bool,
    /// Whether it may use the listener's session. If there is no answer within a second, it is repeated on another connection.
    pub(crate) may_borrow: bool,
    /// Whether it has a parameter, after those of the caller, for how long the server may wait for locks.
    pub(crate) is_patient: bool,
}

pub(crate) struct Client {
    config: PostgresConfig,
    calls: Calls,
    tls: MakeRustlsConnect,
    pool: Pool,
    /// Whether the pool is the program's own, which it may use for other things as well.
    is_given: bool,
    turns: Turns,
    /// The listener's session, if calls may use it.
    shared: Option<Arc<SharedSession>>,
    /// Whether statements are prepared once for each connection: not if a pooler gives each transaction another session.
    prepares: AtomicBool,
    sent: AtomicU64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// How long a call waits for an answer in the listener's session before it is repeated in a session of its own.
const STUCK: Duration = Duration::from_secs(1);

/// For how many milliseconds a call may wait for locks in the listener's session, before it is repeated in a session of its own.
const BRIEF: i64 = 200;

impl Client {
    pub(crate) fn new(config: &PostgresConfig) -> Result<Self> {
        let tls = tls::connector(&config.trust)?;
        let pool = pool(config, &tls)?;
        Ok(Self::of(config, tls, pool, false))
    }

    /// Over the connections of the program's own pool.
    pub(crate) fn over(config: &PostgresConfig, pool: Pool) -> Result<Self> {
        let size = pool.status().max_size;
        if pool.is_closed() || size < 2 {
            let what = match pool.is_closed() {
                true => "the pool is closed".to_owned(),
                false => format!("the pool has {size} connection(s) at most"),
            };
            return Err(invalid(what).advise(
                "give an open pool with a max_size of 2 or more: renewals must not wait behind attempts",
            ));
        }
        let tls = tls::connector(&config.trust)?;
        Ok(Self::of(config, tls, pool, true))
    }

    fn of(config: &PostgresConfig, tls: MakeRustlsConnect, pool: Pool, is_given: bool) -> Self {
        Self {
            turns: Turns::new(pool.status().max_size, config.timeout),
            pool,
            is_given,
            shared: None,
            calls: Calls::in_schema(&config.schema),
            config: config.clone(),
            tls,
            prepares: AtomicBool::new(true),
            sent: AtomicU64::new(0),
        }
    }

    pub(crate) fn schema(&self) -> &str {
        &self.config.schema
    }

    pub(crate) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.config.schema)
    }

    pub(crate) fn config(&self) -> &PostgresConfig {
        &self.config
    }

    pub(crate) fn calls_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Calls may use the session of the listener.
    pub(crate) fn share(&mut self, session: Arc<SharedSession>) {
        self.shared = Some(session);
    }

    /// Closes idle connections where calls can use the listener's session: all of them before the listener connects, so that the process has no more
    /// connections than it needs; after that, those that have been idle for a while.
    pub(crate) fn make_room(&self) {
        let Some(shared) = &self.shared else {
            return;
        };
        let is_listening = shared.is_open();
        let is_kept = |used: Duration| is_listening && used < UNUSED;
        self.pool.retain(|_, metrics| is_kept(metrics.last_used()));
    }

    /// Statements are not prepared any more.
    pub(crate) fn stop_preparing(&self) {
        self.prepares.store(false, Ordering::Relaxed);
    }

    /// An idle connection; or the listener's session, if no other call uses it; or a new connection. If the server accepts no more connections, the first one that
    /// becomes free.
    async fn connection(&self, lane: Lane, may_borrow: bool) -> Result<Connection<'_>> {
        let turn = self.turns.take(lane).await?;
        let deadline = Clock::machine().now() + self.config.timeout;
        let mut may_borrow = may_borrow;
        loop {
            if let Some(idle) = self.idle().await {
                return Ok(Connection::pooled(idle, turn));
            }
            if may_borrow
                && let Some(shared) = &self.shared
                && let Some(borrowed) = shared.borrow().await
            {
                return Ok(Connection::Borrowed(borrowed));
            }
            // The program's own pool may have no time limits.
            let limit = self.config.timeout + self.config.connect_timeout;
            let error = match tokio::time::timeout(limit, self.pool.get()).await {
                Ok(Ok(pooled)) => return Ok(Connection::pooled(pooled, turn)),
                Ok(Err(cause)) => failure::of_pool(cause, self.pool.status().max_size),
                Err(_) => match self.pool.status() {
                    status if status.size < status.max_size => failure::no_connection_in_time(),
                    status => failure::all_busy(status.max_size),
                },
            };
            let late = Clock::machine().now() > deadline;
            if late || !error.is_busy() || !self.has_another() {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(5..=50))).await;
            may_borrow = true;
        }
    }

    /// A connection that exists and is idle. (The program's own pool decides for itself.)
    async fn idle(&self) -> Option<Object> {
        if self.is_given || self.pool.status().available == 0 {
            return None;
        }
        let at_once = Timeouts {
            wait: Some(Duration::ZERO),
            ..self.pool.timeouts()
        };
        self.pool.timeout_get(&at_once).await.ok()
    }

    /// Whether there is a connection that may become free.
    fn has_another(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.is_open()) || self.pool.status().size > 0
    }

    /// Calls a function. The call is repeated if it was rolled back because of others, or if the connection was lost and it may be carried out twice.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        call: impl Fn(&Calls) -> &Call,
        parameters: Parameters<'_>,
    ) -> Result<Answer<Row>> {
        let call = call(&self.calls);
        let mut tries = Tries::new(self.config.timeout, call.may_repeat);
        let mut may_borrow = call.may_borrow;
        loop {
            let connection = match self.connection(lane, may_borrow).await {
                Ok(connection) => connection,
                Err(error) => {
                    tries.not_connected(error).await?;
                    continue;
                }
            };
            self.sent.fetch_add(1, Ordering::Relaxed);
            let sent = tries.begin();
            // The listener needs its session for the next beat.
            let is_brief = may_borrow && matches!(connection, Connection::Borrowed(_));
            let patience = match is_brief {
                true => self.config.patience().min(BRIEF),
                false => self.config.patience(),
            };
            let connection = InUse(Some(connection));
            let prepared = self.prepares.load(Ordering::Relaxed);
            let limit = match is_brief && call.may_repeat {
                true => self.config.limit().min(STUCK),
                false => self.config.limit(),
            };
            let answer = {
                let mut parameters = parameters.to_vec();
                if call.is_patient {
                    parameters.push(&patience);
                }
                let asked = query(connection.get()?, call, &parameters, prepared);
                tokio::time::timeout(limit, asked).await
            };
            let Ok(answer) = answer else {
                if let Some(connection) = connection.done() {
                    self.discard(connection, sent);
                }
                if is_brief && call.may_repeat {
                    // Only the listener's session may be stuck.
                    may_borrow = false;
                    tries.maybe_applied = Some(failure::no_answer_in_time());
                    continue;
                }
                return Err(failure::no_answer_in_time());
            };
            let connection = connection.done();
            let cause = match answer {
                Ok(rows) => return Ok(tries.answered(rows, sent)),
                Err(cause) => cause,
            };
            match failure::remedy(&cause) {
                Remedy::Again => {
                    drop(connection);
                    tries.rolled_back(failure::of_call(cause)).await?;
                }
                Remedy::Unprepare if prepared => {
                    self.stop_preparing();
                    close(connection);
                }
                Remedy::UnprepareMaybeApplied if prepared && call.may_repeat => {
                    self.stop_preparing();
                    close(connection);
                    tries.maybe_applied = Some(failure::of_call(cause));
                }
                Remedy::Patience if is_brief => may_borrow = false,
                Remedy::Reconnect => {
                    // Should it be the listener's session that was lost, that is noticed a moment later.
                    may_borrow = false;
                    close(connection);
                    tries.lost(failure::of_call(cause))?;
                }
                _ => return Err(tries.refused(failure::of_call(cause))),
            }
        }
    }

    /// Asks a query once.
    pub(crate) async fn ask(
        &self,
        lane: Lane,
        query: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Asked> {
        let connection = self.connection(lane, true).await?;
        let asked = connection.client().query_typed(query, parameters);
        let (sent, answer) = self.within(self.config.limit(), asked).await;
        self.answered(connection, sent, answer)
    }

    /// Asks queries without parameters, one after the other on one connection.
    pub(crate) async fn ask_in_turn<const N: usize>(
        &self,
        lane: Lane,
        queries: [&str; N],
    ) -> Result<std::result::Result<[Vec<Row>; N], Cause>> {
        let connection = self.connection(lane, true).await?;
        let asked = async {
            let mut answers = [const { Vec::new() }; N];
            for (answer, query) in answers.iter_mut().zip(queries) {
                *answer = connection.client().query_typed(query, &[]).await?;
            }
            Ok(answers)
        };
        let (sent, answer) = self.within(self.config.limit(), asked).await;
        self.answered(connection, sent, answer)
    }

    /// Runs several statements as one transaction. The inner error is the server's own.
    pub(crate) async fn run_script(
        &self,
        lane: Lane,
        script: &str,
    ) -> Result<std::result::Result<(), Cause>> {
        let connection = self.connection(lane, false).await?;
        // Another process may be running the same script, and it is rarely run.
        let limit = self.config.timeout + Duration::from_secs(30);
        let run = connection.client().batch_execute(script);
        let (sent, answer) = self.within(limit, run).await;
        self.answered(connection, sent, answer)
    }

    /// When the request left, and its answer if there is one within the limit.
    async fn within<T>(
        &self,
        limit: Duration,
        asked: impl Future<Output = T>,
    ) -> (Moment, Option<T>) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let sent = Clock::machine().now();
        (sent, tokio::time::timeout(limit, asked).await.ok())
    }

    /// The answer to a request that left at `sent`. If there is none, the connection is discarded.
    fn answered<T>(
        &self,
        connection: Connection<'_>,
        sent: Moment,
        answer: Option<T>,
    ) -> Result<T> {
        answer.ok_or_else(|| {
            self.discard(connection, sent);
            failure::no_answer_in_time()
        })
    }

    /// Closes a connection on which no answer came, and cancels its query. Connections that have been idle since then are closed too: if one was lost in silence,
    /// as when a firewall forgets it, all were.
    fn discard(&self, connection: Connection<'_>, sent: Moment) {
        let silence = Clock::machine().now().since(sent);
        self.pool.retain(|_, metrics| metrics.last_used() < silence);
        let cancel = connection.client().cancel_token();
        if let (Connection::Borrowed(_), Some(shared)) = (&connection, &self.shared) {
            shared.withdraw();
        }
        connection.close();
        let tls = self.tls.clone();
        let patience = self.config.connect_timeout;
        tokio::spawn(async move {
            let _ = tokio::time::timeout(patience, cancel.cancel_query(tls)).await;
        });
    }
}

/// A connection on which an answer is awaited. If it is dropped before the answer is there, it is closed: a pooler could give that answer to the next call.
struct InUse<'a>(Option<Connection<'a>>);

impl<'a> InUse<'a> {
    fn get(&self) -> Result<&ClientWrapper> {
        let connection = self.0.as_ref().ok_or_else(failure::no_answer_in_time)?;
        Ok(connection.client())
    }

    fn done(mut self) -> Option<Connection<'a>> {
        self.0.take()
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        close(self.0.take());
    }
}

/// A connection for one call.
#[derive(Debug)]
enum Connection<'a> {
    Pooled {
        connection: Box<Object>,
        _turn: Turn<'a>,
    },
    /// Never with a pooler in between, so that each call gets its own answer.
    Borrowed(Borrowed),
}

impl<'a> Connection<'a> {
    fn pooled(connection: Object, turn: Turn<'a>) -> Self {
        Self::Pooled {
            connection: Box::new(connection),
            _turn: turn,
        }
    }

    fn client(&self) -> &ClientWrapper {
        match self {
            Connection::Pooled { connection, .. } => connection,
            Connection::Borrowed(borrowed) => &borrowed.client,
        }
    }

    /// Closes it, unless it is the listener's: that notices by itself whether its session has ended.
    fn close(self) {
        if let Connection::Pooled { connection, .. } = self {
            drop(Object::take(*connection));
        }
    }
}

/// One cell of an answer.
pub(crate) fn cell<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column)
        .map_err(|cause| failure::nonsense(&cause.to_string()))
}

impl Cells for Row {
    fn text(&self, column: usize) -> Result<Option<String>> {
        cell(self, column)
    }

    fn number(&self, column: usize) -> Result<Option<i64>> {
        match self.columns().get(column).map(|column| column.type_()) {
            Some(&Type::INT4) => Ok(cell::<Option<i32>>(self, column)?.map(i64::from)),
            Some(&Type::BOOL) => Ok(cell::<Option<bool>>(self, column)?.map(i64::from)),
            _ => cell(self, column),
        }
    }

    fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>> {
        cell(self, column)
    }
}

fn close(connection: Option<Connection<'_>>) {
    if let Some(connection) = connection {
        connection.close();
    }
}

async fn query(
    connection: &ClientWrapper,
    call: &Call,
    parameters: Parameters<'_>,
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

/// The answer to a query, or the server's own error.
pub(crate) type Asked = std::result::Result<Vec<Row>, Cause>;

fn pool(config: &PostgresConfig, tls: &MakeRustlsConnect) -> Result<Pool> {
    let manager = Manager::from_config(
        config.server(),
        tls.clone(),
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        },
    );
    let timeouts = Timeouts {
        wait: Some(config.timeout),
        create: Some(config.connect_timeout),
        recycle: None,
    };
    Pool::builder(manager)
        .max_size(config.pool)
        .queue_mode(QueueMode::Lifo)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|cause| failure::nonsense(&cause.to_string()))
}
