//! The raw limits: INSERT … ON CONFLICT DO NOTHING with DELETE, and advisory locks with a connection for each waiter.

use async_trait::async_trait;
use tokio_postgres::{Client, Statement};

use super::failure;
use super::settings::Settings;
use super::tls;
use crate::engine::raw::{RawLimit, RawLock};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Raw {
    settings: Settings,
}

impl Raw {
    pub(super) fn on(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
        }
    }

    async fn connect(&self) -> Result<Client> {
        let connector = tls::connector(&self.settings.trust)?;
        let connected = self.settings.server.connect(connector).await;
        let (client, connection) = connected.map_err(failure::of_connection)?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn lock(
        &self,
        taken_by: &str,
        given_back_by: &str,
        name: &str,
    ) -> Result<Box<dyn RawLock>> {
        let client = self.connect().await?;
        let prepare = async |sql: &str| client.prepare(sql).await.map_err(failure::of_call);
        Ok(Box::new(TwoStatements {
            acquire: prepare(taken_by).await?,
            release: prepare(given_back_by).await?,
            name: name.to_owned(),
            client,
        }))
    }
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "INSERT ON CONFLICT DO NOTHING and DELETE of one row"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let schema = &self.settings.schema;
        let make = format!(
            "SELECT pg_advisory_xact_lock(1818583923, -1); \
             CREATE TABLE IF NOT EXISTS \"{schema}\".raw_limit (name text PRIMARY KEY, value text NOT NULL)"
        );
        let made = self.connect().await?.batch_execute(&make).await;
        made.map_err(failure::of_call)?;
        let insert = format!(
            "INSERT INTO \"{schema}\".raw_limit VALUES ($1, '0123456789abcdef0123456789abcdef') ON CONFLICT DO NOTHING"
        );
        let delete = format!("DELETE FROM \"{schema}\".raw_limit WHERE name = $1");
        self.lock(&insert, &delete, name).await
    }

    fn handoff_is(&self) -> &'static str {
        "pg_advisory_lock and pg_advisory_unlock, a connection for each waiter"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let take = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
        let give_back = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        self.lock(take, give_back, name).await
    }
}

struct TwoStatements {
    client: Client,
    acquire: Statement,
    release: Statement,
    name: String,
}

#[async_trait]
impl RawLock for TwoStatements {
    async fn acquire(&mut self) -> Result<()> {
        let done = self.client.execute(&self.acquire, &[&self.name]).await;
        done.map(|_| ()).map_err(failure::of_call)
    }

    async fn release(&mut self) -> Result<()> {
        let done = self.client.execute(&self.release, &[&self.name]).await;
        done.map(|_| ()).map_err(failure::of_call)
    }
}
