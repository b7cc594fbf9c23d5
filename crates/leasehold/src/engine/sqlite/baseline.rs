//! The baselines: one row written and deleted, and flock(2).

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use super::database::{self, Location};
use super::failure::{self, of_path};
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::error::Result;

/// How long to wait for others that write.
const PATIENCE: Duration = Duration::from_secs(5);

/// In files beside the database.
#[derive(Debug)]
pub(super) struct SqliteBaseline(pub(super) Location);

#[async_trait]
impl Baseline for SqliteBaseline {
    fn cycle_is(&self) -> &'static str {
        "INSERT and DELETE of one row"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let path = self.0.beside("-baseline.db");
        database::create(&path, None)?;
        let row = BaselineRow::open(database::connect(&path, PATIENCE, None)?, name)?;
        Ok(Box::new(row))
    }

    fn handoff_is(&self) -> &'static str {
        "flock(2)"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let path = self.0.beside(&format!("-baseline-{name}"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|cause| of_path("cannot open", &path, cause))?;
        Ok(Box::new(BaselineFlock { file, path }))
    }
}

struct BaselineRow {
    connection: Connection,
    name: String,
}

impl BaselineRow {
    fn open(connection: Connection, name: &str) -> failure::Result<Self> {
        connection.execute_batch(
            "PRAGMA wal_autocheckpoint = 1000;
             CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, expires INTEGER) WITHOUT ROWID",
        )?;
        let name = name.to_owned();
        Ok(Self { connection, name })
    }

    fn run(&self, sql: &str) -> failure::Result<()> {
        self.connection.prepare_cached(sql)?.execute([&self.name])?;
        Ok(())
    }
}

#[async_trait]
impl BaselineLock for BaselineRow {
    async fn acquire(&mut self) -> Result<()> {
        Ok(self.run("INSERT INTO locks VALUES (?1, 0)")?)
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.run("DELETE FROM locks WHERE name = ?1")?)
    }
}

struct BaselineFlock {
    file: File,
    path: PathBuf,
}

#[async_trait]
impl BaselineLock for BaselineFlock {
    async fn acquire(&mut self) -> Result<()> {
        let failed = |cause| of_path("cannot lock", &self.path, cause);
        self.file.lock().map_err(failed)
    }

    async fn release(&mut self) -> Result<()> {
        let failed = |cause| of_path("cannot unlock", &self.path, cause);
        self.file.unlock().map_err(failed)
    }
}
