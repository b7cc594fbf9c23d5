//! What the SQLite engine leaves behind: neither rows nor pipes of the dead, nor a file that grows.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use leasehold::{Claim, ClaimId, LockName};

use super::common::File;
use crate::support::times::until;

fn length(path: &Path, ending: &str) -> u64 {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    fs::metadata(path).map_or(0, |file| file.len())
}

#[tokio::test]
async fn leftovers_of_short_lived_processes_are_swept() {
    let file = File::new();
    for nth in 0..50 {
        let request = file.open().await.lock(format!("job/{nth}"));
        let lease = request.ttl(Duration::from_secs(2)).acquire().await;
        lease.unwrap().detach();
    }
    let locks = file.open().await;
    let held = locks.lock("held").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("held").wait_forever().acquire());
    // One who was killed while it waited, an hour ago.
    let left = "INSERT INTO claims SELECT 'left', token + 1, x'00', 0, mode, ttl, since - 3600000000, expires,
        'gone', owner, host, pid, reason FROM claims WHERE name = 'held' AND held = 1";
    assert_eq!(file.sql().execute(left, []).unwrap(), 1);
    tokio::time::sleep(Duration::from_millis(2100)).await;
    drop(file.open().await);
    let mut select = "SELECT count(*) FROM claims WHERE name NOT IN ('', 'held')";
    let count = |sql: &str| file.sql().query_row(sql, [], |row| row.get::<_, i64>(0));
    assert_eq!(count(select).unwrap(), 0, "rows are left");
    select = "SELECT count(*) FROM claims WHERE name = 'held'";
    assert_eq!(count(select).unwrap(), 2);
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// Someone was killed while it waited for one of so many permits: that says nothing about those who come later.
#[tokio::test]
async fn dead_waiter_does_not_decide_how_many_permits_there_are() {
    let file = File::new();
    let locks = file.open().await;
    let held = locks.lock("x").acquire().await.unwrap();
    let left = "INSERT INTO claims SELECT name, token + 1, x'00', 0, 1, ttl, since, expires,
        'gone', owner, host, pid, reason FROM claims WHERE name = 'x' AND held = 1";
    assert_eq!(file.sql().execute(left, []).unwrap(), 1);
    let two = locks.lock("x").permits(2);
    let two = tokio::spawn(two.wait(Duration::from_secs(60)).acquire());
    let count = |which: &str| {
        let count =
            format!("SELECT count(*) FROM claims WHERE name = 'x' AND held = 0 AND {which}");
        file.sql()
            .query_row(&count, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while count("mode = 2") == 0 {
        if two.is_finished() {
            panic!("it does not wait: {:?}", two.await.unwrap());
        }
        assert!(Instant::now() < deadline, "it does not wait");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(count("mode = 1"), 0, "the dead one is still there");
    // One who lives does decide.
    let error = locks
        .lock("x")
        .permits(3)
        .wait(Duration::from_secs(1))
        .acquire()
        .await;
    assert_eq!(
        error.unwrap_err().kind(),
        leasehold::ErrorKind::InvalidConfig
    );
    held.release().await.unwrap();
    two.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_log_does_not_grow_with_the_work() {
    let file = File::new();
    let locks = file.open_patiently().await;
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
    let locks = file.open_patiently().await;
    for round in 0..4 {
        for name in 0..1_000 {
            let lock = locks
                .lock(format!("{round}/{name}"))
                .ttl(Duration::from_secs(3));
            lock.acquire().await.unwrap().detach();
        }
    }
    tokio::time::sleep(Duration::from_millis(3100)).await;
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
async fn claim_that_leaves_the_queue_has_no_row() {
    let file = File::new();
    let locks = file.open().await;
    let mailboxes = || format!("{:?}", locks.engine()).matches("Mailbox {").count();
    let held = locks.lock("a").acquire().await.unwrap();
    // The first in the queue, and one behind it.
    let queued = [(); 2].map(|()| {
        let name = LockName::new("a").unwrap();
        let mut claim = Claim::new(name, ClaimId::random().unwrap());
        claim.queues = true;
        claim
    });
    for claim in &queued {
        locks.engine().try_acquire(claim).await.unwrap();
    }
    for (left, claim) in queued.iter().enumerate() {
        assert_eq!(locks.inspect("a").await.unwrap().waiters.len(), 2 - left);
        assert_eq!(mailboxes(), 2 - left);
        locks.broker().leave_queue(claim).await.unwrap();
    }
    assert_eq!(locks.inspect("a").await.unwrap().waiters, []);
    assert_eq!(mailboxes(), 0);
    held.release().await.unwrap();
}

/// Two servers that are asked for the same claim, one after the other, and the first again.
#[tokio::test]
async fn who_asks_last_for_a_queued_claim_is_woken() {
    let file = File::new();
    let (one, other) = (file.open().await, file.open().await);
    let held = one.lock("a").acquire().await.unwrap();
    let mut claim = Claim::new(LockName::new("a").unwrap(), ClaimId::random().unwrap());
    claim.queues = true;
    for locks in [&one, &other, &one] {
        locks.engine().try_acquire(&claim).await.unwrap();
    }
    held.release().await.unwrap();
    let woken = one.engine().wait(&claim);
    let woken = tokio::time::timeout(Duration::from_secs(5), woken).await;
    woken.expect("the other is woken").unwrap();
    one.engine().release(&claim).await.unwrap();
    // The other forgets it as well.
    other.engine().release(&claim).await.unwrap();
}

#[tokio::test]
async fn pipes_of_dead_processes_are_swept() {
    let file = File::new();
    let locks = file.open().await;
    let pipes = PathBuf::from(format!("{}-pipes", file.path.display()));
    fs::create_dir(&pipes).unwrap();
    let orphan = pipes.join("0123456789abcdef0123456789abcdef");
    let [draft, old_draft] = [0, 1].map(|nth| pipes.join(format!("{nth:032x}.new")));
    for pipe in [&orphan, &draft, &old_draft] {
        nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    // Opened for reading as well, a pipe does not wait for a reader.
    let pipe = fs::File::options().read(true).write(true).open(&old_draft);
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
    pipe.unwrap().set_modified(an_hour_ago).unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").acquire());
    until("what the dead left is swept", async || {
        let waits = locks.inspect("a").await.unwrap().waiters.len() == 1;
        waits && !orphan.exists() && !old_draft.exists()
    })
    .await;
    assert!(draft.exists(), "its process may be at it");
    fs::remove_file(draft).unwrap();
    assert_eq!(fs::read_dir(&pipes).unwrap().count(), 1);
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    drop(locks);
    until("the own pipe is gone", async || {
        fs::read_dir(&pipes).unwrap().count() == 0
    })
    .await;
}
