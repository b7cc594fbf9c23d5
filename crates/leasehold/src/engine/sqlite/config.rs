//! Where the file is, and how it is used.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::boot_clock::BootClock;
use super::database::Location;
use super::failure::{self, of_path};
use super::{DRIVER, Sqlite};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::url::{EngineUrl, check_times, invalid};

/// How locks are kept in a file: where it is, and all that a `sqlite:` URL can say.
///
/// ```
/// use leasehold::Locks;
/// use leasehold::engine::sqlite::SqliteConfig;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let path = folder.path().join("locks.db");
/// let locks = Locks::new(SqliteConfig::new(path).connect().await?);
/// let lease = locks.lock("report").acquire().await?;
/// # lease.release().await?;
/// // The same from a URL.
/// let config: SqliteConfig = "sqlite:/var/lib/app/locks.db?busy_timeout=1s".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteConfig {
    /// None for the user's own.
    path: Option<PathBuf>,
    pub(super) busy_timeout: Duration,
}

/// The user's own file, `$XDG_STATE_HOME/leasehold/locks.db`.
impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            path: None,
            busy_timeout: Duration::from_secs(5),
        }
    }
}

/// From a URL.
impl FromStr for SqliteConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::from_url(&DRIVER.parse(url)?)
    }
}

impl SqliteConfig {
    /// The file at this path. It is made if need be; its folder must exist. [`default`](Self::default) is the user's own file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Some(path.into()),
            ..Self::default()
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        if !url.hosts.is_empty() {
            let what = format!(
                "sqlite: URLs name no host, but this one has {:?}",
                url.hosts.join(",")
            );
            return Err(invalid(what).advise("write sqlite:/absolute/path or sqlite:relative/path"));
        }
        let config = match url.path.as_str() {
            "" => Self::default(),
            path => Self::new(path),
        };
        Ok(match url.duration("busy_timeout")? {
            Some(timeout) => config.busy_timeout(timeout),
            None => config,
        })
    }

    /// How long to wait for a file that another process keeps locked, from a millisecond to a day; 5 seconds by default.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Opens the file, and makes it if need be. [`Locks::new`](crate::Locks::new) makes locks of the engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the path names no file that locks can be kept in, or a time is out of range; `Denied` if this user may not write there; `EngineUnfit` if the
    /// file is another program's, or damaged.
    ///
    /// # Cancel safety
    ///
    /// It never waits for anything but the file system, and is carried out at once.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        let during = |error: Error| {
            let path = self.path.as_deref().unwrap_or(Path::new(""));
            error.during("open the database", format!("sqlite:{}", path.display()))
        };
        check_times(&[("busy_timeout", self.busy_timeout)])?;
        let clock = BootClock::of_this_process().map_err(Error::from);
        let opened = clock.and_then(|clock| Sqlite::open(&self, clock));
        Ok(Arc::new(opened.map_err(during)?))
    }

    /// The file, which is made if need be; for none, the user's own, whose folder is made too.
    pub(super) fn locate(&self) -> failure::Result<Location> {
        let Some(path) = &self.path else {
            let folder = state_folder()?;
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(|cause| of_path("cannot make the folder", &folder, cause))?;
            return Location::of(folder.join("locks.db"));
        };
        if path == Path::new("") {
            let advice = "name a file, or use SqliteConfig::default() for the one of this user";
            return Err(invalid("the path is empty").advise(advice).into());
        }
        if path == Path::new(":memory:") {
            let what = "locks in an SQLite database in memory would exclude nobody";
            let advice = "use the URL memory: for locks within one process";
            return Err(invalid(what).advise(advice).into());
        }
        let absolute = std::path::absolute(path);
        Location::of(absolute.map_err(|cause| of_path("cannot use the path", path, cause))?)
    }
}

/// `$XDG_STATE_HOME/leasehold`, by default `~/.local/state/leasehold`.
fn state_folder() -> failure::Result<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let state = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let home = || set("HOME").filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(home()?.join(".local/state")));
    state.map(|state| state.join("leasehold")).ok_or_else(|| {
        let error = Error::new(
            ErrorKind::InvalidConfig,
            "neither XDG_STATE_HOME nor HOME names a folder for the default database",
        )
        .advise("set one of them, or name a file: sqlite:/path/to/locks.db");
        error.into()
    })
}
