//! How a waiter is woken: a named pipe for each process that waits, beside the database.
//!
//! Whoever hands a lock over writes the waiter's token into its process's pipe. A pipe that nobody
//! reads any more shows that the process is gone, so a dead waiter never holds up the queue. What
//! comes out of a pipe is only a hint: the waiter looks into the table before it believes anything.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::mkfifo;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::database::Access;
use super::failure::of_path;
use crate::claim::ClaimId;
use crate::engine::wakeup::local_waiters::{self, LocalWaiters};
use crate::error::Result;
use crate::sync::Mutex;
use crate::token::FencingToken;

const MESSAGE: usize = size_of::<u64>();

/// A pipe that is this old and still a draft was left by a process killed while it made it.
const NO_DRAFT_TAKES: Duration = Duration::from_secs(60);

/// The wake pipes of all processes that wait on one database, and this process's own.
#[derive(Debug)]
pub(super) struct WakePipes {
    folder: PathBuf,
    access: Access,
    own: Mutex<Option<Arc<WakePipe>>>,
}

/// This process's pipe, read by one task for all waiters.
#[derive(Debug)]
pub(super) struct WakePipe {
    name: String,
    path: PathBuf,
    /// Kept open so that the pipe never has no writer, which would read as its end.
    _writer: File,
    pub(super) waiters: Arc<LocalWaiters<()>>,
    /// Whether the task that reads the pipe has ended with its runtime.
    listener_gone: Arc<AtomicBool>,
}

/// Wakes one waiter.
#[derive(Debug)]
pub(super) enum Wakeup {
    Own(Arc<local_waiters::Mailbox<()>>),
    Other(File, FencingToken),
    /// Its pipe cannot be opened: that waiter finds out by the clock.
    Unreachable,
}

impl Wakeup {
    /// A message that cannot be sent costs the waiter at most the time that was left.
    pub(super) fn send(self) {
        match self {
            Wakeup::Own(mailbox) => mailbox.wake(),
            Wakeup::Other(mut pipe, token) => {
                let _ = pipe.write(&token.get().to_le_bytes());
            }
            Wakeup::Unreachable => {}
        }
    }
}

impl WakePipes {
    /// For those who may use the database.
    pub(super) fn new(folder: PathBuf, access: Access) -> Self {
        Self {
            folder,
            access,
            own: Mutex::default(),
        }
    }

    /// What wakes a waiter; `None` if its process is gone.
    pub(super) fn wakeup(&self, pipe: &str, token: FencingToken) -> Option<Wakeup> {
        if let Some(own) = self.own.lock().as_ref().filter(|own| own.name == pipe) {
            return own.waiters.mailbox(token.get()).map(Wakeup::Own);
        }
        match self.open_of_other(pipe) {
            Ok(pipe) => Some(Wakeup::Other(pipe, token)),
            Err(error) if means_gone(&error) || is_no_pipe(&error) => None,
            Err(_) => Some(Wakeup::Unreachable),
        }
    }

    /// Opens the pipe that a row names. Whoever may write to the database may have written that name.
    fn open_of_other(&self, pipe: &str) -> io::Result<File> {
        match is_name(pipe) {
            true => open_for_writing(&self.folder.join(pipe)),
            false => Err(no_pipe()),
        }
    }

    /// Whether the process that reads from this pipe is there.
    pub(super) fn has_listener(&self, pipe: &str) -> bool {
        let own = self.own.lock().as_ref().is_some_and(|own| own.name == pipe);
        own || !self
            .open_of_other(pipe)
            .is_err_and(|error| means_gone(&error) || is_no_pipe(&error))
    }

    /// This process's pipe, if there is one and its listener lives.
    pub(super) fn own(&self) -> Option<Arc<WakePipe>> {
        self.own.lock().clone().filter(|pipe| pipe.has_listener())
    }

    /// Opens this process's pipe, and listens to it on the present runtime.
    pub(super) fn open(&self) -> Result<Arc<WakePipe>> {
        let mut own = self.own.lock();
        if let Some(pipe) = own.as_ref().filter(|pipe| pipe.has_listener()) {
            return Ok(Arc::clone(pipe));
        }
        let pipe = Arc::new(self.build()?);
        *own = Some(Arc::clone(&pipe));
        Ok(pipe)
    }

    /// The table that names the pipe is gone: all waiters of this process queue anew, with another one.
    pub(super) fn close(&self) {
        let own = self.own.lock().take();
        if let Some(pipe) = own {
            pipe.waiters.wake_all();
        }
    }

