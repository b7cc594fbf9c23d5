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

/// A folder that the server can use, whoever it runs as. In memory where there is room: a busy disk must not decide what a
/// test sees.
pub fn folder() -> tempfile::TempDir {
    match room_in(SHARED_MEMORY) {
        true => open_to_all(tempfile::tempdir_in(SHARED_MEMORY).unwrap()),
        false => folder_on_disk(),
    }
}

/// The same on a disk. MariaDB does not sync a log that is in memory.
pub fn folder_on_disk() -> tempfile::TempDir {
    open_to_all(tempfile::tempdir().unwrap())
}

fn open_to_all(folder: tempfile::TempDir) -> tempfile::TempDir {
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

const SHARED_MEMORY: &str = "/dev/shm";

/// Two gigabytes are enough for all servers that run at a time.
fn room_in(folder: &str) -> bool {
    let asked = Command::new("df").args(["--output=avail", folder]).output();
    let answer = asked.map(|asked| String::from_utf8_lossy(&asked.stdout).into_owned());
    let free = answer
        .ok()
        .and_then(|answer| answer.lines().last()?.trim().parse::<u64>().ok());
    free.is_some_and(|kilobytes| kilobytes > 2_000_000)
}
