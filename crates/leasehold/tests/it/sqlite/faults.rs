//! Writes to the file of the SQLite engine that must wait, or fail.

use std::time::{Duration, Instant};

use leasehold::{Effect, ErrorKind, Locks};

use super::common::File;

#[tokio::test]
async fn file_locked_by_another_program_times_out_then_works() {
    let file = File::new();
    let locks = file.open().await;
    let intruder = file.sql();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert!(error.is_busy(), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(250));
    let waiting = tokio::spawn(locks.lock("a").acquire());
    tokio::time::sleep(Duration::from_millis(50)).await;
    intruder.execute_batch("COMMIT").unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());
}

#[tokio::test]
async fn claim_waits_for_a_locked_file_until_its_deadline() {
    let file = File::new();
    let locks = file.open().await;
    let intruder = file.sql();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let waiting = tokio::spawn(locks.lock("a").wait(Duration::from_secs(30)).acquire());
    // For longer than busy_timeout.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    intruder.execute_batch("COMMIT").unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Requests that wait for a busy file become one transaction.
#[tokio::test]
async fn request_that_fails_leaves_its_batch_alone() {
    let file = File::new();
    let locks = file.open_patiently().await;
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON claims WHEN NEW.name = 'bad'
        BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END";
    let intruder = file.sql();
    intruder.execute_batch(refuse).unwrap();
    let held = locks.lock("released").acquire().await.unwrap();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let attempt = |name: &'static str| tokio::spawn(locks.lock(name).try_acquire());
    // The writer waits with the first one, and then has all others at once.
    let first = attempt("first");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let release = tokio::spawn(held.release());
    let [before, bad, after] = ["before", "bad", "after"].map(attempt);
    tokio::time::sleep(Duration::from_millis(100)).await;
    intruder.execute_batch("COMMIT").unwrap();
    let error = bad.await.unwrap().unwrap_err();
    assert!(
        error.to_string().contains("refused by a trigger"),
        "{error}"
    );
    let mut leases = Vec::new();
    for granted in [first, before, after] {
        leases.push(granted.await.unwrap().unwrap().expect("it is free"));
    }
    release.await.unwrap().unwrap();
    let listed = locks.list("").await.unwrap();
    let names: Vec<_> = listed.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, ["after", "before", "first"]);
}

/// Lets a commit fail that makes a claim: what it refers to is looked for at the end of the transaction.
const NO_COMMIT: &str = "
    CREATE TABLE parents (id INTEGER PRIMARY KEY);
    CREATE TABLE children (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
    CREATE TRIGGER no_commit AFTER INSERT ON claims BEGIN INSERT INTO children VALUES (1); END;";

#[tokio::test]
async fn a_commit_that_fails_may_have_happened() {
    let file = File::new();
    let locks = file.open().await;
    file.sql().execute_batch(NO_COMMIT).unwrap();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    file.sql().execute_batch("DROP TRIGGER no_commit").unwrap();
    let lease = locks.lock("a").try_acquire().await.unwrap().unwrap();
    lease.release().await.unwrap();
}

/// What a process does that the next test starts.
#[tokio::test]
async fn as_a_process_whose_files_cannot_grow() {
    let Ok(url) = std::env::var("LEASEHOLD_TEST_SMALL_FILES") else {
        return;
    };
    let locks = Locks::connect(url).await.unwrap();
    for nth in 0..10_000 {
        let request = locks.lock(format!("small/{nth}"));
        match request.try_acquire().await {
            Ok(lease) => drop(lease.unwrap().detach()),
            Err(error) => return println!("{:?} {:?}", error.kind(), error.effect()),
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_at_the_commit_may_have_happened() {
    let file = File::new();
    let program = std::env::current_exe().unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 400; exec {} --exact sqlite::faults::as_a_process_whose_files_cannot_grow --nocapture",
        program.display()
    );
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("LEASEHOLD_TEST_SMALL_FILES", file.url())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Unreachable Unknown"), "{said}");
    // What was committed before is there, and goes on.
    let locks = file.open().await;
    let held = locks.lock("small/0").try_acquire().await.unwrap();
    assert!(held.is_none());
    assert!(locks.lock("next").try_acquire().await.unwrap().is_some());
}
