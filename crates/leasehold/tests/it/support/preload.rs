//! Libraries that are preloaded into a server, to change what the system tells it or does for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A library in C, built when it is first used.
pub struct Library {
    source: &'static str,
    built: OnceLock<(tempfile::TempDir, PathBuf)>,
}

impl Library {
    pub const fn new(source: &'static str) -> Self {
        Self {
            source,
            built: OnceLock::new(),
        }
    }

    /// What a process must find in its environment to use it; it goes by the file that this variable names.
    pub fn environment(&self, variable: &str, file: &Path) -> [(String, String); 2] {
        let text = |path: &Path| path.display().to_string();
        [
            ("LD_PRELOAD".to_owned(), text(self.path())),
            (variable.to_owned(), text(file)),
        ]
    }

    fn path(&self) -> &Path {
        let (_, library) = self.built.get_or_init(|| {
            let folder = folder();
            let (source, library) = (folder.path().join("it.c"), folder.path().join("it.so"));
            fs::write(&source, self.source).unwrap();
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
            let built = compiler.arg(&library).arg(&source).status();
            assert!(built.expect("a C compiler").success());
            (folder, library)
        });
        library
    }
}

/// One that a server can read, whoever it runs as.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}
