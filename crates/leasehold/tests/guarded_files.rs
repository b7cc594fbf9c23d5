//! Guarded files, on a real folder.

#![cfg(all(feature = "files", unix))]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use leasehold::guard::{Checked, Fenced, FileStore, Pass, Store, Version};
use leasehold::{ErrorKind, FencingToken, LockName};
use tempfile::TempDir;

fn folder() -> (TempDir, Store) {
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
async fn the_file_is_there_for_any_program_and_refuses_what_is_stale() {
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
    let other = Pass {
        token: token(10),
        lock: Some(LockName::new("other").unwrap()),
    };
    store
        .write_fenced("report.txt", "named", other)
        .await
        .unwrap();
    let another = Pass {
        token: token(11),
        lock: Some(LockName::new("another").unwrap()),
    };
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
async fn a_crash_between_any_two_steps_leaves_it_readable_with_a_token_that_has_not_gone_back() {
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
