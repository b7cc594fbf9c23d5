//! Locks in one PostgreSQL database, by calls of its functions: what the engine in `engine/sql/engine.rs` needs of a database.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use deadpool_postgres::Pool;
use tokio_postgres::Row;

use super::client::{Client, cell};
use super::config::{Pooler, PostgresConfig};
use super::doctor;
use super::failure;
use super::health;
use super::listener::PostgresListener;
use super::protocol;
use super::schema;
use crate::claim::{Claim, Ttl};
use crate::clock::Moment;
use crate::engine::doctor::Finding;
use crate::engine::sql::records::Write;
use crate::engine::sql::rows::{self, RenewalRow, millis, mode_number, signature};
use crate::engine::sql::store::{Decided, Lane, Outcome, Renewed, RowStore};
use crate::engine::wakeup::listener::Listener;
use crate::engine::{LockInfo, Query, SqlSupport};
use crate::error::Result;
use crate::guard::Key;
use crate::guard::sql::Dialect;
use crate::name::LockName;

/// How long `close` may take. Rows that are left behind are swept by other processes.
const CLOSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct PostgresStore {
    client: Arc<Client>,
    location: String,
    listener: Arc<PostgresListener>,
    found: Vec<Finding>,
}

impl PostgresStore {
    /// Connects, checks whether the server can be trusted with locks, and creates the tables and functions if they are missing.
    pub(super) async fn connect(config: PostgresConfig, pool: Option<Pool>) -> Result<Self> {
        let has_own_pool = pool.is_some();
        let mut client = match pool {
            Some(pool) => Client::over(&config, pool)?,
            None => Client::new(&config)?,
        };
        let found = health::check(&config).await?;
        if has_own_pool {
            health::check_pool(&client, &found).await?;
        }
        // Whether there is a pooler between the program's own pool and the server is not known.
        if found.pooled || has_own_pool && config.pooler != Pooler::None {
            client.stop_preparing();
        }
        schema::ensure(&client).await?;
        let listens_elsewhere = config.listens_elsewhere();
        let listener = PostgresListener::to(&config, found.pooled && !listens_elsewhere)?;
        if !found.pooled && !listens_elsewhere && !has_own_pool {
            client.share(Arc::clone(&listener.session));
        }
        Ok(Self {
            client: Arc::new(client),
            location: config.location(),
            listener,
            found: found.findings,
        })
    }
}

#[async_trait]
impl RowStore for PostgresStore {
    type Row = Row;

