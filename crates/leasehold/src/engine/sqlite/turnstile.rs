//! How writers take turns.
//!
//! A transaction is carried out at once on the caller's thread, or handed to one thread that waits for its
//! turn and then carries out all that has been handed to it as one transaction. SQLite's own way of
//! waiting is to sleep and look again; the threads of all processes wait at a lock on a file of its own
//! instead, where the kernel wakes the next one, so that at most one looks again at any time.
//!
//! Doing it on the caller's thread is no sin against async: a commit in WAL mode without fsync takes some
//! 10 µs, less than a switch of threads. Whatever may block (another writer, an fsync) is the thread's.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::door::Doors;
use super::failure::{self, Fault, of_path};
use super::file;
use super::table::Table;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// The thread carries out at most so many jobs as one transaction.
const LARGEST_BATCH: usize = 256;

/// How often a busy file is tried before the job is handed to the thread: another writer is done within
/// microseconds, sooner than a thread wakes.
const GLANCES: usize = 4;

/// After so many transactions the thread sweeps the table and writes the log back.
const HOUSEKEEPING_EVERY: u64 = 1_000;

/// A database that is written to in turns.
#[derive(Debug)]
pub(super) struct Store {
    shared: Arc<Shared>,
    thread: OnceLock<mpsc::Sender<Box<dyn Job>>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    permissions: u32,
    connection: Mutex<Connection>,
    doors: Doors,
    busy_timeout: Duration,
    /// Jobs that the thread has yet to do; nobody overtakes them.
    waiting: AtomicUsize,
    transactions: AtomicU64,
}

impl Store {
    pub(super) fn open(path: PathBuf, busy_timeout: Duration) -> Result<Self> {
        let permissions = file::create(&path)?;
        let connection = file::open(&path, busy_timeout)?;
        Ok(Self {
            shared: Arc::new(Shared {
                connection: Mutex::new(connection),
                doors: Doors::beside(&path, permissions),
                path,
                permissions,
                busy_timeout,
                waiting: AtomicUsize::new(0),
                transactions: AtomicU64::new(0),
            }),
            thread: OnceLock::new(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.shared.path
    }

    pub(super) fn doors(&self) -> &Doors {
        &self.shared.doors
    }

    pub(super) fn transactions(&self) -> u64 {
        self.shared.transactions.load(Ordering::Relaxed)
    }

    /// Carries out one transaction.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Table<'_>) -> failure::Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut assignment = Assignment {
            work: Some(work),
            done: None,
        };
        if self.at_once(&mut assignment) {
            return assignment.done.unwrap_or_else(|| Err(thread_gone()));
        }
        let (reply, answer) = oneshot::channel();
        self.hand_over(Box::new(HandedOver {
            assignment,
            reply: Some(reply),
        }))?;
        match tokio::time::timeout(self.shared.busy_timeout, answer).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(thread_gone()),
            Err(_) => Err(blocked(self.shared.busy_timeout)),
        }
    }

    /// Looks without changing anything. A reader is never in a writer's way, nor a writer in its.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Table<'_>) -> failure::Result<T>) -> Result<T> {
        let looked = look(&Table {
            connection: &self.shared.connection(),
            doors: &self.shared.doors,
            now: Clock::machine().now(),
            bells: Vec::new(),
        });
        looked.map_err(Error::from)
    }

    /// Does the job on this thread, unless that would mean to wait. Returns whether it was done.
    fn at_once<J: Job>(&self, job: &mut J) -> bool {
        if self.shared.waiting.load(Ordering::Acquire) > 0 {
            return false;
        }
        let connection = match self.shared.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let job = std::slice::from_mut(job);
        for _ in 0..GLANCES {
            if let Ok(after) = self.shared.transact(&connection, job) {
                drop(connection);
                after.finish(job);
                self.keep_house();
                return true;
            }
            spin();
        }
        false
    }

    fn hand_over(&self, job: Box<dyn Job>) -> Result<()> {
        let thread = match self.thread.get() {
            Some(thread) => thread,
            None => {
                let started = self.start_thread()?;
                self.thread.get_or_init(|| started)
            }
        };
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        thread.send(job).map_err(|_| {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            thread_gone()
        })
    }

    fn start_thread(&self) -> Result<mpsc::Sender<Box<dyn Job>>> {
        let (sender, jobs) = mpsc::channel();
        let turn = turnstile(&self.shared.path, self.shared.permissions)?;
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("leasehold-sqlite".to_owned())
            .spawn(move || shared.serve(&jobs, &turn))
            .map_err(|cause| of_path("cannot start a thread for", &self.shared.path, cause))?;
        Ok(sender)
    }

    /// Now and then, on the thread: it may fsync.
    fn keep_house(&self) {
        let done = self.shared.transactions.load(Ordering::Relaxed);
        if done.is_multiple_of(HOUSEKEEPING_EVERY)
            && self.hand_over(Box::new(Housekeeping)).is_err()
        {
            // It comes round again.
        }
    }
}

