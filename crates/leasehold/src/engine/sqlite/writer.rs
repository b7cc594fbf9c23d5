//! Runs write transactions, one at a time.
//!
//! A transaction runs at once on the caller's thread. If it would have to wait, it is queued for the writer thread, which waits for its
//! turn and then runs all that is queued as one transaction, with a savepoint for each task. SQLite's own way of waiting is to sleep and try
//! again; the writer threads of all processes wait for a lock on a file of its own instead, where the kernel wakes the next one, so that at
//! most one tries again at any time.
//!
//! To run it on the caller's thread does not harm async callers: a commit in WAL mode without fsync takes some 10 µs, less than a switch of
//! threads. Whatever may block (another writer, an fsync) is left to the writer thread.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use rusqlite::ErrorCode;
use tokio::sync::oneshot;

use super::boot_clock::BootClock;
use super::claims_table::ClaimsTable;
use super::database::{self, Access, Database, Location};
use super::failure::{self, Fault, of_path};
use super::wake_pipe::{WakePipes, Wakeup};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// The writer thread runs at most so many tasks as one transaction.
const LARGEST_BATCH: usize = 256;

/// How often a busy file is tried before the work is queued: another writer is done within microseconds, sooner than a thread wakes.
const TRIES: usize = 4;

/// After so many transactions the writer thread sweeps the table and writes the log back.
const HOUSEKEEPING_EVERY: u64 = 1_000;

/// Whoever opens the file deletes so many rows at most that others have left: processes that come and go do so few
/// transactions that none of them would ever sweep.
const LEFTOVERS: u32 = 1_000;

/// A database and those who write to it.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: OnceLock<mpsc::Sender<Task>>,
}

#[derive(Debug)]
struct Shared {
    location: Location,
    database: Mutex<Database>,
    access: Access,
    pipes: WakePipes,
    clock: BootClock,
    busy_timeout: Duration,
    /// Tasks that the thread has yet to finish; nobody overtakes them.
    queued: AtomicUsize,
    transactions: AtomicU64,
    housekeeping_due: AtomicBool,
}

