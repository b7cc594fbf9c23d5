//! The file of the SQLite engine: what it is made of, what it survives, what it refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use leasehold::engine::sqlite::SqliteConfig;
use leasehold::{ErrorKind, Locks, wall_clock_micros};

use super::common::{File, WHOLE};
use crate::support::times::until;

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

/// Whoever may write to the database may write any row.
#[tokio::test]
async fn row_that_names_another_file_as_pipe_changes_it_not() {
    let file = File::new();
    let locks = file.open().await;
    let folder = file.path.parent().unwrap();
    let pipes = PathBuf::from(format!("{}-pipes", file.path.display()));
    fs::create_dir(&pipes).unwrap();
    let victims = ["absolute", "beside", "linked"].map(|name| folder.join(name));
    let [link, plain] = [0, 1].map(|nth| format!("{nth:032x}"));
    std::os::unix::fs::symlink(&victims[2], pipes.join(&link)).unwrap();
    let planted = pipes.join(&plain);
    for victim in victims.iter().chain([&planted]) {
        fs::write(victim, "a text of some length").unwrap();
    }
    let absolute = victims[0].display().to_string();
    for pipe in [&absolute, "../beside", &link, &plain] {
        let held = locks.lock("a").acquire().await.unwrap();
        let row =
            "INSERT INTO claims VALUES ('a', ?1, x'01', 0, 0, 1000000, 0, 0, ?2, '', '', 1, NULL)";
        let after = held.token().get() as i64 + 1;
        file.sql().execute(row, (after, pipe)).unwrap();
        held.release().await.unwrap();
        let next = locks.lock("a").try_acquire().await.unwrap();
        let next = next.expect("such a row is of no waiter");
        next.release().await.unwrap();
    }
    for victim in victims.iter().chain([&planted]) {
        let text = fs::read_to_string(victim).unwrap();
        assert_eq!(text, "a text of some length", "{}", victim.display());
    }
}

#[tokio::test]
async fn link_in_place_of_the_turn_file_is_not_followed() {
    let file = File::new();
    let locks = file.open().await;
    let victim = file.path.with_file_name("victim");
    fs::write(&victim, "text").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o640)).unwrap();
    let turn = format!("{}-turn", file.path.display());
    std::os::unix::fs::symlink(&victim, &turn).unwrap();
    // Only who must wait for others takes turns.
    let intruder = file.sql();
    intruder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(refused.to_string().contains(&turn), "{refused}");
    let mode = fs::metadata(&victim).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "text");
}

/// Into a database of the victim's own, and into a file that is not there.
#[tokio::test]
async fn link_in_place_of_the_records_is_not_followed() {
    for exists in [true, false] {
        let file = File::new();
        let locks = file.open().await;
        let victim = file.path.with_file_name("victim");
        if exists {
            fs::write(&victim, "").unwrap();
        }
        let records = format!("{}-records", file.path.display());
        std::os::unix::fs::symlink(&victim, &records).unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        let store = locks.store().unwrap();
        let written = store.write_fenced("key", "value", &lease).await;
        let refused = written.unwrap_err().to_string();
        assert!(refused.contains(&records), "{refused}");
        assert!(refused.contains("link"), "{refused}");
        assert_eq!(victim.exists(), exists);
        assert!(!exists || fs::read(&victim).unwrap().is_empty());
    }
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
    let bytes = fs::read(&file.path).unwrap();
    let error = file.refused().await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(
        fs::read(&file.path).unwrap() == bytes,
        "it is a database in WAL mode now"
    );
    let beside = fs::read_dir(file.path.parent().unwrap()).unwrap();
    assert_eq!(beside.count(), 1, "something was made beside it");
}

