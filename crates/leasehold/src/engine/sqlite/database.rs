//! The database file: where it is, how it is opened, whether it is ours.

use std::cell::Cell;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, params};

use super::boot_clock::BootClock;
use super::claims_table::{IS_OVER, LAYOUT, micros};
use super::failure::{Result, of_path, unfit};
use super::owner::Owner;
use crate::error::{Error, ErrorKind};
use crate::sync::Mutex;

/// "Leas", so that a stray file of another program is not taken for ours.
pub(super) const APPLICATION: i32 = 0x4c65_6173;

/// Of both layouts, that of the locks and that of the records.
const VERSION: i32 = 1;

/// Past this the log is written back into the database when it is opened: whoever opens the file
/// first after all others have gone must read the whole log. Each page of it costs some microseconds at each
/// opening, and writing it back costs some fsyncs: between the two, this is where the sum is smallest.
const LONG_LOG: u64 = 160 * 1024;

/// Before a file is asked for again that is busy.
const A_MOMENT: Duration = Duration::from_millis(5);

/// Where a database is: the path as it was given, and the file that it led to when it was opened. What lies beside the file lies beside
/// that one, whichever links lead there.
#[derive(Debug, Clone)]
pub(super) struct Location {
    given: PathBuf,
    file: PathBuf,
    /// Whether the path may be a link.
    may_be_link: bool,
}

impl Location {
    /// Makes the file if need be.
    pub(super) fn of(given: PathBuf) -> Result<Self> {
        let file = fs::canonicalize(&given).or_else(|_| {
            create(&given, None)?;
            let resolved = fs::canonicalize(&given);
            resolved.map_err(|cause| of_path("cannot use the path", &given, cause))
        })?;
        Ok(Self {
            given,
            file,
            may_be_link: true,
        })
    }

    /// A file that no link leads to: one there is not followed.
    pub(super) fn at(file: PathBuf) -> Self {
        Self {
            given: file.clone(),
            file,
            may_be_link: false,
        }
    }

    pub(super) fn given(&self) -> &Path {
        &self.given
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// A file beside this one.
    pub(super) fn beside(&self, ending: &str) -> PathBuf {
        let mut path = self.file.as_os_str().to_owned();
        path.push(ending);
        path.into()
    }

    /// Fails if the path leads elsewhere by now, by a link that was switched: whoever opens it from now on has other locks.
    pub(super) fn check(&self) -> Result<()> {
        if !self.may_be_link {
            let there = fs::symlink_metadata(&self.file);
            return match there.is_ok_and(|there| there.is_symlink()) {
                true => Err(not_followed(&self.file).into()),
                false => Ok(()),
            };
        }
        match fs::canonicalize(&self.given) {
            Ok(file) if file != self.file => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "{} led to {} when it was opened, and now leads to {}",
                    self.given.display(),
                    self.file.display(),
                    file.display()
                ),
            )
            .advise("start this program again, so that it has the same locks as those who open the file now")
            .into()),
            _ => Ok(()),
        }
    }
}

fn not_followed(link: &Path) -> Error {
    let what = format!("{} is a link, which is not followed", link.display());
    Error::new(ErrorKind::InvalidConfig, what)
        .advise("find out who has put it there, and remove it")
}

/// How often the log and its index are looked for, besides the database itself.
const LOOK_FOR_LOG_EVERY: Duration = Duration::from_secs(1);

/// An open database.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) connection: Connection,
    pub(super) access: Access,
    file: PathBuf,
    /// The files that SQLite has open: the database, its log, and the log's index, where it has its locks.
    files: [(PathBuf, Inode); 3],
    log_seen: Cell<Instant>,
}

/// Who may use a database, and what lies beside it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access {
    pub(super) permissions: u32,
    pub(super) owner: Owner,
}

/// On a device.
type Inode = (u64, u64);

fn inode(path: &Path) -> io::Result<Inode> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

fn located(path: PathBuf) -> io::Result<(PathBuf, Inode)> {
    let inode = inode(&path)?;
    Ok((path, inode))
}

