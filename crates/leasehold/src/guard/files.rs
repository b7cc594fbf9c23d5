//! Files in a folder that refuse stale writes.
//!
//! `FOLDER/<key>` is the value as it is, for any program to read; `FOLDER/.leasehold/<key>` is its stamp: version, token and lock. Each is
//! written through a temporary file and a rename, the stamp first, both under the folder's own lock. So whatever is cut short
//! leaves an old value or a new one, whole, and a token that has not gone back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use nix::fcntl::{Flock, FlockArg};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::record::{Checked, Fenced, Key, Pass, Record, Stamp, Version};
use super::store::{GuardedStore, Store};
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// Kept as they are in a file's name; a leading dot is not.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// What a file's name may have, less room for a temporary one.
const LONGEST: usize = 240;

/// Guarded files in one folder.
#[derive(Debug, Clone)]
pub struct FileStore {
    folder: Arc<Path>,
}

impl FileStore {
    /// The folder, which is made if need be.
    pub fn open(folder: impl AsRef<Path>) -> Result<Store> {
        let folder = folder.as_ref();
        let stamps = folder.join(".leasehold");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&stamps)
            .map_err(|cause| failed("cannot make the folder", &stamps, cause))?;
        let store = Self {
            folder: folder.into(),
        };
        let location = format!("files in {}", folder.display());
        Ok(Store::new(Arc::new(store), location))
    }

    fn paths(&self, key: &Key) -> Result<(PathBuf, PathBuf)> {
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
        let stamp = self.folder.join(".leasehold").join(&name);
        Ok((self.folder.join(name), stamp))
    }

    /// Does something under the folder's lock, away from the runtime's threads.
    async fn locked<T: Send + 'static>(
        &self,
        how: FlockArg,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let path = store.folder.join(".leasehold/.lock");
            let opened = OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o644)
                .open(&path);
            let file = opened.map_err(|cause| failed("cannot open", &path, cause))?;
            let _locked = lock(file, how).map_err(|cause| failed("cannot lock", &path, cause))?;
            work(&store)
        });
        done.await.unwrap_or_else(|cause| {
            let error = Error::new(ErrorKind::Unexpected, "the work on a file was given up");
            Err(error.caused_by(cause).of_unknown_effect())
        })
    }

    /// What is there. A stamp without a value is that of a first write that was cut short: only its token counts.
    fn look(&self, key: &Key) -> Result<Found> {
        let (value, stamp) = self.paths(key)?;
        let stamp = match fs::read_to_string(&stamp) {
            Ok(text) => Some(read_stamp(&text).ok_or_else(|| unfit(&stamp))?),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(failed("cannot read", &stamp, cause)),
        };
        let value = match fs::read(&value) {
            Ok(value) => Some(value),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(failed("cannot read", &value, cause)),
        };
        Ok(Found { value, stamp })
    }

    fn put(&self, key: &Key, value: &[u8], stamp: &Stamp) -> Result<Version> {
        let (value_path, stamp_path) = self.paths(key)?;
        write_whole(&stamp_path, write_stamp(stamp).as_bytes())?;
        write_whole(&value_path, value)?;
        Ok(stamp.version)
    }
}

struct Found {
    value: Option<Vec<u8>>,
    stamp: Option<Stamp>,
}

impl Found {
    /// What a fenced write meets.
    fn fence(&self) -> Option<Stamp> {
        self.stamp.clone().or_else(|| self.record())
    }

    /// What an optimistic write meets: a file that someone put there by hand is version 0.
    fn record(&self) -> Option<Stamp> {
        self.value.as_ref()?;
        Some(self.stamp.clone().unwrap_or(Stamp {
            version: Version::new(0),
            token: FencingToken::NONE,
            lock: None,
        }))
    }

    /// The stamp after an optimistic write. Where there is no record, a stamp may still have been left behind.
    fn checked(&self, version: Option<Version>) -> Result<Stamp, Option<Version>> {
        let record = self.record();
        let mut new = Stamp::checked(record.as_ref(), version)?;
        if let Some(left) = &self.stamp {
            new.version = Version::new(left.version.get() + 1);
            new.token = left.token;
            new.lock = left.lock.clone();
        }
        Ok(new)
    }
}

#[async_trait]
impl GuardedStore for FileStore {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let key = key.clone();
        let found = self
            .locked(FlockArg::LockShared, move |store| store.look(&key))
            .await?;
        let stamp = found.record();
        Ok(found.value.zip(stamp).map(|(value, stamp)| Record {
            value,
            version: stamp.version,
            token: stamp.token,
            lock: stamp.lock,
        }))
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        let (key, value, pass) = (key.clone(), value.to_vec(), pass.clone());
        self.locked(FlockArg::LockExclusive, move |store| {
            let there = store.look(&key)?.fence();
            Ok(match Stamp::fenced(there.as_ref(), &pass)? {
                Ok(stamp) => Fenced::Written {
                    version: store.put(&key, &value, &stamp)?,
                },
                Err(highest) => Fenced::Refused { highest },
            })
        })
        .await
    }

    async fn write_if(&self, key: &Key, value: &[u8], version: Option<Version>) -> Result<Checked> {
        let (key, value) = (key.clone(), value.to_vec());
        self.locked(FlockArg::LockExclusive, move |store| {
            Ok(match store.look(&key)?.checked(version) {
                Ok(stamp) => Checked::Written {
                    version: store.put(&key, &value, &stamp)?,
                },
                Err(version) => Checked::Changed { version },
            })
        })
        .await
    }
}

/// Waits for as long as it takes: a lock on a file ends with the process that has it.
fn lock(mut file: File, how: FlockArg) -> io::Result<Flock<File>> {
    loop {
        match Flock::lock(file, how) {
            Ok(locked) => return Ok(locked),
            Err((again, nix::Error::EINTR)) => file = again,
            Err((_, cause)) => return Err(cause.into()),
        }
    }
}

/// All of it or nothing, whatever happens in between.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(unfit(path));
    };
    // Only one writes at a time, and the next overwrites what a dead one left.
    let temporary = folder.join(format!(".{}.new", name.to_string_lossy()));
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|cause: io::Error| failed("cannot write", path, cause).of_unknown_effect())
}

fn write_stamp(stamp: &Stamp) -> String {
    let lock = stamp.lock.as_ref().map_or("", |lock| lock.as_str());
    format!("{}\n{}\n{lock}\n", stamp.version, stamp.token)
}

fn read_stamp(text: &str) -> Option<Stamp> {
    let mut lines = text.lines();
    let version = Version::new(lines.next()?.parse().ok()?);
    let token = FencingToken::new(lines.next()?.parse().ok()?)?;
    let lock = match lines.next()? {
        "" => None,
        name => Some(LockName::new(name).ok()?),
    };
    Some(Stamp {
        version,
        token,
        lock,
    })
}

fn failed(what: &str, path: &Path, cause: io::Error) -> Error {
    let kind = match cause.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => ErrorKind::InvalidConfig,
        _ => ErrorKind::Unreachable,
    };
    Error::new(kind, format!("{what} {}", path.display()))
        .advise("see that the folder is there, writable, and has room")
        .caused_by(cause)
}

fn unfit(path: &Path) -> Error {
    Error::new(
        ErrorKind::EngineUnfit,
        format!("{} is no stamp of a guarded file", path.display()),
    )
    .advise("put it back from a backup; without it, old tokens would be let in again")
}
