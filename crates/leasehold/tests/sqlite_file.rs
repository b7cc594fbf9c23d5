//! The file of the SQLite engine: what it is made of, what it survives, what it refuses.
#![cfg(all(feature = "sqlite", unix))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{ErrorKind, Locks, wall_clock_micros};
use rusqlite::Connection;
use tempfile::TempDir;

struct File {
    _folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks.db");
        Self {
            _folder: folder,
            path,
        }
    }

    fn url(&self) -> String {
        format!("sqlite:{}?busy_timeout=300ms", self.path.display())
    }

    async fn open(&self) -> Locks {
        Locks::connect(self.url()).await.unwrap()
    }

    async fn refused(&self) -> leasehold::Error {
        Locks::connect(self.url()).await.unwrap_err()
    }

    /// As another program would.
    fn sql(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }
}

fn length(path: &Path, ending: &str) -> u64 {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    fs::metadata(path).map_or(0, |file| file.len())
}

#[tokio::test]
async fn only_its_owner_may_read_it() {
    let file = File::new();
    let locks = file.open().await;
    let held = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    tokio::time::sleep(Duration::from_millis(100)).await;
    for entry in fs::read_dir(file.path.parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?} has mode {mode:o}", entry.path());
    }
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn bad_paths_are_named_and_explained() {
    let file = File::new();
    let folder = file.path.parent().unwrap();
    fs::write(folder.join("plain"), "text").unwrap();
    let table = [
        (folder.join("missing/locks.db"), ErrorKind::InvalidConfig),
        (folder.to_owned(), ErrorKind::InvalidConfig),
        (folder.join("plain/locks.db"), ErrorKind::InvalidConfig),
        (folder.join("plain"), ErrorKind::EngineUnfit),
        (PathBuf::from(":memory:"), ErrorKind::InvalidConfig),
        (PathBuf::from("/proc/locks.db"), ErrorKind::InvalidConfig),
    ];
    for (path, kind) in table {
        let url = format!("sqlite:{}", path.display());
        let error = Locks::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(&url), "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
    let error = Locks::connect("sqlite://host/locks.db").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(fs::read_to_string(folder.join("plain")).unwrap(), "text");
}

#[tokio::test]
async fn another_programs_database_is_left_alone() {
    let file = File::new();
    file.sql()
        .execute_batch("CREATE TABLE accounts (id INTEGER); INSERT INTO accounts VALUES (7)")
        .unwrap();
    let error = file.refused().await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    let tables: i64 = file
        .sql()
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1);
}

