//! The baseline: INSERT … ON CONFLICT DO NOTHING with DELETE, and advisory locks with a connection for each waiter.

use async_trait::async_trait;
use tokio_postgres::{Client, Statement};

use super::config::PostgresConfig;
use super::failure;
use super::tls;
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct PostgresBaseline {
    config: PostgresConfig,
}

impl PostgresBaseline {
    pub(super) fn on(config: &PostgresConfig) -> Self {
        Self {
            config: config.clone(),
        }
    }

    async fn connect(&self) -> Result<Client> {
        let connector = tls::connector(&self.config.trust)?;
        let connected = self.config.server().connect(connector).await;
        let (client, connection) = connected.map_err(failure::of_connection)?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn lock(
        &self,
        acquire: &str,
        release: &str,
        name: &str,
    ) -> Result<Box<dyn BaselineLock>> {
        let client = self.connect().await?;
        let prepare = async |sql: &str| client.prepare(sql).await.map_err(failure::of_call);
        Ok(Box::new(TwoStatements {
            acquire: prepare(acquire).await?,
            release: prepare(release).await?,
            name: name.to_owned(),
            client,
        }))
    }
}

#[async_trait]
impl Baseline for PostgresBaseline {
    fn cycle_is(&self) -> &'static str {
        "INSERT ON CONFLICT DO NOTHING and DELETE of one row"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let schema = &self.config.schema;
        let make = format!(
            "SELECT pg_advisory_xact_lock(1818583923, -1); \
             CREATE TABLE IF NOT EXISTS \"{schema}\".baseline (name text PRIMARY KEY, value text NOT NULL)"
        );
        let made = self.connect().await?.batch_execute(&make).await;
        made.map_err(failure::of_call)?;
        let insert = format!(
            "INSERT INTO \"{schema}\".baseline VALUES ($1, '0123456789abcdef0123456789abcdef') ON CONFLICT DO NOTHING"
        );
        let delete = format!("DELETE FROM \"{schema}\".baseline WHERE name = $1");
        self.lock(&insert, &delete, name).await
    }

    fn handoff_is(&self) -> &'static str {
        "pg_advisory_lock and pg_advisory_unlock, a connection for each waiter"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let take = "SELECT pg_advisory_lock(pg_catalog.hashtextextended($1, 0::bigint))";
        let release = "SELECT pg_advisory_unlock(pg_catalog.hashtextextended($1, 0::bigint))";
        self.lock(take, release, name).await
    }
}

struct TwoStatements {
    client: Client,
    acquire: Statement,
    release: Statement,
    name: String,
}

#[async_trait]
impl BaselineLock for TwoStatements {
    async fn acquire(&mut self) -> Result<()> {
        let done = self.client.execute(&self.acquire, &[&self.name]).await;
        done.map(|_| ()).map_err(failure::of_call)
    }

    async fn release(&mut self) -> Result<()> {
        let done = self.client.execute(&self.release, &[&self.name]).await;
        done.map(|_| ()).map_err(failure::of_call)
    }
}
