//! The baseline: INSERT and DELETE of one row, and GET_LOCK with a connection for each waiter.

use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Statement};

use super::client;
use super::config::MysqlConfig;
use super::failure;
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct MysqlBaseline {
    config: MysqlConfig,
}

impl MysqlBaseline {
    pub(super) fn on(config: &MysqlConfig) -> Self {
        Self {
            config: config.clone(),
        }
    }

    async fn lock(
        &self,
        acquire: &str,
        release: &str,
        name: &str,
    ) -> Result<Box<dyn BaselineLock>> {
        let mut connection = client::connect(&self.config).await?;
        let acquire = connection.prep(acquire).await.map_err(failure::of_call)?;
        let release = connection.prep(release).await.map_err(failure::of_call)?;
        Ok(Box::new(TwoStatements {
            connection,
            acquire,
            release,
            name: name.to_owned(),
        }))
    }
}

#[async_trait]
impl Baseline for MysqlBaseline {
    fn cycle_is(&self) -> &'static str {
        "INSERT IGNORE and DELETE of one row"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let table = format!("{}_baseline", self.config.table);
        let make = format!(
            "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(255) NOT NULL PRIMARY KEY, value CHAR(32) NOT NULL) ENGINE = InnoDB"
        );
        let mut connection = client::connect(&self.config).await?;
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

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
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
impl BaselineLock for TwoStatements {
    async fn acquire(&mut self) -> Result<()> {
        let done = self.connection.exec_drop(&self.acquire, (&self.name,));
        done.await.map_err(failure::of_call)
    }

    async fn release(&mut self) -> Result<()> {
        let done = self.connection.exec_drop(&self.release, (&self.name,));
        done.await.map_err(failure::of_call)
    }
}