impl Shared {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: until the store is gone.
    fn serve(&self, jobs: &mpsc::Receiver<Box<dyn Job>>, turn: &File) {
        while let Ok(first) = jobs.recv() {
            let mut batch = vec![first];
            batch.extend(jobs.try_iter().take(LARGEST_BATCH - 1));
            let handed_over = batch.len();
            if turn.lock().is_ok() {
                self.carry_out(&mut batch);
                let _ = turn.unlock();
            }
            self.waiting.fetch_sub(handed_over, Ordering::AcqRel);
            if batch.iter().any(|job| job.is_housekeeping()) {
                self.keep_house();
            }
        }
    }

    fn carry_out(&self, batch: &mut [Box<dyn Job>]) {
        let start = Instant::now();
        loop {
            let outcome = self.transact(&self.connection(), batch);
            match outcome {
                Ok(after) => return after.finish(batch),
                // A transaction of ours takes some microseconds; what takes longer is another program's,
                // and for that SQLite offers nothing better than to look again.
                Err(Busy) if start.elapsed() < Duration::from_millis(1) => std::thread::yield_now(),
                Err(Busy) if start.elapsed() < self.busy_timeout => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Busy) => {
                    let failed = After {
                        bells: Vec::new(),
                        failure: Some(Failure::Busy),
                    };
                    return failed.finish(batch);
                }
            }
        }
    }

    fn transact<J: Job>(&self, connection: &Connection, batch: &mut [J]) -> Result<After, Busy> {
        if let Err(failure) = run(connection, "BEGIN IMMEDIATE") {
            return match failure.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DatabaseBusy) => Err(Busy),
                _ => Ok(After::failed(failure)),
            };
        }
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let mut table = Table {
            connection,
            doors: &self.doors,
            now: Clock::machine().now(),
            bells: Vec::new(),
        };
        let sound = batch.iter_mut().all(|job| job.work(&mut table));
        let bells = table.bells;
        let ended = run(connection, if sound { "COMMIT" } else { "ROLLBACK" });
        match ended {
            Ok(()) if sound => Ok(After {
                bells,
                failure: None,
            }),
            Ok(()) => Ok(After {
                bells: Vec::new(),
                failure: Some(Failure::RolledBack),
            }),
            Err(failure) => {
                let _ = run(connection, "ROLLBACK");
                Ok(After::failed(failure))
            }
        }
    }

    fn keep_house(&self) {
        self.doors.sweep();
        let Ok(second) = file::open_again(&self.path) else {
            return;
        };
        // Most of it while others write; then, while nobody can, the little that has come since, so that
        // the log starts anew.
        file::write_back(&second);
        let connection = self.connection();
        if run(&connection, "BEGIN IMMEDIATE").is_ok() {
            file::write_back(&second);
            let _ = run(&connection, "ROLLBACK");
        }
    }
}

fn spin() {
    for _ in 0..200 {
        std::hint::spin_loop();
    }
}

fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn turnstile(database: &Path, permissions: u32) -> Result<File> {
    let mut path = database.as_os_str().to_owned();
    path.push("-turn");
    let path = PathBuf::from(path);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(permissions)
        .open(&path)
        .map_err(|cause| of_path("cannot open", &path, cause))?;
    // What umask has taken away from the database's permissions, where this user may say so.
    if let Ok(metadata) = file.metadata()
        && metadata.permissions().mode() & 0o666 != permissions
    {
        let _ = file.set_permissions(std::fs::Permissions::from_mode(permissions));
    }
    Ok(file)
}

/// Someone else writes just now; the job is untouched.
struct Busy;

/// What is to be done when a transaction has ended.
struct After {
    bells: Vec<super::door::Bell>,
    failure: Option<Failure>,
}

enum Failure {
    Busy,
    /// By the failure of one of its jobs.
    RolledBack,
    Sqlite(String, Error),
}