/// Work for the writer thread. Called once: within a transaction, or with the reason why there is none. Returns what answers the caller
/// when the transaction has ended.
type Task = Box<dyn FnOnce(Result<&mut ClaimsTable<'_>>) -> Reply + Send>;
type Reply = Box<dyn FnOnce(Result<()>)>;

/// Why a transaction was not begun.
enum NotBegun {
    /// Someone else writes.
    Busy,
    /// The files were deleted or replaced: others have other locks by now.
    Replaced,
    Failed(Error),
}

impl Writer {
    pub(super) fn open(
        location: Location,
        busy_timeout: Duration,
        clock: BootClock,
    ) -> Result<Self> {
        let database = database::open(&location, busy_timeout, &clock)?;
        let access = database.access;
        let shared = Shared {
            database: Mutex::new(database),
            pipes: WakePipes::new(location.beside("-pipes"), access),
            location,
            access,
            clock,
            busy_timeout,
            queued: AtomicUsize::new(0),
            transactions: AtomicU64::new(0),
            housekeeping_due: AtomicBool::new(false),
        };
        let writer = Self {
            shared: Arc::new(shared),
            thread: OnceLock::new(),
        };
        if writer.read(|table| table.needs_sweeping())? {
            // If someone else writes just now, whoever opens the file next sweeps.
            let _ = writer.write_now(|table| table.sweep(LEFTOVERS));
        }
        Ok(writer)
    }

    pub(super) fn location(&self) -> &Location {
        &self.shared.location
    }

    pub(super) fn clock(&self) -> &BootClock {
        &self.shared.clock
    }

    pub(super) fn pipes(&self) -> &WakePipes {
        &self.shared.pipes
    }

    pub(super) fn transactions(&self) -> u64 {
        self.shared.transactions.load(Ordering::Relaxed)
    }

    /// Reads without a transaction. A reader never blocks a writer, nor a writer a reader.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&ClaimsTable<'_>) -> failure::Result<T>,
    ) -> Result<T> {
        let database = self.shared.database.lock();
        Ok(read(&self.shared.table(&database))?)
    }

    /// Runs one transaction. If the work fails, none of it is done.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ClaimsTable<'_>) -> failure::Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = match self.write_now(work) {
            Ok(done) => return done,
            Err(work) => work,
        };
        let (reply, mut answer) = oneshot::channel();
        // Set by whichever comes first: the thread when it begins, or the caller when it gives up.
        let taken = Arc::new(AtomicBool::new(false));
        let is_given_up = Arc::clone(&taken);
        self.enqueue(Box::new(move |table| {
            let done = match table {
                _ if is_given_up.swap(true, Ordering::AcqRel) => return Box::new(|_| ()),
                Ok(table) => table.savepoint(work).map_err(Error::from),
                Err(failure) => Err(failure),
            };
            Box::new(move |ended| {
                let _ = reply.send(done.and_then(|done| ended.map(|()| done)));
            })
        }))?;
        let patience = self.shared.busy_timeout;
        let mut answered = tokio::time::timeout(patience, &mut answer).await;
        if answered.is_err() {
            if !taken.swap(true, Ordering::AcqRel) {
                return Err(blocked(patience).because_busy());
            }
            // The thread has begun with it, or has just given up the file itself: it will answer in a moment.
            answered = tokio::time::timeout(patience, answer).await;
        }
        match answered {
            Ok(done) => done.unwrap_or_else(|_| Err(thread_gone())),
            Err(_) => Err(blocked(patience).of_unknown_effect()),
        }
    }

    /// Runs a transaction on this thread, or gives the work back if that would mean to wait.
    fn write_now<T, W>(&self, work: W) -> Result<Result<T>, W>
    where
        W: FnOnce(&mut ClaimsTable<'_>) -> failure::Result<T>,
    {
        let shared = &self.shared;
        if shared.queued.load(Ordering::Acquire) > 0 {
            return Err(work);
        }
        let Some(database) = shared.database.try_lock() else {
            return Err(work);
        };
        for _ in 0..TRIES {
            let mut table = match shared.begin(&database) {
                Ok(table) => table,
                Err(NotBegun::Busy) => {
                    spin();
                    continue;
                }
                // To open a file takes its time.
                Err(NotBegun::Replaced) => return Err(work),
                Err(NotBegun::Failed(error)) => return Ok(Err(error)),
            };
            let outcome = match work(&mut table) {
                Ok(done) => table.commit().map(|wakeups| (done, wakeups)),
                Err(failure) => {
                    table.roll_back();
                    Err(failure.into())
                }
            };
            drop(database);
            let outcome = outcome.map(|(done, wakeups)| {
                wakeups.into_iter().for_each(Wakeup::send);
                done
            });
            if shared.housekeeping_due.load(Ordering::Relaxed) {
                // If the thread cannot be started, the next thousand transactions try again.
                let _ = self.enqueue(Box::new(|_| Box::new(|_| ())));
            }
            return Ok(outcome);
        }
        Err(work)
    }

    fn enqueue(&self, task: Task) -> Result<()> {
        let thread = match self.thread.get() {
            Some(thread) => thread,
            None => {
                let started = self.start_thread()?;
                self.thread.get_or_init(|| started)
            }
        };
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        thread.send(task).map_err(|_| {
            self.shared.queued.fetch_sub(1, Ordering::AcqRel);
            thread_gone()
        })
    }

    fn start_thread(&self) -> Result<mpsc::Sender<Task>> {
        let (sender, tasks) = mpsc::channel();
        let turn = self.shared.turn_file()?;
        let shared = Arc::clone(&self.shared);
        let file = shared.location.file().to_owned();
        thread::Builder::new()
            .name("leasehold-sqlite".to_owned())
            .spawn(move || shared.serve(&tasks, turn))
            .map_err(|cause| of_path("cannot start a thread for", &file, cause))?;
        Ok(sender)
    }
}

impl Shared {
    fn table<'a>(&'a self, database: &'a Database) -> ClaimsTable<'a> {
        ClaimsTable::new(&database.connection, &self.pipes, self.clock.now())
    }

