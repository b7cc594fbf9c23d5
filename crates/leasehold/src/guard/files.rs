//! Files in a folder that refuse stale writes.
//!
//! `FOLDER/<key>` is the value as it is, for any program to read; `FOLDER/.leasehold/<key>` is its stamp: version, token, lock, and when it
//! ends. Each is written through a temporary file and a rename, the stamp first, both under the folder's own lock. So whatever is
//! cut short leaves an old value or a new one, whole, and a token that has not gone back. A stamp without a value is that of a
//! deleted record, or of a first write that was cut short: only its token and its version count.
//!
//! The folder is to be one in which only those can write who may also write the records. Where others can, they can forge a record, as they could
//! write any file there; but no link or pipe that they plant is followed or opened.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::folder::Folder;
use super::record::{Content, Key, Record, Stamp, Version, ends_at};
use super::store::{AtomicStore, Decide, Store};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{FencingToken, wall_clock_micros};

/// Kept as they are in a file's name; a leading dot is not.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// What a file's name may have, less room for a temporary one.
const LONGEST: usize = 240;

/// Where the stamps are. No key's file begins with a dot, so whatever else is needed has names that do.
const STAMPS: &str = ".leasehold";
const LOCK: &str = ".lock";
const SWEPT: &str = ".swept";

/// How often what has ended is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

/// Guarded files in one folder.
///
/// ```
/// use leasehold::Locks;
/// use leasehold::guard::{Fenced, FileStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// let locks = Locks::connect("memory:").await?;
/// let store = FileStore::open(folder)?;
/// let lease = locks.lock("report").acquire().await?;
/// let written = store.write_fenced("report.txt", "all is well", &lease).await?;
/// assert!(matches!(written, Fenced::Written { .. }));
/// // Any program can read the file.
/// assert_eq!(std::fs::read_to_string(folder.join("report.txt")).unwrap(), "all is well");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileStore(Arc<Folders>);

#[derive(Debug)]
struct Folders {
    values: Folder,
    stamps: Folder,
}

impl FileStore {
    /// The folder, which is made if need be. Only those who may write the records should be able to write in it.
    pub fn open(folder: impl AsRef<Path>) -> Result<Store> {
        let path = folder.as_ref();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(|cause| failed("cannot make the folder", path, cause))?;
        let values = Folder::open(path).map_err(|cause| failed("cannot open", path, cause))?;
        let hidden = path.join(STAMPS);
        let open = || {
            let stamps = values.within(STAMPS)?;
            let trusted = [geteuid().as_raw(), 0, values.owner()?];
            Ok((trusted.contains(&stamps.owner()?), stamps))
        };
        let (is_trusted, stamps) =
            open().map_err(|cause| failed("cannot make the folder", &hidden, cause))?;
        if !is_trusted {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "{} belongs to another user, who could forge every token in it",
                    hidden.display()
                ),
            )
            .advise(
                "use a folder in which only you can write, or let that one be made by its owner",
            ));
        }
        let location = format!("files in {}", path.display());
        let store = Self(Arc::new(Folders { values, stamps }));
        Ok(Store::new(Arc::new(store), location))
    }

    /// Does something under the folder's lock, away from the runtime's threads.
    async fn locked<T: Send + 'static>(
        &self,
        how: FlockArg,
        work: impl FnOnce(&Folders) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folders = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || {
            let _locked = lock(&folders.stamps, how)
                .map_err(|cause| failed("cannot lock", &folders.stamps.path().join(LOCK), cause))?;
            work(&folders)
        });
        done.await.unwrap_or_else(|cause| {
            let error = Error::new(ErrorKind::Unexpected, "the work on a file was given up");
            Err(error.caused_by(cause).of_unknown_effect())
        })
    }
}

fn file_name(key: &Key) -> Result<String> {
    let mut name = utf8_percent_encode(key.as_str(), PLAIN).to_string();
    if let Some(rest) = name.strip_prefix('.') {
        name = format!("%2E{rest}");
    }
    if name.len() > LONGEST {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("the key {:?} is too long for a file's name", key.as_str()),
        )
        .advise(format!(
            "use up to {LONGEST} bytes; each that is not a letter, digit, dot, dash or underscore counts as three"
        )));
    }
    Ok(name)
}

impl Folders {
    /// What is there, unless it has ended.
    fn look(&self, name: &str) -> Result<Found> {
        let read = |folder: &Folder| {
            let path = folder.path().join(name);
            let read = folder.read(name);
            read.map_err(|cause| failed("cannot read", &path, cause))
        };
        let stamp = match read(&self.stamps)? {
            Some(text) => {
                Some(read_stamp(&text).ok_or_else(|| unfit(&self.stamps.path().join(name)))?)
            }
            None => None,
        };
        if matches!(&stamp, Some((_, Some(ends))) if *ends <= wall_clock_micros()) {
            return Ok(Found::default());
        }
        Ok(Found {
            value: read(&self.values)?,
            stamp: stamp.map(|(stamp, _)| stamp),
        })
    }

    fn put(&self, name: &str, content: &Content<'_>, stamp: &Stamp) -> Result<Version> {
        let write = || match content.value {
            _ if content.is_nothing() => self.forget(name),
            Some(value) => {
                self.stamps
                    .write_whole(name, &write_stamp(stamp, content))?;
                self.values.write_whole(name, value)
            }
            None => {
                self.stamps
                    .write_whole(name, &write_stamp(stamp, content))?;
                self.values.remove(name)
            }
        };
        write().map_err(|cause| {
            let path = self.values.path().join(name);
            failed("cannot write", &path, cause).of_unknown_effect()
        })?;
        if content.lifetime.is_some() {
            // If it fails now, whoever comes next does it.
            let _ = self.sweep();
        }
        Ok(stamp.version)
    }