impl After {
    fn failed(failure: rusqlite::Error) -> Self {
        Self {
            bells: Vec::new(),
            failure: Some(Failure::Sqlite(failure.to_string(), Fault::from(failure).0)),
        }
    }

    fn finish<J: Job>(self, batch: &mut [J]) {
        for bell in self.bells {
            bell.ring();
        }
        for job in batch {
            job.finish(self.failure.as_ref());
        }
    }
}

impl Failure {
    fn error(&self) -> Error {
        match self {
            Failure::Busy => Error::new(
                ErrorKind::Unreachable,
                "another program keeps the file locked",
            )
            .advise("see who has it open (fuser), or raise busy_timeout"),
            Failure::RolledBack => Error::new(
                ErrorKind::Unreachable,
                "the transaction was rolled back because of another request's failure",
            )
            .advise("try again"),
            Failure::Sqlite(what, like) => {
                let error = Error::new(like.kind(), like.what()).caused_by(what.clone());
                match like.advice() {
                    Some(advice) => error.advise(advice),
                    None => error,
                }
            }
        }
    }
}

fn thread_gone() -> Error {
    Error::new(ErrorKind::Unexpected, "the engine's thread has ended").of_unknown_effect()
}

fn blocked(after: Duration) -> Error {
    let after = humantime::format_duration(after);
    Error::new(
        ErrorKind::Unreachable,
        format!("another process has kept the file to itself for {after}"),
    )
    .advise("look for a stopped process that has it open (fuser), and continue or end it")
    .of_unknown_effect()
}

/// Something to do within a transaction.
trait Job: Send {
    /// Does it, unless nobody waits for it any more. Returns false if the transaction cannot go on.
    fn work(&mut self, table: &mut Table<'_>) -> bool;

    /// The transaction has ended, well or with this failure.
    fn finish(&mut self, failure: Option<&Failure>);

    fn is_housekeeping(&self) -> bool {
        false
    }
}

impl<J: Job + ?Sized> Job for Box<J> {
    fn work(&mut self, table: &mut Table<'_>) -> bool {
        (**self).work(table)
    }

    fn finish(&mut self, failure: Option<&Failure>) {
        (**self).finish(failure);
    }

    fn is_housekeeping(&self) -> bool {
        (**self).is_housekeeping()
    }
}

struct Assignment<W, T> {
    work: Option<W>,
    done: Option<Result<T>>,
}

impl<W, T> Job for Assignment<W, T>
where
    W: FnOnce(&mut Table<'_>) -> failure::Result<T> + Send,
    T: Send,
{
    fn work(&mut self, table: &mut Table<'_>) -> bool {
        let Some(work) = self.work.take() else {
            return true;
        };
        let done = work(table).map_err(Error::from);
        // A refusal by our own rules comes before any write; only the store's failures undo the rest.
        let sound = match &done {
            Ok(_) => true,
            Err(error) => matches!(error.kind(), ErrorKind::InvalidConfig),
        };
        self.done = Some(done);
        sound
    }

    fn finish(&mut self, failure: Option<&Failure>) {
        if let Some(failure) = failure
            && !matches!(self.done, Some(Err(_)))
        {
            self.done = Some(Err(failure.error()));
        }
    }
}

/// An assignment that someone on another thread waits for.
struct HandedOver<W, T> {
    assignment: Assignment<W, T>,
    reply: Option<oneshot::Sender<Result<T>>>,
}

impl<W, T> Job for HandedOver<W, T>
where
    Assignment<W, T>: Job,
    W: Send,
    T: Send,
{
    /// What nobody waits for any more is not done: its release may already have been.
    fn work(&mut self, table: &mut Table<'_>) -> bool {
        let wanted = self.reply.as_ref().is_some_and(|reply| !reply.is_closed());
        !wanted || self.assignment.work(table)
    }

    fn finish(&mut self, failure: Option<&Failure>) {
        self.assignment.finish(failure);
        if let (Some(reply), Some(done)) = (self.reply.take(), self.assignment.done.take()) {
            let _ = reply.send(done);
        }
    }
}

struct Housekeeping;

impl Job for Housekeeping {
    fn work(&mut self, table: &mut Table<'_>) -> bool {
        table.sweep().is_ok()
    }

    fn finish(&mut self, _: Option<&Failure>) {}

    fn is_housekeeping(&self) -> bool {
        true
    }
}