impl Database {
    /// Opens a file, which is made if need be. The connection must have read from it when it is returned.
    pub(super) fn open(
        location: &Location,
        connect: impl FnOnce(&Path) -> Result<Connection>,
    ) -> Result<Self> {
        // What is beyond a link is not even looked at.
        location.check()?;
        let access = create(&location.file, None)?;
        location.check()?;
        // The path as it was given may be a link, which others may switch.
        let database = located(location.given.clone())
            .map_err(|cause| of_path("cannot use", &location.given, cause))?;
        let connection = connect(&location.file)?;
        let [log, index] = ["-wal", "-shm"].map(|ending| {
            let path = location.beside(ending);
            located(path.clone()).map_err(|_| log_deleted(&path))
        });
        let opened = Self {
            connection,
            access,
            file: location.file.clone(),
            files: [database, log?, index?],
            log_seen: Cell::new(Instant::now()),
        };
        if !is_there(&opened.files[0]) {
            return Err(Error::new(
                ErrorKind::Unreachable,
                format!(
                    "{} was replaced while it was opened",
                    location.file.display()
                ),
            )
            .advise("try again")
            .because_busy()
            .into());
        }
        Ok(opened)
    }

    /// Whether the database that is open is still the one at the path. SQLite goes on with files that were deleted or replaced, whereas whoever opens
    /// the path then makes others, and each would have locks of its own. To be asked within a transaction: whoever deletes them later does so after it.
    ///
    /// A look costs half a microsecond, and a transaction some eight. So each one looks for the database itself, and only the first of each second
    /// for its log, which nobody deletes alone without meaning harm.
    pub(super) fn is_current(&self) -> Result<bool> {
        let [database, log @ ..] = &self.files;
        if !is_there(database) {
            // A link that leads elsewhere now leaves the file itself where it is.
            let is_elsewhere = inode(&self.file).is_ok_and(|inode| inode == database.1);
            return match log.iter().find(|file| is_there(file)) {
                Some((path, _)) if !is_elsewhere => Err(deleted_alone(&self.file, path).into()),
                _ => Ok(false),
            };
        }
        if self.log_seen.get().elapsed() >= LOOK_FOR_LOG_EVERY {
            if let Some((path, _)) = log.iter().find(|file| !is_there(file)) {
                return Err(log_deleted(path).into());
            }
            self.log_seen.set(Instant::now());
        }
        Ok(true)
    }
}

fn is_there((path, known): &(PathBuf, Inode)) -> bool {
    inode(path).is_ok_and(|inode| inode == *known)
}

/// To open the file again would take away SQLite's locks on the log: the old connection and the new one would share it, and closing one of
/// them ends the locks of both.
fn deleted_alone(database: &Path, left: &Path) -> Error {
    unfit(format!(
        "{} was deleted or replaced, but not {}",
        database.display(),
        left.display()
    ))
    .advise("delete the files that end in -wal and -shm too, while nobody holds a lock")
}

/// To open the file again would not help: within a process SQLite opens the index of a log once.
fn log_deleted(path: &Path) -> Error {
    unfit(format!(
        "{} was deleted while it was in use",
        path.display()
    ))
    .advise("start all programs again that use the file")
}

/// Closing a file ends all POSIX locks that its process has on it, SQLite's too: a file may only be opened by
/// other means than SQLite while no thread of this process can have it open.
static OPENING: Mutex<()> = Mutex::new(());

/// Makes the file if need be, for someone else if that is said, and returns who may use it. It holds claim ids, so only its owner may read it;
/// whoever widens that with chmod widens it for the log, the pipes and the writers' lock too.
pub(super) fn create(path: &Path, owner: Option<Owner>) -> Result<Access> {
    let _alone = OPENING.lock();
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let metadata = match created {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => fs::metadata(path),
        created => created.and_then(|file| {
            if let Some(owner) = owner {
                owner.give(&file);
            }
            file.metadata()
        }),
    };
    match metadata {
        Ok(file) if file.is_file() => {
            check_name(path, &file)?;
            Ok(Access {
                permissions: file.permissions().mode() & 0o666,
                owner: Owner::of(&file),
            })
        }
        Ok(_) => {
            let cause = io::Error::new(io::ErrorKind::IsADirectory, "it is not a file");
            Err(of_path("cannot use", path, cause).into())
        }
        Err(cause) => Err(of_path("cannot open", path, cause).into()),
    }
}

