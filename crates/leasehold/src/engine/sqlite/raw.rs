//! The raw limits: one row written and deleted, and flock(2).

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;

use super::failure::{self, of_path};
use super::file;
use crate::engine::raw::{RawLimit, RawLock};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct Raw {
    database: PathBuf,
}

impl Raw {
    pub(super) fn beside(database: &Path) -> Self {
        Self {
            database: database.to_owned(),
        }
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut path = self.database.as_os_str().to_owned();
        path.push(ending);
        path.into()
    }
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "INSERT and DELETE of one row"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let path = self.file("-raw.db");
        let connection = file::open_again(&path).or_else(|_| {
            file::create(&path)?;
            file::open_again(&path)
        })?;
        let row = RawRow::open(connection, name)?;
        Ok(Box::new(row))
    }

    fn handoff_is(&self) -> &'static str {
        "flock(2)"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let path = self.file(&format!("-raw-{name}"));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|cause| of_path("cannot open", &path, cause))?;
        Ok(Box::new(RawFlock { file, path }))
    }
}

struct RawRow {
    connection: Connection,
    name: String,
}

impl RawRow {
    fn open(connection: Connection, name: &str) -> failure::Result<Self> {
        connection.busy_timeout(Duration::from_secs(5))?;
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
impl RawLock for RawRow {
    async fn acquire(&mut self) -> Result<()> {
        Ok(self.run("INSERT INTO locks VALUES (?1, 0)")?)
    }

    async fn release(&mut self) -> Result<()> {
        Ok(self.run("DELETE FROM locks WHERE name = ?1")?)
    }
}

struct RawFlock {
    file: File,
    path: PathBuf,
}

#[async_trait]
impl RawLock for RawFlock {
    async fn acquire(&mut self) -> Result<()> {
        let failed = |cause| of_path("cannot lock", &self.path, cause);
        self.file.lock().map_err(failed)
    }

    async fn release(&mut self) -> Result<()> {
        let failed = |cause| of_path("cannot unlock", &self.path, cause);
        self.file.unlock().map_err(failed)
    }
}
