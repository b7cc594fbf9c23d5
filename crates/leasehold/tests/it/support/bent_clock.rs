//! A server whose wall clock can be stepped while it runs.

use std::fs;
use std::path::PathBuf;

use super::preload::{Library, folder};
use super::redis_server::RedisServer;

static LIBRARY: Library = Library::new(include_str!("bent_clock.c"));

pub struct BentClock {
    folder: tempfile::TempDir,
}

impl BentClock {
    /// A server with such a clock.
    pub fn server() -> (RedisServer, Self) {
        let clock = Self::off_by(0);
        (RedisServer::within(&[], &clock.environment()), clock)
    }

    /// A clock for any process.
    pub fn off_by(seconds: i64) -> Self {
        let clock = Self { folder: folder() };
        clock.step_to(seconds);
        clock
    }

    /// What a process must find in its environment to go by it.
    pub fn environment(&self) -> [(String, String); 2] {
        LIBRARY.environment("BENT_CLOCK", &self.file())
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// So many seconds before or after the truth.
    pub fn step_to(&self, seconds: i64) {
        use std::io::Write;
        // Not truncated on the way: the server has it mapped.
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        let mut file = file.open(self.file()).unwrap();
        file.write_all(&seconds.to_ne_bytes()).unwrap();
    }
}
