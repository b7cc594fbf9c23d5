//! Guarded files, on a real folder.

#![cfg(all(feature = "files", unix))]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use crate::support::deadline;
use leasehold::guard::{Checked, Fenced, FileStore, Pass, Store, Version};
use leasehold::{ErrorKind, FencingToken, LockName};
use tempfile::TempDir;

fn folder() -> (TempDir, Store) {
    deadline::begin();
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    (folder, store)
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

async fn written(store: &Store, key: &str, value: &str, number: u64) -> Version {
    match store.write_fenced(key, value, token(number)).await.unwrap() {
        Fenced::Written { version } => version,
        refused => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn file_is_plain_and_refuses_stale_writes() {
    let (folder, store) = folder();
    written(&store, "report.txt", "old", 4).await;
    let version = written(&store, "report.txt", "new", 9).await;
    assert_eq!(
        fs::read_to_string(folder.path().join("report.txt")).unwrap(),
        "new"
    );
    let stale = store
        .write_fenced("report.txt", "late", token(8))
        .await
        .unwrap();
    assert_eq!(stale, Fenced::Refused { highest: token(9) });
    let stale = store.write_if("report.txt", "late", None).await.unwrap();
    assert_eq!(
        stale,
        Checked::Changed {
            version: Some(version)
        }
    );
    assert_eq!(
        fs::read_to_string(folder.path().join("report.txt")).unwrap(),
        "new"
    );
    let other = Pass::new(token(10), LockName::new("other").unwrap());
    store
        .write_fenced("report.txt", "named", other)
        .await
        .unwrap();
    let another = Pass::new(token(11), LockName::new("another").unwrap());
    let error = store
        .write_fenced("report.txt", "wrong", another)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_file_put_there_by_hand_is_version_0() {
    let (folder, store) = folder();
    fs::write(folder.path().join("x"), "by hand").unwrap();
    let record = store.read("x").await.unwrap().unwrap();
    assert_eq!(
        (&*record.value, record.version),
        (&b"by hand"[..], Version::new(0))
    );
    assert!(matches!(
        store
            .write_if("x", "changed", Some(record.version))
            .await
            .unwrap(),
        Checked::Written { .. }
    ));
}

/// Each step of a write, cut short: the stamp is there and the value is not, or half-written files lie about.
#[tokio::test]
async fn crash_at_any_step_leaves_file_and_token_sound() {
    let (folder, store) = folder();
    let value = folder.path().join("x");
    let stamp = folder.path().join(".leasehold/x");
    written(&store, "x", "first", 5).await;
    let (old_stamp, old_value) = (fs::read(&stamp).unwrap(), fs::read(&value).unwrap());
    written(&store, "x", "second", 9).await;
    let new_stamp = fs::read(&stamp).unwrap();

    // Before the stamp was renamed: its temporary file is half there.
    fs::write(&stamp, &old_stamp).unwrap();
    fs::write(&value, &old_value).unwrap();
    fs::write(folder.path().join(".leasehold/.x.new"), &new_stamp[..1]).unwrap();
    let record = store.read("x").await.unwrap().unwrap();
    assert_eq!((&*record.value, record.token), (&b"first"[..], token(5)));

    // Between the stamp and the value: the token has risen, the value is the old one.
    fs::write(&stamp, &new_stamp).unwrap();
    fs::write(folder.path().join(".x.new"), "seco").unwrap();
    let record = store.read("x").await.unwrap().unwrap();
    assert_eq!((&*record.value, record.token), (&b"first"[..], token(9)));
    let stale = store.write_fenced("x", "late", token(8)).await.unwrap();
    assert_eq!(stale, Fenced::Refused { highest: token(9) });
    written(&store, "x", "again", 9).await;
    assert_eq!(fs::read_to_string(&value).unwrap(), "again");

    // A first write that was cut short: no record, but its token counts.
    fs::remove_file(&value).unwrap();
    assert_eq!(store.read("x").await.unwrap(), None);
    let stale = store.write_fenced("x", "late", token(8)).await.unwrap();
    assert_eq!(stale, Fenced::Refused { highest: token(9) });
    let before = written(&store, "x", "back", 9).await;
    fs::remove_file(&value).unwrap();
    let Checked::Written { version } = store.write_if("x", "new", None).await.unwrap() else {
        panic!("there is no record");
    };
    assert!(version > before, "versions never come back");
    assert_eq!(store.read("x").await.unwrap().unwrap().token, token(9));
}

#[tokio::test]
async fn a_deleted_file_is_gone_and_its_token_is_not() {
    let (folder, store) = folder();
    let value = folder.path().join("x");
    let first = written(&store, "x", "v", 5).await;
    let stale = store.delete("x", token(4)).await.unwrap();
    assert_eq!(stale, Fenced::Refused { highest: token(5) });
    assert!(value.exists());
    let Checked::Written { version } = store.delete_if("x", first).await.unwrap() else {
        panic!("nobody else wrote");
    };
    assert!(!value.exists() && version > first);
    assert_eq!(store.read("x").await.unwrap(), None);
    let stale = store.write_fenced("x", "late", token(4)).await.unwrap();
    assert_eq!(stale, Fenced::Refused { highest: token(5) });

    // Cut short before the value was removed: it is still there, and not as it was.
    let stamp = fs::read(folder.path().join(".leasehold/x")).unwrap();
    let again = written(&store, "x", "again", 5).await;
    fs::write(folder.path().join(".leasehold/x"), stamp).unwrap();
    let record = store.read("x").await.unwrap().unwrap();
    assert_eq!((record.version, record.token), (version, token(5)));
    assert!(again > version);

    // One that somebody put there by hand.
    fs::write(folder.path().join("hand"), "by hand").unwrap();
    let deleted = store.delete_if("hand", Version::new(0)).await.unwrap();
    assert!(matches!(deleted, Checked::Written { .. }), "{deleted:?}");
    assert!(!folder.path().join("hand").exists());
}

#[tokio::test]
async fn what_has_ended_is_swept_once_an_hour() {
    let (folder, store) = folder();
    let brief = Duration::from_millis(500);
    let store = store.remember_deleted(brief);
    let stamps = || {
        fs::read_dir(folder.path().join(".leasehold"))
            .unwrap()
            .count()
    };
    store.delete("first", token(5)).await.unwrap();
    let before = stamps();
    for nth in 0..20 {
        store.delete(format!("x{nth}"), token(5)).await.unwrap();
    }
    written(&store, "stays", "v", 5).await;
    tokio::time::sleep(2 * brief).await;
    // For whoever looks they are gone at once, token and all.
    written(&store, "x0", "v", 1).await;
    store.delete("last", token(5)).await.unwrap();
    assert_eq!(stamps(), before + 22, "it was swept just now");
    let swept = fs::File::options()
        .write(true)
        .open(folder.path().join(".leasehold/.swept"))
        .unwrap();
    let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3601);
    swept.set_modified(hour_ago).unwrap();
    store.delete("last", token(5)).await.unwrap();
    // Those two that stay, the last one, and what is not a stamp.
    assert_eq!(stamps(), before + 2);
    assert_eq!(store.read("stays").await.unwrap().unwrap().value, b"v");
}

/// Another user who may write in the folder plants links to a file of ours wherever leasehold is about to write or read.
#[tokio::test]
async fn no_link_that_was_planted_leads_out_of_the_folder() {
    use std::os::unix::fs::symlink;

    let (folder, store) = folder();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let untouched = || assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");

    // Where a write puts its temporary files.
    for temporary in [".x.new", ".leasehold/.x.new"] {
        symlink(&secret, folder.path().join(temporary)).unwrap();
    }
    written(&store, "x", "first", 1).await;
    untouched();
    assert_eq!(store.read("x").await.unwrap().unwrap().value, b"first");

    // In place of a value: it is not read, and not written through.
    symlink(&secret, folder.path().join("y")).unwrap();
    let error = store.read("y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(error.to_string().contains("plain file"), "{error}");
    assert!(store.write_fenced("y", "v", token(1)).await.is_err());
    untouched();

    // In place of a stamp.
    symlink(&secret, folder.path().join(".leasehold/z")).unwrap();
    let error = store.read("z").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(store.write_fenced("z", "v", token(1)).await.is_err());
    untouched();

    // In place of the lock: whoever opens it must not make a file elsewhere.
    let elsewhere = outside.path().join("elsewhere");
    fs::remove_file(folder.path().join(".leasehold/.lock")).unwrap();
    symlink(&elsewhere, folder.path().join(".leasehold/.lock")).unwrap();
    assert!(store.read("x").await.is_err());
    assert!(!elsewhere.exists(), "a file was made elsewhere");

    // In place of the whole folder of stamps.
    let other = tempfile::tempdir().unwrap();
    symlink(outside.path(), other.path().join(".leasehold")).unwrap();
    assert!(FileStore::open(other.path()).is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

/// Whoever opens a pipe waits for the other end, with the folder's lock in hand.
#[tokio::test]
async fn a_pipe_that_was_planted_holds_nobody_up() {
    let (folder, store) = folder();
    written(&store, "x", "v", 1).await;
    let mode = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&folder.path().join("pipe"), mode).unwrap();
    let read = tokio::time::timeout(Duration::from_secs(10), store.read("pipe"));
    let error = read.await.expect("it waits for a pipe").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(store.read("x").await.unwrap().is_some());
}

/// Whoever was first in a folder that all may write could forge every stamp.
#[tokio::test]
async fn stamps_that_belong_to_somebody_else_are_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let stamps = folder.path().join(".leasehold");
    fs::create_dir(&stamps).unwrap();
    if std::os::unix::fs::chown(&stamps, Some(65_534), None).is_err() {
        // Only root can play somebody else.
        return;
    }
    let error = FileStore::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn keys_are_data() {
    let (folder, store) = folder();
    let keys = [
        "a",
        "A",
        "../a",
        "..",
        ".",
        "a/b",
        "/a",
        ".leasehold",
        ".a",
        "a.new",
        ".a.new",
        "a%2Fb",
        "caf\u{e9}",
        "-x",
    ];
    for (nth, key) in keys.iter().enumerate() {
        written(&store, key, key, nth as u64).await;
    }
    for key in keys {
        assert_eq!(
            store.read(key).await.unwrap().unwrap().value,
            key.as_bytes(),
            "{key}"
        );
    }
    let beside = folder.path().parent().unwrap().join("a");
    assert!(!beside.exists(), "a key has left the folder");
    let error = store
        .write_fenced("/".repeat(100), "v", token(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("too long"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_who_count_lose_nothing() {
    let (folder, store) = folder();
    let mut counters = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let store = FileStore::open(folder.path()).unwrap();
        counters.spawn(async move {
            for _ in 0..5 {
                let add = |old: Option<&[u8]>| {
                    let old = old.map_or("0", |old| std::str::from_utf8(old).unwrap());
                    (old.parse::<u64>().unwrap() + 1).to_string()
                };
                store
                    .update_within(Duration::from_secs(60), "n", add)
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(done) = counters.join_next().await {
        done.unwrap();
    }
    assert_eq!(store.read("n").await.unwrap().unwrap().value, b"80");
}

#[tokio::test]
async fn what_is_wrong_with_the_folder_is_said() {
    let (folder, store) = folder();
    written(&store, "x", "v", 1).await;
    fs::write(folder.path().join(".leasehold/x"), "nonsense").unwrap();
    let error = store.read("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(
        FileStore::open(&file).unwrap_err().kind(),
        ErrorKind::InvalidConfig
    );
}

#[tokio::test]
async fn a_file_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    let token = FencingToken::new(1).unwrap();
    store.write_fenced("a", "1", token).await.unwrap();
    let path = folder.path().join("a");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    store.write_fenced("a", "2", token).await.unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn who_may_only_read_the_folder_cannot_lock_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let store = FileStore::open(folder.path()).unwrap();
    let token = FencingToken::new(1).unwrap();
    store.write_fenced("a", "1", token).await.unwrap();
    let lock = folder.path().join(".leasehold/.lock");
    let mode = std::fs::metadata(lock).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}