/// SQLite keeps the log and its locks beside the name that it opens a file by: by two names, a file would have two of each.
fn check_name(path: &Path, file: &Metadata) -> Result<()> {
    let what = if file.nlink() > 1 {
        "has a second name (a hard link)"
    } else if is_mounted_alone(path) {
        "is mounted alone, without its folder"
    } else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::InvalidConfig,
        format!(
            "{} {what}, and locks taken there would not count here",
            path.display()
        ),
    )
    .advise("share the folder that the file is in, and use one name for the file")
    .into())
}

/// Whether a file is the root of a mount, as `docker -v FILE:FILE` makes it: not on the same mount as the folder that it is in.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_mounted_alone(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else {
        return false;
    };
    let folder = path.parent().unwrap_or(&path);
    match (mount(&path), mount(folder)) {
        (Ok(file), Ok(folder)) => file != folder,
        _ => false,
    }
}

/// The number of the mount that a path is on. Opened as a mere path, a file has no locks to lose when it is closed.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mount(path: &Path) -> io::Result<Option<String>> {
    use std::os::fd::AsRawFd;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_PATH.bits())
        .open(path)?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    Ok(number.map(|number| number.trim().to_owned()))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_mounted_alone(_: &Path) -> bool {
    false
}

/// Opens the file and sees that it is ours and of this boot. To switch a new file to WAL, SQLite needs it alone for a moment, and
/// may say that it is busy without waiting; so it is asked again.
pub(super) fn open(
    location: &Location,
    busy_timeout: Duration,
    clock: &BootClock,
) -> Result<Database> {
    let end = Instant::now() + busy_timeout;
    loop {
        match Database::open(location, |path| open_once(path, busy_timeout, clock)) {
            Err(fault) if fault.is_busy() && Instant::now() < end => thread::sleep(A_MOMENT),
            opened => return opened,
        }
    }
}

fn open_once(path: &Path, busy_timeout: Duration, clock: &BootClock) -> Result<Connection> {
    let boot = boot(BOOT_ID.map(Path::new))?;
    let mut connection = connect(path, busy_timeout, Some(APPLICATION))?;
    let registered = registered(&connection);
    if !matches!(registered, Ok(Some(_))) {
        lay_out(&mut connection, APPLICATION, LAYOUT)?;
    }
    if !matches!(registered, Ok(Some(same)) if same == boot) {
        renew_register(&mut connection, &boot, clock)?;
    }
    shorten_log(path, &connection);
    // From here on the writer does the waiting.
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

/// Connects to the database of an application, or to a new one; without an application, to any. Another program's is left as it is.
pub(super) fn connect(
    path: &Path,
    busy_timeout: Duration,
    application: Option<i32>,
) -> Result<Connection> {
    // Links were followed before, as far as they may be.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let opened = {
        let _not_while_created = OPENING.lock();
        Connection::open_with_flags(path, flags)
    };
    let connection = opened?;
    connection.busy_timeout(busy_timeout)?;
    // Closing must not cost an fsync: `leasehold run` opens and closes the file for one command.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Without this, binding a name makes SQLite plan the statement anew each time.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(64);
    if let Some(application) = application {
        // In one transaction: another process may be making the tables.
        let transaction = connection.unchecked_transaction()?;
        is_laid_out(&transaction, application)?;
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(unfit("this file system cannot hold a database in WAL mode").into());
    }
    // A commit is then a write without fsync. Locks end with the machine, so a power cut takes nothing
    // that still counts, and the file itself stays sound.
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0")?;
    Ok(connection)
}

/// Where the system says which boot this is. On others than Linux nothing says so that neither steps with the wall clock nor needs
/// another program: a claim from before a restart is recognized there by its times, which lie ahead, and lasts for one TTL more at most.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_ID: Option<&str> = Some("/proc/sys/kernel/random/boot_id");
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_ID: Option<&str> = None;

