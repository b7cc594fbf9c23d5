//! What SQLite and the file system can say, as errors that say what to do.

use std::io;
use std::path::Path;

use rusqlite::ErrorCode;

use nix::errno::Errno;

use crate::error::{Error, ErrorKind};

/// An error on its way out of this engine: SQLite's own become ours here, so that the client library does not
/// show in the crate's API.
#[derive(Debug)]
pub(super) struct Fault(pub(super) Error);

/// The result of what is done to the file.
pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    /// Whether someone else has the file just now.
    pub(super) fn is_busy(&self) -> bool {
        let cause = std::error::Error::source(&self.0);
        let cause = cause.and_then(|cause| cause.downcast_ref::<rusqlite::Error>());
        let code = cause.and_then(rusqlite::Error::sqlite_error_code);
        matches!(
            code,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
        )
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.0
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(cause: rusqlite::Error) -> Self {
        let error = match cause.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => {
                Error::new(ErrorKind::Unreachable, "the disk is full").advise("free some space")
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => busy(),
            Some(
                ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::AuthorizationForStatementDenied,
            ) => Error::new(
                ErrorKind::Denied,
                "the file or its folder cannot be written to",
            )
            .advise("give this user write access to both, or use another path"),
            Some(ErrorCode::CannotOpen) => {
                Error::new(ErrorKind::Denied, "the file cannot be opened")
                    .advise("check that the folder exists and that this user may write to it")
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                unfit("the file is damaged, or is not a database")
            }
            Some(ErrorCode::SystemIoFailure) => {
                Error::new(ErrorKind::Unreachable, "the disk failed")
                    .advise("see the system log; the locks in this file end with their TTLs")
                    .of_unknown_effect()
            }
            _ => Error::new(ErrorKind::Unexpected, format!("SQLite says: {cause}")),
        };
        Self(error.caused_by(cause))
    }
}

/// Someone else writes, and does not come to an end.
pub(super) fn busy() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "another program keeps the file locked",
    )
    .advise("see who has it open (fuser), or raise busy_timeout")
    .because_busy()
}

/// A commit that fails may have reached the file all the same: what was written of it counts if it turns out to be whole.
pub(super) fn at_commit(cause: rusqlite::Error) -> Fault {
    Fault(Fault::from(cause).0.of_unknown_effect())
}

/// The file is there but cannot serve.
pub(super) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
        .advise("use another path, or move the file aside: a new one is made and tokens still rise")
}

/// Something other than SQLite failed on this path.
pub(super) fn of_path(what: &str, path: &Path, cause: io::Error) -> Error {
    let what = format!("{what} {}: {cause}", path.display());
    let error = match cause.kind() {
        _ if has_too_many_open(&cause) => Error::new(ErrorKind::Unreachable, what)
            .advise("raise the limit of open files (ulimit -n)")
            .because_busy(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Error::new(ErrorKind::Denied, what)
                .advise("give this user write access to the folder, or use another path")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::new(ErrorKind::Unreachable, what).advise("free some space")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Error::new(ErrorKind::InvalidConfig, what)
                .advise("the path must name a file in a folder that exists")
        }
        _ => Error::new(ErrorKind::Unreachable, what).advise("check that the file system works"),
    };
    error.caused_by(cause)
}

/// As many files are open as this process, or the system, may have.
fn has_too_many_open(cause: &io::Error) -> bool {
    let limits = [Errno::EMFILE, Errno::ENFILE].map(|errno| Some(errno as i32));
    limits.contains(&cause.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_may_pass() {
        let of = |errno| of_path("cannot open", Path::new("/x"), io::Error::from(errno));
        assert!(of(Errno::EMFILE).is_busy());
        assert!(of(Errno::ENFILE).is_busy());
        assert!(!of(Errno::EIO).is_busy());
    }
}