    /// The value first: without its stamp it would be a file that somebody put there.
    fn forget(&self, name: &str) -> io::Result<()> {
        self.values.remove(name)?;
        self.stamps.remove(name)
    }

    /// Forgets all that has ended, once in a while.
    fn sweep(&self) -> io::Result<()> {
        let swept = self.stamps.modified(SWEPT)?;
        if swept.is_some_and(|at| at.elapsed().is_ok_and(|since| since < SWEEP_EVERY)) {
            return Ok(());
        }
        let now = wall_clock_micros();
        for entry in fs::read_dir(self.stamps.path())? {
            let name = entry?.file_name();
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            let stamp = self.stamps.read(name)?.and_then(|text| read_stamp(&text));
            if matches!(stamp, Some((_, Some(ends))) if ends <= now) {
                self.forget(name)?;
            }
        }
        self.stamps.write_whole(SWEPT, b"")
    }
}

#[derive(Default)]
struct Found {
    value: Option<Vec<u8>>,
    stamp: Option<Stamp>,
}

impl Found {
    /// A file that someone put there by hand is version 0.
    fn stamp(&self) -> Option<Stamp> {
        let deleted = self.value.is_none();
        match &self.stamp {
            Some(stamp) => Some(Stamp {
                deleted,
                ..stamp.clone()
            }),
            None if deleted => None,
            None => Some(Stamp {
                version: Version::new(0),
                token: FencingToken::NONE,
                lock: None,
                deleted,
            }),
        }
    }
}

#[async_trait]
impl AtomicStore for FileStore {
    async fn load(&self, key: &Key) -> Result<Option<Record>> {
        let name = file_name(key)?;
        let found = self.locked(FlockArg::LockSharedNonblock, move |folders| {
            folders.look(&name)
        });
        let found = found.await?;
        Ok(found.stamp().and_then(|stamp| stamp.with(found.value)))
    }

    async fn write<T: Send + 'static>(
        &self,
        key: &Key,
        content: Content<'_>,
        decide: Decide<T>,
    ) -> Result<Result<Version, T>> {
        let name = file_name(key)?;
        let (value, lifetime) = (content.value.map(<[u8]>::to_vec), content.lifetime);
        self.locked(FlockArg::LockExclusiveNonblock, move |folders| {
            let content = Content {
                value: value.as_deref(),
                lifetime,
            };
            let there = folders.look(&name)?.stamp();
            Ok(match decide(there.as_ref(), &content, Version::first())? {
                Ok(stamp) => Ok(folders.put(&name, &content, &stamp)?),
                Err(refused) => Err(refused),
            })
        })
        .await
    }
}

/// How long to wait for others that write; they take milliseconds, unless one is stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for the lock, but not for ever: a process that has it may be stopped.
fn lock(folder: &Folder, how: FlockArg) -> io::Result<Flock<fs::File>> {
    let mut file = folder.lock_file(LOCK)?;
    let end = Instant::now() + PATIENCE;
    let mut delays = Backoff::new(
        fastrand::u64(..),
        Duration::from_micros(100),
        Duration::from_millis(10),
    );
    loop {
        match Flock::lock(file, how) {
            Ok(locked) => return Ok(locked),
            Err((again, nix::Error::EINTR | nix::Error::EWOULDBLOCK)) if Instant::now() < end => {
                file = again;
                std::thread::sleep(delays.delay());
            }
            Err((_, nix::Error::EWOULDBLOCK)) => {
                let what = "another process keeps it locked: see who has it open (fuser)";
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            Err((_, cause)) => return Err(cause.into()),
        }
    }
}

fn write_stamp(stamp: &Stamp, content: &Content<'_>) -> Vec<u8> {
    let lock = stamp.lock.as_ref().map_or("", |lock| lock.as_str());
    let ends = content.lifetime.map(ends_at);
    let ends = ends.map_or(String::new(), |ends| ends.to_string());
    format!("{}\n{}\n{lock}\n{ends}\n", stamp.version, stamp.token).into_bytes()
}

/// The stamp, and when it ends.
fn read_stamp(text: &[u8]) -> Option<(Stamp, Option<u64>)> {
    let mut lines = std::str::from_utf8(text).ok()?.lines();
    let version = Version::new(lines.next()?.parse().ok()?);
    let token = FencingToken::new(lines.next()?.parse().ok()?)?;
    let lock = match lines.next()? {
        "" => None,
        name => Some(LockName::new(name).ok()?),
    };
    let ends = match lines.next()? {
        "" => None,
        ends => Some(ends.parse().ok()?),
    };
    let stamp = Stamp {
        version,
        token,
        lock,
        // The value shows whether there is one.
        deleted: false,
    };
    Some((stamp, ends))
}

fn failed(what: &str, path: &Path, cause: io::Error) -> Error {
    let kind = match cause.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::AlreadyExists => ErrorKind::InvalidConfig,
        io::ErrorKind::InvalidInput => ErrorKind::EngineUnfit,
        _ => ErrorKind::Unreachable,
    };
    let advice = match kind {
        ErrorKind::EngineUnfit => "see who has put it there: a link or a pipe is not followed",
        _ => "check that the folder exists, is writable and has free space",
    };
    Error::new(kind, format!("{what} {}: {cause}", path.display()))
        .advise(advice)
        .caused_by(cause)
}

fn unfit(path: &Path) -> Error {
    Error::new(
        ErrorKind::EngineUnfit,
        format!("{} is no stamp of a guarded file", path.display()),
    )
    .advise("put it back from a backup; without it, old tokens would be let in again")
}