#[tokio::test]
async fn a_newer_layout_is_refused() {
    let file = File::new();
    drop(file.open().await);
    let sql = file.sql();
    sql.pragma_update(None, "user_version", 99).unwrap();
    sql.execute_batch("DROP TABLE claims").unwrap();
    let error = file.refused().await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(error.to_string().contains("layout 99"), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_not_a_free_lock() {
    let file = File::new();
    let locks = file.open().await;
    let _held = locks.lock("a").acquire().await.unwrap().detach();
    drop(locks);
    file.sql()
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    let mut bytes = fs::read(&file.path).unwrap();
    let end = bytes.len();
    bytes[16..end].fill(0xa5);
    fs::write(&file.path, &bytes).unwrap();
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{ending}", file.path.display()));
    }
    let error = file.refused().await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert_eq!(fs::read(&file.path).unwrap(), bytes);
}

#[tokio::test]
async fn tokens_rise_although_the_wall_clock_has_stepped_back() {
    let file = File::new();
    let locks = file.open().await;
    let an_hour_ahead = wall_clock_micros() + 3_600_000_000;
    file.sql()
        .execute(
            "UPDATE claims SET expires = ?1 WHERE name = ''",
            [an_hour_ahead],
        )
        .unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    assert_eq!(lease.token().get(), an_hour_ahead + 1);
    lease.release().await.unwrap();
}

#[tokio::test]
async fn tokens_rise_although_the_file_is_gone() {
    let file = File::new();
    let locks = file.open().await;
    let before = locks.lock("a").acquire().await.unwrap();
    let token = before.token();
    drop((before, locks));
    tokio::time::sleep(Duration::from_millis(50)).await;
    for ending in ["", "-wal", "-shm", "-turn"] {
        let _ = fs::remove_file(format!("{}{ending}", file.path.display()));
    }
    let after = file.open().await.lock("a").acquire().await.unwrap();
    assert!(after.token() > token);
}

#[tokio::test]
async fn after_a_restart_of_the_machine_nobody_holds_anything() {
    let file = File::new();
    let locks = file.open().await;
    let lease = locks.lock("a").acquire().await.unwrap();
    let token = lease.token();
    lease.detach();
    drop(locks);
    file.sql()
        .execute(
            "UPDATE claims SET owner = 'an earlier boot' WHERE name = ''",
            [],
        )
        .unwrap();
    let locks = file.open().await;
    assert!(locks.list("").await.unwrap().is_empty());
    let next = locks.lock("a").try_acquire().await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn another_time_namespace_is_refused() {
    let file = File::new();
    drop(file.open().await);
    file.sql()
        .execute("UPDATE claims SET host = 'time:[1]' WHERE name = ''", [])
        .unwrap();
    let error = file.refused().await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("time namespace"), "{error}");
}

#[tokio::test]
async fn a_file_that_another_program_keeps_locked_is_an_error_in_time_and_then_works_again() {
    let file = File::new();
    let locks = file.open().await;
    let intruder = file.sql();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() >= Duration::from_millis(250));
    let waiting = tokio::spawn(locks.lock("a").acquire());
    tokio::time::sleep(Duration::from_millis(50)).await;
    intruder.execute_batch("COMMIT").unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(locks.show("a").await.unwrap().holders.is_empty());
}

#[tokio::test]
async fn the_log_does_not_grow_with_the_work() {
    let file = File::new();
    let locks = file.open().await;
    for _ in 0..10_000 {
        locks
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let log = length(&file.path, "-wal");
    assert!(
        log < 24_000_000,
        "20,000 transactions left a log of {log} bytes"
    );
}

#[tokio::test]
async fn the_file_does_not_grow_with_the_names() {
    let file = File::new();
    let locks = file.open().await;
    for round in 0..4 {
        for name in 0..1_000 {
            let lock = locks
                .lock(format!("{round}/{name}"))
                .ttl(Duration::from_millis(500));
            lock.acquire().await.unwrap().detach();
        }
    }
    tokio::time::sleep(Duration::from_millis(600)).await;
    for _ in 0..1_100 {
        locks
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let rows = || {
        let count = "SELECT count(*) FROM claims";
        file.sql()
            .query_row(count, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while rows() > 1 {
        assert!(Instant::now() < deadline, "{} rows are left", rows());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn pipes_of_dead_processes_are_swept() {
    let file = File::new();
    let locks = file.open().await;
    let doors = PathBuf::from(format!("{}-doors", file.path.display()));
    fs::create_dir(&doors).unwrap();
    let orphan = doors.join("0123456789abcdef");
    let [draft, old_draft] = ["00.new", "01.new"].map(|name| doors.join(name));
    for pipe in [&orphan, &draft, &old_draft] {
        nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    // Opened for reading as well, a pipe does not wait for a reader.
    let pipe = fs::File::options().read(true).write(true).open(&old_draft);
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    pipe.unwrap().set_modified(an_hour_ago).unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!orphan.exists());
    assert!(!old_draft.exists());
    assert!(draft.exists(), "its process may be at it");
    fs::remove_file(draft).unwrap();
    assert_eq!(fs::read_dir(&doors).unwrap().count(), 1);
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    drop(locks);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        fs::read_dir(&doors).unwrap().count(),
        0,
        "the own pipe stays behind"
    );
}
