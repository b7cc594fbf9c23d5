//! A server whose disk can stand still while it runs.

use std::fs;
use std::path::PathBuf;

use super::preload::{Library, folder};

static LIBRARY: Library = Library::new(include_str!("stuck_disk.c"));

pub struct StuckDisk {
    folder: tempfile::TempDir,
}

impl StuckDisk {
    /// A disk for any process, which works so far.
    pub fn working() -> Self {
        Self { folder: folder() }
    }

    /// What a process must find in its environment to use it.
    pub fn environment(&self) -> [(String, String); 2] {
        LIBRARY.environment("STUCK_DISK", &self.file())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("stuck")
    }

    /// From now on, whoever syncs a file waits.
    pub fn stop(&self) {
        fs::write(self.file(), "").unwrap();
    }

    pub fn resume(&self) {
        fs::remove_file(self.file()).unwrap();
    }
}

impl Drop for StuckDisk {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.file());
    }
}
