//! Locks in one MySQL or MariaDB database, by calls of its procedures: what the engine in `engine/sql/engine.rs` needs of a database.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::{Pool, Row};

use super::client::Client;
use super::config::MysqlConfig;
use super::doctor;
use super::failure;
use super::health;
use super::listener;
use super::protocol;
use super::schema;
use crate::claim::{Claim, Ttl};
use crate::clock::Moment;
use crate::engine::doctor::Finding;
use crate::engine::sql::records::Write;
use crate::engine::sql::rows::{self, Cells, RenewalRow};
use crate::engine::sql::store::{Decided, Lane, Outcome, Renewed, RowStore};
use crate::engine::wakeup::listener::Listener;
use crate::engine::{LockInfo, Query, SqlSupport};
use crate::error::Result;
use crate::guard::Key;
use crate::guard::sql::Dialect;
use crate::name::LockName;

#[derive(Debug)]
pub(super) struct MysqlStore {
    client: Arc<Client>,
    location: String,
    listener: Arc<Listener>,
    found: Vec<Finding>,
}

impl MysqlStore {
    /// Connects, checks whether the server can be trusted with locks, and creates the tables and procedures if they are missing.
    pub(super) async fn connect(config: MysqlConfig, pool: Option<Pool>) -> Result<Self> {
        let client = match pool {
            Some(pool) => Client::over(&config, pool).await?,
            None => Client::new(&config),
        };
        let found = health::check(&client).await?;
        schema::ensure(&client).await?;
        Ok(Self {
            client: Arc::new(client),
            location: config.location(),
            listener: listener::start(&config)?,
            found,
        })
    }

    /// A renewal has cut the lock short: notifies the first waiter, which expects it to last longer. If the call fails, that waiter looks again when the lock
    /// would have ended.
    async fn announce_shortened(&self, claim: &RenewalRow<'_>) {
        let parameters = protocol::look(claim, self.listener.id());
        let looked = self.client.call(Lane::Upkeep, protocol::LOOK, parameters);
        if let Ok(decided) = looked.await.and_then(protocol::decided)
            && let Some(now) = decided.now
        {
            self.listener.answered(decided.sent, now, decided.notices);
        }
    }
}

#[async_trait]
impl RowStore for MysqlStore {
    type Row = Row;

    const SCHEME: &'static str = "mysql";
    /// At once, so that processes that do not live for long sweep too.
    const FIRST_SWEEP: Duration = Duration::ZERO;

    fn location(&self) -> &str {
        &self.location
    }

    fn found(&self) -> &[Finding] {
        &self.found
    }

    async fn findings(&self, ttl: Ttl) -> Vec<Finding> {
        doctor::findings(&self.client, ttl).await
    }

    fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    fn listener_timeout(&self) -> Duration {
        self.client.config().timeout
    }

    async fn acquire(&self, claim: &Claim, number: Option<u64>) -> Result<Decided<Outcome>> {
        let parameters = protocol::acquire(claim, self.listener.id(), number);
        let acquired = self
            .client
            .call(Lane::Attempts, protocol::ACQUIRE, parameters);
        let answer = acquired.await?;
        let row = answer.first()?;
        let count = |column| {
            let number = row.number(column)?.unwrap_or(0);
            Ok::<_, crate::error::Error>(usize::try_from(number).unwrap_or(0))
        };
        let (rank, holders) = (count(4)?, count(5)?);
        Ok(Decided {
            what: rows::outcome(row, claim, rank == 0, Some(holders + rank))?,
            sent: answer.sent,
            now: row.number(2)?.map(i64::unsigned_abs),
            notices: protocol::notices(row, 6)?,
            maybe_applied: None,
        })
    }

    async fn release(&self, claim: &Claim) -> Result<Decided<bool>> {
        let parameters = protocol::release(claim, self.listener.id());
        let released = self
            .client
            .call(Lane::Upkeep, protocol::RELEASE, parameters);
        protocol::decided(released.await?)
    }

    async fn force_release(&self, name: &LockName) -> Result<Decided<bool>> {
        let parameters = protocol::force_release(name, self.listener.id());
        let broken = self
            .client
            .call_once(Lane::Upkeep, protocol::FORCE_RELEASE, parameters);
        protocol::decided(broken.await?)
    }

    async fn renew(&self, claims: &[RenewalRow<'_>]) -> Result<(Moment, Vec<Renewed>)> {
        let batch = vec![protocol::renew(claims).into()];
        let answer = self
            .client
            .call(Lane::Upkeep, protocol::RENEW, batch)
            .await?;
        let mut renewed = Vec::with_capacity(answer.rows.len());
        for row in &answer.rows {
            let nth = row.number(0)?.unwrap_or(0) - 1;
            let nth = usize::try_from(nth).unwrap_or(usize::MAX);
            let is_shorter = row.number(2)? == Some(1);
            if is_shorter && let Some(claim) = claims.get(nth) {
                self.announce_shortened(claim).await;
            }
            let token = rows::token(row.number(1)?.unwrap_or(-1));
            renewed.push(Renewed { nth, token });
        }
        Ok((answer.sent, renewed))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        // A prefix is compared as bytes: no letter in it has a special meaning, as with LIKE.
        let (asked, text) = match query {
            Query::Name(name) => ("name = ?", name.as_str()),
            Query::Prefix(prefix) => ("LEFT(name, LENGTH(?)) = ?", prefix.as_str()),
        };
        let parameters = || asked.matches('?').map(|_| text.as_bytes().into()).collect();
        let client = &self.client;
        let holders = protocol::holders(asked);
        let holders = client.call(Lane::Attempts, &holders, parameters()).await?;
        let waiters = protocol::waiters(asked);
        let waiters = client.call(Lane::Attempts, &waiters, parameters()).await?;
        rows::locks(&holders.rows, &waiters.rows)
    }

    async fn sweep(&self) -> bool {
        self.client.sweep().await
    }

    fn close_unused(&self) {
        self.client.close_unused();
    }

    async fn read_record(&self, key: &Key, with_value: bool) -> Result<Row> {
        let parameters = vec![with_value.into(), key.as_str().as_bytes().into()];
        let look = protocol::read_record();
        let read = self.client.call(Lane::Attempts, &look, parameters);
        read.await?.only()
    }

    async fn write_record(&self, write: &Write<'_>) -> Result<bool> {
        let parameters = protocol::write_record(write);
        let client = &self.client;
        let written = client.call_once(Lane::Attempts, protocol::WRITE_RECORD, parameters);
        Ok(written.await?.first()?.number(0)? == Some(1))
    }

    fn requests(&self) -> u64 {
        self.client.calls_sent()
    }
}

#[async_trait]
impl SqlSupport for MysqlStore {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn check_lease(&self) -> String {
        self.client.named("CALL leasehold_check_lease(?, ?)")
    }

    async fn execute(&self, statements: &[String]) -> Result<()> {
        let done = self.client.run(Lane::Attempts, statements).await;
        done.map_err(failure::of_users_table)
    }
}
