//! Servers that refuse to run as root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// Runs as this user if we are root. The process that is started is the program itself, whoever runs it.
pub fn as_user(user: &str, program: impl AsRef<OsStr>) -> Command {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", user, "--regid", user, "--init-groups", "--"])
        .arg(program);
    command
}

/// A folder that the server can use, whoever it runs as.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}