/// Each sees whether it is another program's, while others make the tables.
#[test]
fn new_file_is_opened_by_many_at_once() {
    for _ in 0..20 {
        let file = File::new();
        let url = format!("sqlite:{}", file.path.display());
        let together = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = runtime.enable_all().build().unwrap();
                    together.wait();
                    runtime.block_on(Locks::connect(&url)).unwrap();
                });
            }
        });
    }
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
    let an_hour_ahead = wall_clock_micros() as i64 + 3_600_000_000;
    file.sql()
        .execute(
            "UPDATE claims SET expires = ?1 WHERE name = ''",
            [an_hour_ahead],
        )
        .unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    assert_eq!(lease.token().get() as i64, an_hour_ahead + 1);
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
async fn deleted_file_is_opened_anew_by_an_idle_process() {
    let file = File::new();
    let idle = file.open().await;
    file.delete(&WHOLE);
    let other = file.open().await;
    let held = other.lock("a").acquire().await.unwrap();
    let second = idle.lock("a").try_acquire().await.unwrap();
    assert!(second.is_none(), "two hold it");
    let waiter = tokio::spawn(idle.lock("a").wait(Duration::from_secs(20)).acquire());
    tokio::time::sleep(Duration::from_millis(100)).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// SQLite has its locks in the log's index, and would go on with one that nobody else sees.
#[tokio::test]
async fn file_without_its_log_is_an_error() {
    for deleted in ["-wal", "-shm"] {
        let file = File::new();
        let locks = file.open().await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        file.delete(&[deleted]);
        for _ in 0..2 {
            let error = locks.lock("a").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
            assert!(error.to_string().contains(deleted), "{error}");
        }
    }
}

#[tokio::test]
async fn file_deleted_without_its_log_is_an_error() {
    let file = File::new();
    let locks = file.open().await;
    drop(locks.lock("a").acquire().await.unwrap());
    locks.flush().await;
    file.delete(&[""]);
    for _ in 0..2 {
        let error = locks.lock("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
        assert!(error.to_string().contains("-wal"), "{error}");
    }
    file.delete(&["-wal", "-shm"]);
    let lease = locks.lock("a").acquire().await.unwrap();
    let other = file.open().await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn lease_in_a_deleted_file_is_lost_at_its_renewal() {
    let file = File::new();
    let locks = file.open().await;
    let lease = locks.lock("a").ttl(Duration::from_secs(1)).acquire().await;
    let lease = lease.unwrap();
    file.delete(&WHOLE);
    tokio::time::timeout(Duration::from_secs(10), lease.lost())
        .await
        .expect("it is renewed in a file that nobody else sees");
}

#[tokio::test]
async fn waiter_in_a_deleted_file_queues_in_the_new_one() {
    let file = File::new();
    let locks = file.open().await;
    let ttl = Duration::from_secs(2);
    let held = locks.lock("a").ttl(ttl).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").wait(Duration::from_secs(60)).acquire());
    until("one waits", async || {
        locks.inspect("a").await.unwrap().waiters.len() == 1
    })
    .await;
    file.delete(&WHOLE);
    fs::remove_dir_all(format!("{}-pipes", file.path.display())).unwrap();
    let other = file.open().await;
    let next = other.lock("a").acquire().await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(10), held.lost());
    lost.await
        .expect("it is renewed in a file that nobody else sees");
    tokio::time::sleep(ttl).await;
    assert!(!waiter.is_finished(), "two hold it");
    assert_eq!(other.inspect("a").await.unwrap().waiters.len(), 1);
    next.release().await.unwrap();
    let lease = waiter.await.unwrap().unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn path_that_leads_to_another_file_is_an_error() {
    let [old, new] = [File::new(), File::new()];
    drop((old.open().await, new.open().await));
    let link = File::new();
    std::os::unix::fs::symlink(&old.path, &link.path).unwrap();
    let idle = link.open().await;
    let store = idle.store().unwrap();
    let lease = idle.lock("r").acquire().await.unwrap();
    store.write_fenced("r", "value", &lease).await.unwrap();
    fs::remove_file(&link.path).unwrap();
    std::os::unix::fs::symlink(&new.path, &link.path).unwrap();
    let _held = link.open().await.lock("a").acquire().await.unwrap();
    let error = idle.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    let error = store.read("r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}

#[tokio::test]
async fn symlink_to_the_file_shares_its_queue() {
    let [file, link] = [File::new(), File::new()];
    let direct = file.open().await;
    std::os::unix::fs::symlink(&file.path, &link.path).unwrap();
    let linked = link.open().await;
    let held = direct.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(linked.lock("a").wait(Duration::from_secs(20)).acquire());
    until("one waits", async || {
        direct.inspect("a").await.unwrap().waiters.len() == 1
    })
    .await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn deleted_file_of_records_is_opened_anew() {
    let file = File::new();
    let [idle, other] = [file.open().await, file.open().await];
    let lease = idle.lock("r").acquire().await.unwrap();
    let [ours, theirs] = [idle.store().unwrap(), other.store().unwrap()];
    ours.write_fenced("r", "old", &lease).await.unwrap();
    for ending in WHOLE {
        fs::remove_file(format!("{}-records{ending}", file.path.display())).unwrap();
    }
    theirs.write_if("r", "new", None).await.unwrap();
    let read = ours.read("r").await.unwrap();
    assert_eq!(read.unwrap().value, b"new");
}

/// SQLite keeps the log and its locks beside each name.
#[tokio::test]
async fn second_name_of_the_file_is_refused() {
    let [file, link] = [File::new(), File::new()];
    let locks = file.open().await;
    let _held = locks.lock("a").acquire().await.unwrap();
    fs::hard_link(&file.path, &link.path).unwrap();
    for name in [&link, &file] {
        let error = name.refused().await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("hard link"), "{error}");
    }
    fs::remove_file(&link.path).unwrap();
    let again = file.open().await;
    assert!(again.lock("a").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn after_a_restart_of_the_machine_nobody_holds_anything() {
    let file = File::new();
    let locks = file.open().await;
    let lease = locks.lock("a").acquire().await.unwrap();
    let token = lease.token();
    lease.detach();
    drop(locks);
    // The clock has begun anew: what the file says lies ahead of it.
    let earlier = "UPDATE claims SET owner = 'an earlier boot' WHERE name = '';
        UPDATE claims SET since = since + 3600000000, expires = expires + 3600000000 WHERE name > ''";
    file.sql().execute_batch(earlier).unwrap();
    let locks = file.open().await;
    assert!(locks.list("").await.unwrap().is_empty());
    let next = locks.lock("a").try_acquire().await.unwrap().unwrap();
    assert!(next.token() > token);
}

/// As in a container that is given a boot id of its own, beside others of the same kernel.
#[tokio::test]
async fn another_boot_id_alone_takes_no_lock_away() {
    let file = File::new();
    let locks = file.open().await;
    let lease = locks.lock("a").acquire().await.unwrap();
    file.sql()
        .execute("UPDATE claims SET owner = 'another id' WHERE name = ''", [])
        .unwrap();
    let container = file.open().await;
    assert!(container.lock("a").try_acquire().await.unwrap().is_none());
    assert!(lease.is_valid());
    lease.release().await.unwrap();
    assert!(container.lock("a").try_acquire().await.unwrap().is_some());
}

/// The container waits for the file, and meanwhile the holder renews: a time read before the wait would lie behind that renewal.
#[tokio::test(flavor = "multi_thread")]
async fn renewal_while_another_boot_opens_the_file_stays() {
    let file = File::new();
    let locks = file.open().await;
    let _lease = locks.lock("a").acquire().await.unwrap();
    let busy = file.sql();
    busy.execute("UPDATE claims SET owner = 'another id' WHERE name = ''", [])
        .unwrap();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let url = file.url();
    let container = tokio::spawn(async move { Locks::connect(url).await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let renewal = "UPDATE claims SET expires = expires + 40000 WHERE name = 'a'";
    assert_eq!(busy.execute(renewal, []).unwrap(), 1);
    busy.execute_batch("COMMIT").unwrap();
    let container = container.await.unwrap();
    assert!(container.lock("a").try_acquire().await.unwrap().is_none());
}

/// A clock that has begun anew, on a system that has no id for each boot: what the file says lies far ahead.
#[tokio::test]
async fn a_lock_from_before_a_restart_is_free_without_a_boot_id() {
    let file = File::new();
    let locks = file.open().await;
    let lease = locks.lock("a").acquire().await.unwrap();
    let (token, claim) = (lease.token(), lease.detach());
    let a_month = Duration::from_secs(30 * 86_400).as_micros() as i64;
    let sql = "UPDATE claims SET since = since + ?1, expires = expires + ?1 WHERE name = 'a'";
    assert_eq!(file.sql().execute(sql, [a_month]).unwrap(), 1);
    assert!(locks.inspect("a").await.unwrap().holders.is_empty());
    let resumed = locks.resume("a", claim).unwrap();
    let renewed = resumed.renew(Duration::from_secs(30)).await.unwrap();
    assert!(renewed.is_none(), "nobody holds it any more");
    let next = locks.lock("a").try_acquire().await.unwrap();
    assert!(next.expect("it is free").token() > token);
}

#[tokio::test]
async fn typed_configuration_opens_the_same_file() {
    let file = File::new();
    let busy_timeout = Duration::from_millis(300);
    let config = SqliteConfig::new(&file.path).busy_timeout(busy_timeout);
    let typed = Locks::new(config.connect().await.unwrap());
    let _held = typed.lock("a").acquire().await.unwrap();
    let parsed: SqliteConfig = file.url().parse().unwrap();
    for locks in [
        Locks::new(parsed.connect().await.unwrap()),
        file.open().await,
    ] {
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    }
    // The user's own file is the default, and nobody gets it by mistake.
    for path in [":memory:", ""] {
        let error = SqliteConfig::new(path).connect().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.advice().is_some(), "{error}");
    }
    let nowhere = SqliteConfig::new(file.path.join("below/a/file"));
    let error = nowhere.connect().await.unwrap_err();
    assert!(error.advice().is_some(), "{error}");
    assert!("redis://a".parse::<SqliteConfig>().is_err());
}
