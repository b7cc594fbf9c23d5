//! Holds that have ended, in a SQLite file that outlives the server. A thread of its own writes them: nobody waits for the disk.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Result};
use rusqlite::{Connection, params};
use serde_json::Value;
use tokio::sync::oneshot;

use super::history::{Filter, PastHold};
use crate::problem::Problem;

/// How many are kept.
const KEPT: i64 = 100_000;

/// How many may wait to be written, before more are dropped: a disk that stands still must not fill the memory.
const UNWRITTEN: usize = 10_000;

/// How long to wait for another program that reads or copies the file.
const BUSY: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS holds (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        lock TEXT NOT NULL,
        label TEXT NOT NULL,
        host TEXT NOT NULL,
        ended TEXT NOT NULL,
        hold TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS holds_by_lock ON holds (lock, number);
";

#[derive(Debug)]
pub(crate) struct HistoryFile {
    path: PathBuf,
    writer: mpsc::SyncSender<Task>,
}

enum Task {
    Add(Box<PastHold>),
    Flush(oneshot::Sender<()>),
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

impl HistoryFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let unusable = |cause: &dyn std::fmt::Display| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("the history file {path:?} cannot be used: {cause}"),
            )
            .advise("check its name and who may write there; it is a SQLite file of its own")
        };
        let connection = open(path).map_err(|cause| unusable(&cause))?;
        let made = connection.execute_batch(SCHEMA);
        made.map_err(|cause| unusable(&cause))?;
        let (writer, tasks) = mpsc::sync_channel(UNWRITTEN);
        let thread = std::thread::Builder::new().name("history".to_owned());
        let started = thread.spawn(move || write_all(&connection, &tasks));
        started.map_err(|cause| unusable(&cause))?;
        Ok(Self {
            path: path.to_owned(),
            writer,
        })
    }

    pub(crate) fn add(&self, hold: PastHold) {
        // If the disk is too slow, it is not in the history: nothing depends on it.
        let _ = self.writer.try_send(Task::Add(Box::new(hold)));
    }

    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.writer.try_send(Task::Flush(done)).is_ok() {
            let _ = flushed.await;
        }
    }

    /// The numbers and the holds, the newest first.
    pub(crate) async fn find(
        &self,
        filter: Filter,
        limit: usize,
        may_see: impl Fn(&str) -> bool + Send + 'static,
    ) -> std::result::Result<Vec<(u64, Value)>, Problem> {
        self.flush().await;
        let path = self.path.clone();
        let found =
            tokio::task::spawn_blocking(move || find(&open(&path)?, &filter, limit, may_see));
        match found.await {
            Ok(Ok(found)) => Ok(found),
            _ => Err(Problem::new(
                "unexpected",
                "the history file cannot be read",
            )),
        }
    }
}

fn write_all(connection: &Connection, tasks: &mpsc::Receiver<Task>) {
    let mut has_failed = false;
    while let Ok(first) = tasks.recv() {
        let mut flushed = Vec::new();
        let more = std::iter::from_fn(|| tasks.try_recv().ok());
        let holds: Vec<_> = std::iter::once(first)
            .chain(more.take(1_000))
            .filter_map(|task| match task {
                Task::Add(hold) => Some(hold),
                Task::Flush(done) => {
                    flushed.push(done);
                    None
                }
            })
            .collect();
        let written = write(connection, &holds);
        if let (Err(cause), false) = (&written, has_failed) {
            eprintln!("leasehold: warning: the history file cannot be written: {cause}");
        }
        has_failed = written.is_err();
        for done in flushed {
            let _ = done.send(());
        }
    }
}

fn write(connection: &Connection, holds: &[Box<PastHold>]) -> rusqlite::Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let transaction = connection.unchecked_transaction()?;
    for hold in holds {
        let text = serde_json::to_string(hold).unwrap_or_default();
        transaction
            .prepare_cached(
                "INSERT INTO holds (lock, label, host, ended, hold) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                hold.lock,
                hold.who.label,
                hold.who.host,
                hold.end,
                text
            ])?;
    }
    transaction
        .prepare_cached("DELETE FROM holds WHERE number <= (SELECT max(number) FROM holds) - ?1")?
        .execute([KEPT])?;
    transaction.commit()
}

fn find(
    connection: &Connection,
    filter: &Filter,
    limit: usize,
    may_see: impl Fn(&str) -> bool,
) -> rusqlite::Result<Vec<(u64, Value)>> {
    let before = filter.before.and_then(|it| i64::try_from(it).ok());
    let mut statement = connection.prepare(
        "SELECT number, lock, hold FROM holds
         WHERE number < ?1 AND (?2 IS NULL OR lock = ?2) AND (?3 IS NULL OR ended = ?3)
           AND (?4 IS NULL OR instr(label, ?4) > 0 OR instr(host, ?4) > 0)
           AND substr(lock, 1, length(?5)) = ?5
         ORDER BY number DESC",
    )?;
    let mut rows = statement.query(params![
        before.unwrap_or(i64::MAX),
        filter.lock,
        filter.end,
        filter.holder,
        filter.prefix
    ])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        if found.len() >= limit {
            break;
        }
        let lock: String = row.get(1)?;
        if may_see(&lock) {
            let (number, hold): (i64, String) = (row.get(0)?, row.get(2)?);
            let hold = serde_json::from_str(&hold).unwrap_or(Value::Null);
            found.push((number.unsigned_abs(), hold));
        }
    }
    Ok(found)
}