/// Empty where the system has no such id. Where it has one, whoever cannot read it must not go on: to others it would seem
/// that the machine had been started again, and their locks would be gone.
fn boot(id: Option<&Path>) -> Result<String> {
    let Some(path) = id else {
        return Ok(String::new());
    };
    let id = fs::read_to_string(path).unwrap_or_default();
    if id.trim().is_empty() {
        let what = format!(
            "{} cannot be read, and so not known which boot of the machine the locks belong to",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidConfig, what)
            .advise("mount /proc, or use another engine")
            .into());
    }
    Ok(id.trim().to_owned())
}

/// The boot that the moments in the table belong to.
fn registered(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let select = "SELECT owner FROM claims WHERE name = '' AND token = 0";
    connection
        .query_row(select, [], |row| row.get(0))
        .optional()
}

/// After a restart of the machine its clock has begun anew: what lies ahead of it, or is over, is held or waited for by nobody. What does not
/// stays for its TTL, since the boot id alone proves nothing: some containers are given one of their own. The greatest token stays.
fn renew_register(connection: &mut Connection, boot: &str, clock: &BootClock) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Not before: what others have committed meanwhile would lie ahead of this moment.
    let now = clock.now();
    let gone = format!(
        "DELETE FROM claims WHERE name > '' AND (SELECT owner FROM claims WHERE name = '') <> ?2
         AND (held = 1 AND {IS_OVER} OR held = 0 AND since > ?1 + 1000)"
    );
    transaction.execute(&gone, params![micros(now), boot])?;
    transaction.execute("UPDATE claims SET owner = ?1 WHERE name = ''", [boot])?;
    Ok(transaction.commit()?)
}

/// Makes the tables in an empty file; refuses a file of another program, or of another version.
pub(super) fn lay_out(connection: &mut Connection, application: i32, layout: &str) -> Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_laid_out(&transaction, application)? {
        let version = number(&transaction, "PRAGMA user_version")?;
        if version == VERSION {
            return Ok(());
        }
        return Err(unfit(format!(
            "the file was made by another version of leasehold (layout {version}, here {VERSION})"
        ))
        .advise("let all programs that use the file have the same version, or use another path")
        .into());
    }
    transaction.execute_batch(layout)?;
    transaction.pragma_update(None, "application_id", application)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    Ok(transaction.commit()?)
}

/// Whether the file is the application's, in whichever version, and not empty; an error if it is another program's.
fn is_laid_out(connection: &Connection, application: i32) -> Result<bool> {
    let id = number(connection, "PRAGMA application_id")?;
    if id == application {
        return Ok(true);
    }
    let is_empty = id == 0
        && number(connection, "PRAGMA user_version")? == 0
        && number(connection, "SELECT count(*) FROM sqlite_schema")? == 0;
    match is_empty {
        true => Ok(false),
        false => Err(unfit("the file is the database of another program").into()),
    }
}

fn number(connection: &Connection, sql: &str) -> rusqlite::Result<i32> {
    connection.query_row(sql, [], |row| row.get(0))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_not_followed_when_a_file_is_opened() {
        let temporary = tempfile::tempdir().unwrap();
        // The way there may have links in it.
        let folder = fs::canonicalize(temporary.path()).unwrap();
        let (file, link) = (folder.join("victim"), folder.join("locks.db-records"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(connect(&link, Duration::ZERO, None).is_err());
        assert!(fs::read(&file).unwrap().is_empty());
        assert!(connect(&file, Duration::ZERO, None).is_ok());
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn file_on_its_folders_mount_is_not_mounted_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        fs::write(&path, "").unwrap();
        assert_eq!(mount(&path).unwrap(), mount(folder.path()).unwrap());
        assert_ne!(mount(&path).unwrap(), mount(Path::new("/proc")).unwrap());
        assert!(!is_mounted_alone(&path));
    }

    #[test]
    fn where_a_boot_has_an_id_it_must_be_readable() {
        assert!(boot(Some(Path::new("/no/such/file"))).is_err());
        assert!(boot(Some(Path::new("/dev/null"))).is_err());
        assert_eq!(boot(None).unwrap(), "");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("boot_id");
        fs::write(&path, "0a1b\n").unwrap();
        assert_eq!(boot(Some(&path)).unwrap(), "0a1b");
    }
}
