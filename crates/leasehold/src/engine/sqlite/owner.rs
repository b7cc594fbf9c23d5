//! To whom the files beside the database belong.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, fchown};

use nix::unistd::geteuid;

/// The owner and the group of the database. What root makes beside it is given to them, as SQLite gives them the log: otherwise they could no longer
/// use their own database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    pub(super) fn of(database: &Metadata) -> Self {
        Self {
            user: database.uid(),
            group: database.gid(),
        }
    }

    /// Gives a file away that this process has just made, and no other: whoever may write to the folder may have put there what is root's.
    /// Only root can; where it may not, as in some containers, the file stays as it is.
    pub(super) fn give(self, made: impl AsFd) {
        if geteuid().is_root() {
            let _ = fchown(made, Some(self.user), Some(self.group));
        }
    }
}
