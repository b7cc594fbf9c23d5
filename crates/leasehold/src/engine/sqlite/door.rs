//! How a waiter is woken: a named pipe for each process that waits, beside the database.
//!
//! Whoever hands a lock over writes the waiter's token into its process's pipe. A pipe that nobody
//! reads any more tells that the process is gone, so a dead waiter never holds up the queue. What
//! comes out of a pipe is only a hint: the waiter looks into the table before it believes anything.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::failure::of_path;
use crate::claim::ClaimId;
use crate::engine::waiters::{self, Waiters};
use crate::error::Result;
use crate::token::FencingToken;

const MESSAGE: usize = size_of::<u64>();

/// A pipe that is this old and still a draft was left by a process killed while it made it.
const NO_DRAFT_TAKES: Duration = Duration::from_secs(60);

/// The doors of all processes that wait on one database, and the own one.
#[derive(Debug)]
pub(super) struct Doors {
    folder: PathBuf,
    permissions: u32,
    own: Mutex<Option<Arc<Door>>>,
}

/// This process's door: a pipe, read by one task for all waiters.
#[derive(Debug)]
pub(super) struct Door {
    name: String,
    path: PathBuf,
    /// Kept open so that the pipe never has no writer, which would read as its end.
    _writer: File,
    pub(super) waiters: Arc<Waiters<()>>,
    /// Whether the task that reads the pipe has ended with its runtime.
    deaf: Arc<AtomicBool>,
}

/// Wakes one waiter.
#[derive(Debug)]
pub(super) enum Bell {
    Own(Arc<waiters::Bell<()>>),
    Other(File, FencingToken),
    /// Nobody can be told: that waiter finds out by the clock.
    Mute,
}

impl Bell {
    /// A message that cannot be sent costs the waiter at most the time that was left.
    pub(super) fn ring(self) {
        match self {
            Bell::Own(bell) => bell.nudge(),
            Bell::Other(mut pipe, token) => {
                let _ = pipe.write(&token.get().to_le_bytes());
            }
            Bell::Mute => {}
        }
    }
}

impl Doors {
    /// Beside the database, with its permissions.
    pub(super) fn beside(database: &Path, permissions: u32) -> Self {
        let mut folder = database.as_os_str().to_owned();
        folder.push("-doors");
        Self {
            folder: folder.into(),
            permissions,
            own: Mutex::default(),
        }
    }

    fn own(&self) -> MutexGuard<'_, Option<Arc<Door>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bell of a waiter; `None` if its process is gone.
    pub(super) fn bell(&self, door: &str, token: FencingToken) -> Option<Bell> {
        if let Some(own) = self.own().as_ref().filter(|own| own.name == door) {
            return own.waiters.bell(token.get()).map(Bell::Own);
        }
        match knock(&self.folder.join(door)) {
            Ok(pipe) => Some(Bell::Other(pipe, token)),
            Err(error) if means_gone(&error) => None,
            Err(_) => Some(Bell::Mute),
        }
    }

    /// Whether the process behind this door is there.
    pub(super) fn is_open(&self, door: &str) -> bool {
        let own = self.own().as_ref().is_some_and(|own| own.name == door);
        own || !knock(&self.folder.join(door)).is_err_and(|error| means_gone(&error))
    }

    /// The own door, if there is one and someone listens.
    pub(super) fn listening(&self) -> Option<Arc<Door>> {
        self.own().clone().filter(|door| door.is_heard())
    }

    /// Opens the own door, on the present runtime.
    pub(super) fn open(&self) -> Result<Arc<Door>> {
        let mut own = self.own();
        if let Some(door) = own.as_ref().filter(|door| door.is_heard()) {
            return Ok(Arc::clone(door));
        }
        let door = Arc::new(self.build()?);
        *own = Some(Arc::clone(&door));
        Ok(door)
    }

    fn build(&self) -> Result<Door> {
        let failed = |cause| of_path("cannot make a pipe in", &self.folder, cause);
        self.make_folder().map_err(failed)?;
        self.sweep();
        let name = ClaimId::random()?.reveal();
        let path = self.folder.join(&name);
        // Built under a name that sweepers leave alone for a while, until somebody reads from it.
        let draft = self.folder.join(format!("{name}.new"));
        let permissions = Mode::from_bits_truncate(self.permissions & 0o666);
        mkfifo(&draft, permissions).map_err(|errno| failed(errno.into()))?;
        let _ = fs::set_permissions(&draft, fs::Permissions::from_mode(self.permissions & 0o666));
        let opened = pipe::OpenOptions::new()
            .open_receiver(&draft)
            .and_then(|reader| Ok((reader, knock(&draft)?)))
            .and_then(|ends| fs::rename(&draft, &path).map(|()| ends));
        let (reader, writer) = opened.map_err(|cause| {
            let _ = fs::remove_file(&draft);
            failed(cause)
        })?;
        let door = Door {
            name,
            path,
            _writer: writer,
            waiters: Arc::default(),
            deaf: Arc::default(),
        };
        let deaf = Deaf(Arc::clone(&door.waiters), Arc::clone(&door.deaf));
        tokio::spawn(listen(reader, deaf));
        Ok(door)
    }

    fn make_folder(&self) -> io::Result<()> {
        match fs::create_dir(&self.folder) {
            // Who may write to the database may also wait on it.
            Ok(()) => {
                let search = (self.permissions & 0o666) | ((self.permissions & 0o444) >> 2);
                fs::set_permissions(&self.folder, fs::Permissions::from_mode(search))
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
            if !(draft && is_young(&entry)) && knock(&path).is_err_and(|error| means_gone(&error)) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl Door {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn is_heard(&self) -> bool {
        !self.deaf.load(Ordering::Acquire)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Says so when the task that listens has ended.
struct Deaf(Arc<Waiters<()>>, Arc<AtomicBool>);

impl Drop for Deaf {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
        self.0.ring_all();
    }
}

/// Rings for whoever a message names, for as long as the door is there.
async fn listen(mut reader: pipe::Receiver, deaf: Deaf) {
    let mut messages = [0; 64 * MESSAGE];
    let mut partial = 0;
    while let Ok(read) = reader.read(&mut messages[partial..]).await {
        if read == 0 {
            return;
        }
        let filled = partial + read;
        let (whole, rest) = messages[..filled].as_chunks::<MESSAGE>();
        for token in whole {
            if let Some(bell) = deaf.0.bell(u64::from_le_bytes(*token)) {
                bell.nudge();
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

/// Opens a pipe for writing, without waiting for a reader.
fn knock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
}

/// No reader, or no pipe.
fn means_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENXIO as i32) || error.kind() == io::ErrorKind::NotFound
}