    const SCHEME: &'static str = "postgres";
    const FIRST_SWEEP: Duration = Duration::from_secs(1);

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
        &self.listener.common
    }

    /// Twice the limit, since the listener may be in the middle of an attempt to connect that fails.
    fn listener_timeout(&self) -> Duration {
        self.client.config().limit() * 2
    }

    /// An offer that was found by polling may be nearly over, so the waiter makes an attempt, which grants its whole TTL.
    fn relies_on_offers(&self) -> bool {
        !self.listener().fallback.polls()
    }

    async fn acquire(&self, claim: &Claim, number: Option<u64>) -> Result<Decided<Outcome>> {
        let listener = number.map(|_| self.listener().id());
        let leaves = (!claim.queues).then(|| self.listener().id());
        let number = number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        let answer = self
            .client
            .call(
                Lane::Attempts,
                |calls| &calls.acquire,
                &[
                    &claim.name.as_str(),
                    &signature(&claim.id),
                    &mode_number(claim.mode),
                    &millis(claim.ttl.get()),
                    &listener,
                    &number,
                    &claim.claimant.label,
                    &claim.claimant.host,
                    &i64::from(claim.claimant.pid),
                    &claim.reason.as_deref(),
                    &leaves,
                ],
            )
            .await?;
        let row = answer.first()?;
        protocol::check_signature(row, 5, &signature(&claim.id))?;
        let is_next = cell::<Option<bool>>(row, 4)?.unwrap_or(true);
        Ok(Decided {
            what: rows::outcome(row, claim, is_next, None)?,
            sent: answer.sent,
            now: Some(cell::<i64>(row, 2)?.unsigned_abs()),
            notices: Vec::new(),
            maybe_applied: None,
        })
    }

    async fn release(&self, claim: &Claim) -> Result<Decided<bool>> {
        let parameters: protocol::Parameters<'_> = &[
            &claim.name.as_str(),
            &signature(&claim.id),
            &self.listener().id(),
        ];
        let released = self
            .client
            .call(Lane::Upkeep, |calls| &calls.release, parameters);
        let answer = released.await?;
        let row = answer.first()?;
        protocol::check_signature(row, 5, &signature(&claim.id))?;
        Ok(Decided {
            what: cell(row, 0)?,
            sent: answer.sent,
            now: Some(cell::<i64>(row, 1)?.unsigned_abs()),
            notices: protocol::offer(row).into_iter().collect(),
            maybe_applied: answer.maybe_applied,
        })
    }

    async fn force_release(&self, name: &LockName) -> Result<Decided<bool>> {
        let name: protocol::Parameters<'_> = &[&name.as_str()];
        let broken = self
            .client
            .call(Lane::Upkeep, |calls| &calls.force_release, name);
        let answer = broken.await?;
        Ok(Decided {
            what: cell(answer.first()?, 0)?,
            sent: answer.sent,
            now: None,
            notices: Vec::new(),
            maybe_applied: None,
        })
    }

    async fn renew(&self, claims: &[RenewalRow<'_>]) -> Result<(Moment, Vec<Renewed>)> {
        let names: Vec<_> = claims.iter().map(|claim| claim.name).collect();
        let signatures: Vec<_> = claims.iter().map(|claim| &*claim.signature).collect();
        let ttls: Vec<_> = claims.iter().map(|claim| claim.ttl).collect();
        let shorten: Vec<_> = claims.iter().map(|claim| claim.shorten).collect();
        let parameters: protocol::Parameters<'_> = &[&names, &signatures, &ttls, &shorten];
        let renewed = self
            .client
            .call(Lane::Upkeep, |calls| &calls.renew, parameters);
        let answer = renewed.await?;
        let renewed = answer.rows.iter().map(|row| {
            let nth = usize::try_from(cell::<i64>(row, 0)? - 1).unwrap_or(usize::MAX);
            let asked = claims.get(nth).map_or(&[][..], |claim| &claim.signature);
            let token =
                protocol::check_signature(row, 2, asked).and_then(|()| rows::token(cell(row, 1)?));
            Ok(Renewed { nth, token })
        });
        Ok((answer.sent, renewed.collect::<Result<_>>()?))
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>> {
        let (exactly, text) = match query {
            Query::Name(name) => (true, name.as_str()),
            Query::Prefix(prefix) => (false, prefix.as_str()),
        };
        // No lock's name contains it, and no text parameter can.
        if text.contains('\0') {
            return Ok(Vec::new());
        }
        let asked: protocol::Parameters<'_> = &[&exactly, &text];
        let client = &self.client;
        let holders = client.call(Lane::Attempts, |calls| &calls.holders, asked);
        let holders = holders.await?.rows;
        let waiters = client.call(Lane::Attempts, |calls| &calls.waiters, asked);
        rows::locks(&holders, &waiters.await?.rows)
    }

    /// A few rows at a time, until there are no more. If a call fails, the next sweep tries again.
    async fn sweep(&self) -> bool {
        while let Ok(swept) = self
            .client
            .call(Lane::Attempts, |calls| &calls.sweep, &[])
            .await
            && let Some(row) = swept.rows.first()
            && cell(row, 0).unwrap_or(false)
        {}
        true
    }

    fn prepare_to_wait(&self) {
        self.client.make_room();
    }

    /// Should somebody begin to wait meanwhile, the listener's next beat inserts the row again.
    async fn close(&self) {
        if self.listener().is_done() {
            let id: protocol::Parameters<'_> = &[&self.listener().id()];
            let left = self
                .client
                .call(Lane::Upkeep, |calls| &calls.stop_listening, id);
            let _ = tokio::time::timeout(CLOSE, left).await;
        }
    }

    async fn read_record(&self, key: &Key, with_value: bool) -> Result<Row> {
        let asked: protocol::Parameters<'_> = &[&key.as_str(), &with_value];
        let client = &self.client;
        let read = client.call(Lane::Attempts, |calls| &calls.read_record, asked);
        read.await?.only()
    }

    async fn write_record(&self, write: &Write<'_>) -> Result<bool> {
        let parameters: protocol::Parameters<'_> = &[
            &write.key,
            &write.value,
            &write.version,
            &write.token,
            &write.lock,
            &write.lifetime,
            &write.expected,
        ];
        let client = &self.client;
        let written = client.call(Lane::Attempts, |calls| &calls.write_record, parameters);
        cell(&written.await?.only()?, 0)
    }

    fn requests(&self) -> u64 {
        self.client.calls_sent()
    }
}

#[async_trait]
impl SqlSupport for PostgresStore {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn check_lease(&self) -> String {
        let schema = self.client.quoted_schema();
        format!("SELECT {schema}.check_lease($1, $2)")
    }

    async fn execute(&self, statements: &[String]) -> Result<()> {
        // Sent together, they are one transaction.
        let script = statements.join("\n");
        let done = self.client.run_script(Lane::Attempts, &script);
        done.await?.map_err(failure::of_table)
    }
}