    fn begin<'a>(&'a self, database: &'a Database) -> Result<ClaimsTable<'a>, NotBegun> {
        let begun = database.connection.prepare_cached("BEGIN IMMEDIATE");
        let begun = begun.and_then(|mut begin| begin.execute([]));
        // Not before: what others have committed meanwhile would lie ahead of this moment.
        let table = self.table(database);
        match database.is_current() {
            Ok(true) => {}
            not_current => {
                table.roll_back();
                return Err(match not_current {
                    Err(failure) => NotBegun::Failed(failure.0),
                    Ok(_) => NotBegun::Replaced,
                });
            }
        }
        if let Err(failure) = begun {
            return Err(match failure.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy) => NotBegun::Busy,
                _ => NotBegun::Failed(Fault::from(failure).0),
            });
        }
        let transactions = self.transactions.fetch_add(1, Ordering::Relaxed) + 1;
        if transactions.is_multiple_of(HOUSEKEEPING_EVERY) {
            self.housekeeping_due.store(true, Ordering::Relaxed);
        }
        Ok(table)
    }

    /// The writer thread, until the writer is dropped.
    fn serve(&self, tasks: &mpsc::Receiver<Task>, mut turn: File) {
        while let Ok(first) = tasks.recv() {
            let mut batch = vec![first];
            batch.extend(tasks.try_iter().take(LARGEST_BATCH - 1));
            let queued = batch.len();
            if turn.lock().is_ok() {
                self.run(batch, &mut turn);
                let _ = turn.unlock();
            }
            self.queued.fetch_sub(queued, Ordering::AcqRel);
            if self.housekeeping_due.swap(false, Ordering::Relaxed) {
                self.keep_house();
            }
        }
    }

    /// Runs a batch as one transaction, as soon as there can be one.
    fn run(&self, batch: Vec<Task>, turn: &mut File) {
        let start = Instant::now();
        loop {
            let database = self.database.lock();
            let not_begun = match self.begin(&database) {
                Ok(mut table) => {
                    let run = |task: Task| task(Ok(&mut table));
                    let replies: Vec<Reply> = batch.into_iter().map(run).collect();
                    let ended = table.commit();
                    drop(database);
                    let ended = ended.map(|wakeups| wakeups.into_iter().for_each(Wakeup::send));
                    return replies.into_iter().for_each(|reply| reply(ended.clone()));
                }
                Err(not_begun) => not_begun,
            };
            drop(database);
            let waited = start.elapsed();
            let failure = match not_begun {
                // A transaction of ours takes some microseconds; what takes longer is another program's,
                // and for that SQLite offers nothing better than to try again.
                NotBegun::Busy if waited < Duration::from_millis(1) => {
                    thread::yield_now();
                    continue;
                }
                NotBegun::Busy if waited < self.busy_timeout => {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                NotBegun::Busy => failure::busy(),
                NotBegun::Replaced => match self.open_anew(turn) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                NotBegun::Failed(failure) => failure,
            };
            return batch
                .into_iter()
                .for_each(|task| task(Err(failure.clone()))(Ok(())));
        }
    }

    /// After the files were deleted or replaced: what this process holds in them counts no longer, and those who wait queue anew.
    fn open_anew(&self, turn: &mut File) -> Result<()> {
        let database = database::open(&self.location, self.busy_timeout, &self.clock)?;
        *turn = self.turn_file()?;
        *self.database.lock() = database;
        self.pipes.close();
        Ok(())
    }

    fn keep_house(&self) {
        self.pipes.sweep();
        let database = self.database.lock();
        if let Ok(table) = self.begin(&database) {
            // What is left is swept next time.
            let _ = table.sweep(u32::MAX);
            let _ = table.commit();
        }
        drop(database);
        let file = self.location.file();
        let second = database::connect(file, Duration::ZERO, Some(database::APPLICATION));
        let Ok(second) = second else {
            return;
        };
        // Most of the log while others write; then, while nobody can, the little that has come since, so that
        // the log starts anew.
        database::write_back(&second);
        let database = self.database.lock();
        if let Ok(table) = self.begin(&database) {
            database::write_back(&second);
            table.roll_back();
        }
    }

    /// The file whose lock gives the writer threads of all processes their turns.
    fn turn_file(&self) -> Result<File> {
        let path = self.location.beside("-turn");
        let Access { permissions, owner } = self.access;
        let mut options = OpenOptions::new();
        options
            .write(true)
            .mode(permissions)
            // Whoever may write to the folder may have put a link or a pipe there.
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        let made = options.clone().create_new(true).open(&path);
        let opened = match made {
            Ok(made) => {
                owner.give(&made);
                Ok(made)
            }
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => options.open(&path),
            Err(cause) => Err(cause),
        };
        let file = opened.map_err(|cause| of_path("cannot open", &path, cause))?;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|cause| of_path("cannot read", &path, cause))?;
        if !metadata.is_file() {
            let cause = io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file");
            return Err(of_path("cannot open", &path, cause));
        }
        // What umask has taken away from the database's permissions, where this user may say so.
        if metadata.permissions().mode() & 0o666 != permissions {
            let _ = file.set_permissions(std::fs::Permissions::from_mode(permissions));
        }
        Ok(file)
    }
}

fn spin() {
    for _ in 0..200 {
        std::hint::spin_loop();
    }
}

fn thread_gone() -> Error {
    Error::new(ErrorKind::Unexpected, "the writer thread has ended").of_unknown_effect()
}

fn blocked(after: Duration) -> Error {
    let after = humantime::format_duration(after);
    Error::new(
        ErrorKind::Unreachable,
        format!("another process has kept the file to itself for {after}"),
    )
    .advise("look for a stopped process that has it open (fuser), and continue or end it")
}
