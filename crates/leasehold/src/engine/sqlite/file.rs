//! The database file: where it is, how it is opened, whether it is ours.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::failure::{Result, of_path, unfit};
use super::table::LAYOUT;
use crate::error::{Error, ErrorKind};

/// "Leas", so that a stray file of another program is not taken for ours.
const APPLICATION: i32 = 0x4c65_6173;
const VERSION: i32 = 1;

/// Past this the log is written back into the database when it is opened: whoever opens the file
/// first after all others have gone must read the whole log. Each page of it costs some microseconds at each
/// opening, and writing it back costs some fsyncs: between the two, this is where the sum is smallest.
const LONG_LOG: u64 = 160 * 1024;

/// Before a file is asked for again that is busy.
const A_MOMENT: Duration = Duration::from_millis(5);

/// Finds the file that a URL's path names; for none, the user's own, whose folder is made if need be.
pub(super) fn locate(path: &str) -> Result<PathBuf> {
    if path.is_empty() {
        let folder = state_folder()?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|cause| of_path("cannot make the folder", &folder, cause))?;
        return Ok(folder.join("locks.db"));
    }
    if path == ":memory:" {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            "locks in an SQLite database in memory would exclude nobody",
        )
        .advise("use the URL memory: for locks within one process")
        .into());
    }
    let absolute = std::path::absolute(path);
    Ok(absolute.map_err(|cause| of_path("cannot use the path", path.as_ref(), cause))?)
}

/// `$XDG_STATE_HOME/leasehold`, by default `~/.local/state/leasehold`.
fn state_folder() -> Result<PathBuf> {
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

/// Closing a file ends all POSIX locks that its process has on it, SQLite's too: a file may only be opened by
/// other means than SQLite while no thread of this process can have it open.
static OPENING: Mutex<()> = Mutex::new(());

/// Makes the file if need be, and returns its permissions. It holds claim ids, so only its owner may read it;
/// whoever widens that with chmod widens it for the log, the pipes and the turnstile too.
pub(super) fn create(path: &Path) -> Result<u32> {
    let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let metadata = match created {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => fs::metadata(path),
        created => created.and_then(|file| file.metadata()),
    };
    match metadata {
        Ok(file) if file.is_file() => Ok(file.permissions().mode() & 0o666),
        Ok(_) => {
            let cause = io::Error::new(io::ErrorKind::IsADirectory, "it is not a file");
            Err(of_path("cannot use", path, cause).into())
        }
        Err(cause) => Err(of_path("cannot open", path, cause).into()),
    }
}

/// Opens the file and sees that it is ours and of this boot. To switch a new file to WAL, SQLite needs it alone for a moment, and
/// may say that it is busy without waiting; so it is asked again.
pub(super) fn open(path: &Path, busy_timeout: Duration) -> Result<Connection> {
    let end = Instant::now() + busy_timeout;
    loop {
        match open_once(path, busy_timeout) {
            Err(fault) if fault.is_busy() && Instant::now() < end => thread::sleep(A_MOMENT),
            opened => return opened,
        }
    }
}

fn open_once(path: &Path, busy_timeout: Duration) -> Result<Connection> {
    let mut connection = connect(path, busy_timeout)?;
    match registered(&connection) {
        Ok(Some(register)) if register == Register::now() => {}
        Ok(Some(_)) => renew_register(&mut connection)?,
        _ => {
            lay_out(&mut connection)?;
            renew_register(&mut connection)?;
        }
    }
    shorten_log(path, &connection);
    // From here on waiting is done at the turnstile.
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

pub(super) fn connect(path: &Path, busy_timeout: Duration) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = {
        let _not_while_created = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        Connection::open_with_flags(path, flags)
    };
    let connection = opened?;
    connection.busy_timeout(busy_timeout)?;
    // Closing must not cost an fsync: `leasehold run` opens and closes the file for one command.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Without this, binding a name makes SQLite plan the statement anew each time.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(64);
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(unfit("this file system cannot hold a database in WAL mode").into());
    }
    // A commit is then a write without fsync. Locks end with the machine, so a power cut takes nothing
    // that still counts, and the file itself stays sound.
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0")?;
    Ok(connection)
}

/// Which boot of the machine, and which of its clocks, the moments in the table belong to.
#[derive(Debug, PartialEq, Eq)]
struct Register {
    boot: String,
    time_namespace: String,
}

impl Register {
    fn now() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            time_namespace: namespace.to_string_lossy().into_owned(),
        }
    }
}

fn registered(connection: &Connection) -> rusqlite::Result<Option<Register>> {
    connection
        .query_row(
            "SELECT owner, host FROM claims WHERE name = '' AND token = 0",
            [],
            |row| {
                Ok(Register {
                    boot: row.get(0)?,
                    time_namespace: row.get(1)?,
                })
            },
        )
        .optional()
}

/// After a restart of the machine nobody holds or waits any more; the greatest token stays.
fn renew_register(connection: &mut Connection) -> Result<()> {
    let now = Register::now();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let then = registered(&transaction)?;
    if let Some(then) = then.filter(|then| then.boot == now.boot && *then != now) {
        let (there, here) = (then.time_namespace, now.time_namespace);
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("the file is in use from another time namespace ({there}; here {here})"),
        )
        .advise("run all users of one file in one time namespace, or use another file")
        .into());
    }
    transaction.execute(
        "DELETE FROM claims WHERE name > '' AND (SELECT owner FROM claims WHERE name = '') <> ?1",
        [&now.boot],
    )?;
    transaction.execute(
        "UPDATE claims SET owner = ?1, host = ?2 WHERE name = ''",
        [&now.boot, &now.time_namespace],
    )?;
    Ok(transaction.commit()?)
}

/// Makes the table in an empty file; refuses a file of another program or a newer version.
fn lay_out(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let number = |sql| transaction.query_row(sql, [], |row| row.get::<_, i32>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    match (application, version, tables) {
        (APPLICATION, VERSION, _) => return Ok(()),
        (APPLICATION, newer, _) => {
            return Err(unfit(format!(
                "the file was made by another version of leasehold (layout {newer}, here {VERSION})"
            ))
            .advise("let all programs that use the file have the same version, or use another path")
            .into());
        }
        (0, 0, 0) => {}
        _ => return Err(unfit("the file is the database of another program").into()),
    }
    transaction.execute_batch(LAYOUT)?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    Ok(transaction.commit()?)
}

fn shorten_log(path: &Path, connection: &Connection) {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    if fs::metadata(log).is_ok_and(|log| log.len() > LONG_LOG) {
        // Otherwise the log keeps its length when it starts anew, and each opening would write it back.
        let _ = connection.query_row("PRAGMA journal_size_limit = 0", [], |_| Ok(()));
        write_back(connection);
    }
}

/// Writes the log back into the database, as far as nobody is in the way. A failure only means that the log
/// is longer for a while.
pub(super) fn write_back(connection: &Connection) {
    let _ = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
}

/// A second connection to the same file, for work that may take its time.
pub(super) fn open_again(path: &Path) -> Result<Connection> {
    connect(path, Duration::ZERO)
}
