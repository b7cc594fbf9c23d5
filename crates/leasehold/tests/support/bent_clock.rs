//! A server whose wall clock can be stepped while it runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::redis_server::RedisServer;

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
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD".to_owned(), text(library())),
            ("BENT_CLOCK".to_owned(), text(&self.file())),
        ]
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

/// One that a server can read, whoever it runs as.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn library() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = BUILT.get_or_init(|| {
        let folder = folder();
        let (source, library) = (folder.path().join("bent.c"), folder.path().join("bent.so"));
        fs::write(&source, include_str!("bent_clock.c")).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
        let built = compiler.arg(&library).arg(&source).status();
        assert!(built.expect("a C compiler").success());
        (folder, library)
    });
    library
}
