//! The raw limits: INSERT and DELETE of one row, and GET_LOCK with a connection for each waiter.

use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Statement};

use super::failure;
use super::server;
use super::settings::Settings;
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

    async fn lock(
        &self,
        taken_by: &str,
        given_back_by: &str,
        name: &str,
    ) -> Result<Box<dyn RawLock>> {
        let mut connection = server::connect(&self.settings).await?;
        let acquire = connection.prep(taken_by).await.map_err(failure::of_call)?;
        let release = connection
            .prep(given_back_by)
            .await
            .map_err(failure::of_call)?;
        Ok(Box::new(TwoStatements {
            connection,
            acquire,
            release,
            name: name.to_owned(),
        }))
    }
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "INSERT IGNORE and DELETE of one row"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let table = format!("{}_raw_limit", self.settings.table);
        let make = format!(
            "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(255) NOT NULL PRIMARY KEY, value CHAR(32) NOT NULL) ENGINE = InnoDB"
        );
        let mut connection = server::connect(&self.settings).await?;
        let made = connection.query_drop(make).await;
        made.map_err(failure::of_call)?;
        let insert =
            format!("INSERT IGNORE INTO {table} VALUES (?, '0123456789abcdef0123456789abcdef')");
        let delete = format!("DELETE FROM {table} WHERE name = ?");
        self.lock(&insert, &delete, name).await
    }

    fn handoff_is(&self) -> &'static str {
        "GET_LOCK and RELEASE_LOCK, a connection for each waiter"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        self.lock("DO GET_LOCK(?, 60)", "DO RELEASE_LOCK(?)", name)
            .await
    }
}

struct TwoStatements {
    connection: Conn,
    acquire: Statement,
    release: Statement,
    name: String,
}

#[async_trait]
impl RawLock for TwoStatements {
    async fn acquire(&mut self) -> Result<()> {
        let done = self.connection.exec_drop(&self.acquire, (&self.name,));
        done.await.map_err(failure::of_call)
    }

    async fn release(&mut self) -> Result<()> {
        let done = self.connection.exec_drop(&self.release, (&self.name,));
        done.await.map_err(failure::of_call)
    }
}