    fn build(&self) -> Result<WakePipe> {
        let failed = |cause| of_path("cannot make a pipe in", &self.folder, cause);
        self.make_folder().map_err(failed)?;
        self.sweep();
        let name = ClaimId::random()?.reveal();
        let path = self.folder.join(&name);
        // Built under a name that sweepers leave alone for a while, until somebody reads from it.
        let draft = self.folder.join(format!("{name}.new"));
        let Access { permissions, owner } = self.access;
        let permissions = Mode::from_bits_truncate(permissions & 0o666);
        mkfifo(&draft, permissions).map_err(|errno| failed(errno.into()))?;
        let opened = open_for_reading(&draft)
            .and_then(|reader| {
                let _ = fchmod(&reader, permissions);
                owner.give(&reader);
                Ok((reader, open_for_writing(&draft)?))
            })
            .and_then(|ends| fs::rename(&draft, &path).map(|()| ends));
        let (reader, writer) = opened.map_err(|cause| {
            let _ = fs::remove_file(&draft);
            failed(cause)
        })?;
        let pipe = WakePipe {
            name,
            path,
            _writer: writer,
            waiters: Arc::default(),
            listener_gone: Arc::default(),
        };
        let waiters = Listening(Arc::clone(&pipe.waiters), Arc::clone(&pipe.listener_gone));
        tokio::spawn(listen(reader, waiters));
        Ok(pipe)
    }

    fn make_folder(&self) -> io::Result<()> {
        match fs::create_dir(&self.folder) {
            // Who may write to the database may also wait on it.
            Ok(()) => {
                let Access { permissions, owner } = self.access;
                let search = (permissions & 0o666) | ((permissions & 0o444) >> 2);
                let folder = OpenOptions::new()
                    .read(true)
                    .custom_flags((OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW).bits())
                    .open(&self.folder)?;
                folder.set_permissions(fs::Permissions::from_mode(search))?;
                owner.give(&folder);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the pipes that killed processes have left.
    pub(super) fn sweep(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let draft = path.extension().is_some();
            let stem = path.file_stem().and_then(OsStr::to_str);
            if stem.is_some_and(is_name)
                && !(draft && is_young(&entry))
                && open_for_writing(&path).is_err_and(|error| means_gone(&error))
            {
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl WakePipe {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn has_listener(&self) -> bool {
        !self.listener_gone.load(Ordering::Acquire)
    }
}

impl Drop for WakePipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Says so when the task that listens has ended.
struct Listening(Arc<LocalWaiters<()>>, Arc<AtomicBool>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
        self.0.wake_all();
    }
}

/// Wakes whoever a message names, for as long as the pipe is there.
async fn listen(mut reader: pipe::Receiver, waiters: Listening) {
    let mut messages = [0; 64 * MESSAGE];
    let mut partial = 0;
    while let Ok(read) = reader.read(&mut messages[partial..]).await {
        if read == 0 {
            return;
        }
        let filled = partial + read;
        let (whole, rest) = messages[..filled].as_chunks::<MESSAGE>();
        for token in whole {
            if let Some(mailbox) = waiters.0.mailbox(u64::from_le_bytes(*token)) {
                mailbox.wake();
            }
        }
        partial = rest.len();
        messages.copy_within(filled - partial..filled, 0);
    }
}

fn is_young(draft: &fs::DirEntry) -> bool {
    let made = draft.metadata().and_then(|pipe| pipe.modified());
    let age = made.map(|made| made.elapsed().unwrap_or_default());
    age.is_ok_and(|age| age < NO_DRAFT_TAKES)
}

/// Opens a pipe that was just made, before anybody else knows of it. Whoever may write to the folder may have put another one there.
fn open_for_reading(path: &Path) -> io::Result<pipe::Receiver> {
    let pipe = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits())
        .open(path)?;
    match pipe.metadata()?.nlink() {
        1 => pipe::Receiver::from_file(pipe),
        _ => Err(no_pipe()),
    }
}

/// Opens a pipe for writing, without waiting for a reader. Whatever else is there, put by someone who may write to the folder, is left alone.
fn open_for_writing(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits())
        .open(path);
    match opened {
        Ok(pipe) if pipe.metadata()?.file_type().is_fifo() => Ok(pipe),
        Ok(_) => Err(no_pipe()),
        Err(error) if error.raw_os_error() == Some(Errno::ELOOP as i32) => Err(no_pipe()),
        Err(error) => Err(error),
    }
}

/// Whether a pipe could be called so.
fn is_name(name: &str) -> bool {
    let id = name.parse::<ClaimId>();
    id.is_ok_and(|id| id.reveal() == name)
}

fn no_pipe() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a pipe")
}

fn is_no_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

/// No reader, or no pipe.
fn means_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENXIO as i32) || error.kind() == io::ErrorKind::NotFound
}
