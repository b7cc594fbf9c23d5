//! A folder that is kept open. What is in it is reached through it alone, and no link in it is followed: whoever else may write in
//! the folder cannot make us read or write anything outside it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

#[derive(Debug)]
pub(super) struct Folder {
    open: File,
    path: PathBuf,
}

impl Folder {
    /// The path is the user's own: links on the way there are followed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_DIRECTORY.bits())
            .open(path)?;
        Ok(Self {
            open,
            path: path.to_owned(),
        })
    }

    /// A folder in this one, made if need be.
    pub(super) fn within(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.open, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(cause) => return Err(cause.into()),
        }
        Ok(Self {
            open: self.open_in(name, OFlag::O_DIRECTORY)?,
            path: self.path.join(name),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn owner(&self) -> io::Result<u32> {
        Ok(self.open.metadata()?.uid())
    }

    fn open_in(&self, name: &str, how: OFlag) -> io::Result<File> {
        // A pipe would keep us waiting for its other end.
        let always = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        match openat(
            &self.open,
            name,
            how | always,
            Mode::from_bits_truncate(0o666),
        ) {
            Ok(file) => Ok(file.into()),
            Err(Errno::ELOOP) => Err(not_plain()),
            Err(cause) => Err(cause.into()),
        }
    }

    fn open_file(&self, name: &str, how: OFlag) -> io::Result<File> {
        let file = self.open_in(name, how)?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(not_plain()),
        }
    }

    /// A file for locking alone. Only those who may write to the folder can open it: whoever can open a file can lock it, and so
    /// hold up all others.
    pub(super) fn lock_file(&self, name: &str) -> io::Result<File> {
        match self.open_file(name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL) {
            Ok(file) => {
                let writers = self.open.metadata()?.mode() & 0o022;
                file.set_permissions(Permissions::from_mode(0o600 | writers | writers << 1))?;
                Ok(file)
            }
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
                self.open_file(name, OFlag::O_RDWR)
            }
            Err(cause) => Err(cause),
        }
    }

    pub(super) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match self.open_file(name, OFlag::O_RDONLY) {
            Ok(mut file) => file.read_to_end(&mut bytes).map(|_| Some(bytes)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// When a file was written last; `None` if it was not.
    pub(super) fn modified(&self, name: &str) -> io::Result<Option<SystemTime>> {
        match self.open_file(name, OFlag::O_RDONLY) {
            Ok(file) => file.metadata()?.modified().map(Some),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// All of it or nothing, whatever happens in between. Only one may write at a time.
    pub(super) fn write_whole(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!(".{name}.new");
        // What a dead writer left, or whatever else stands there; and should it come back, it is not written to.
        self.unlink(&temporary)?;
        let how = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut file = self.open_in(&temporary, how)?;
        match self.open_file(name, OFlag::O_RDONLY) {
            // Who could not read it before cannot now.
            Ok(before) => file.set_permissions(before.metadata()?.permissions())?,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(cause),
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        renameat(&self.open, &*temporary, &self.open, name)?;
        self.open.sync_all()
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.unlink(name)?;
        self.open.sync_all()
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.open, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(cause) => Err(cause.into()),
        }
    }
}

/// What stands there leads elsewhere, or is no file.
fn not_plain() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file")
}
