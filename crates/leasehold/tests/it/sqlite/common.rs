//! A database file of a test's own.

use std::fs;
use std::path::PathBuf;

use crate::support::deadline;
use leasehold::Locks;
use rusqlite::Connection;
use tempfile::TempDir;

pub(super) struct File {
    _folder: TempDir,
    pub(super) path: PathBuf,
}

impl File {
    pub(super) fn new() -> Self {
        deadline::begin();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        Self {
            _folder: folder,
            path,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("sqlite:{}?busy_timeout=300ms", self.path.display())
    }

    /// With the default `busy_timeout`, for tests that write much: the host may be slow.
    pub(super) async fn open_patiently(&self) -> Locks {
        let url = format!("sqlite:{}", self.path.display());
        Locks::connect(url).await.unwrap()
    }

    pub(super) async fn open(&self) -> Locks {
        Locks::connect(self.url()).await.unwrap()
    }

    pub(super) async fn refused(&self) -> leasehold::Error {
        Locks::connect(self.url()).await.unwrap_err()
    }

    /// As another program would.
    pub(super) fn sql(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    /// Deletes some of the files that the database consists of, as a cleaner or an operator would.
    pub(super) fn delete(&self, endings: &[&str]) {
        for ending in endings {
            fs::remove_file(format!("{}{ending}", self.path.display())).unwrap();
        }
    }
}

pub(super) const WHOLE: [&str; 3] = ["", "-wal", "-shm"];
