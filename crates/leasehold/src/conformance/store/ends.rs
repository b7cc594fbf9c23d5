//! Deletions and lifetimes: a record that has ended is absent, and its token still counts.

use super::super::Ground;
use super::super::case::theme;
use super::super::ground::{LONG, ms, now};
use super::{fenced, pass, store, there, token, written};
use crate::error::ErrorKind;
use crate::guard::{Checked, Content, Fenced, GuardedStore, Key, Version};
use std::sync::Arc;
use std::time::Duration;

theme! { store:
    a_deleted_record_is_absent [Store] caught by [DeletionsDoNothing];
    a_deleted_record_refuses_what_is_stale [Store] caught by [DeletionsForgetTokens, RecordsIgnoreTokens];
    a_stale_deletion_is_refused [Store] caught by [RecordsIgnoreTokens, RecordsIgnoreVersions];
    a_deleted_record_may_be_written_anew [Store] caught by [DeletionsAreForEver, DeletionsForgetTokens];
    a_version_does_not_come_back_with_a_new_record [Store] caught by [VersionsComeBack];
    what_has_a_lifetime_ends [Store] caught by [LifetimesNeverEnd];
    a_lifetime_counts_from_the_last_write [Store] caught by [LifetimesStick];
    nothing_is_left_where_nothing_is_to_be_left [Store] caught by [LifetimesNeverEnd];
}

/// A lifetime that ends while one waits for it, though on some engines not before a few seconds have passed.
const BRIEF: Duration = ms(300);

/// The store as engines see it, which lets a case choose lifetimes.
async fn records(ground: &Ground) -> Arc<dyn GuardedStore> {
    let engine = ground.engine().await;
    engine.store().expect("it says that it has one")
}

async fn put(records: &dyn GuardedStore, key: &Key, content: Content<'_>, number: u64) -> Version {
    let pass = token(number).into();
    written(records.write_fenced(key, content, &pass).await.unwrap())
}

async fn until_ended(ground: &Ground, records: &dyn GuardedStore, key: &Key) {
    ground
        .until("its lifetime ends", async || {
            records.read(key).await.unwrap().is_none()
        })
        .await;
}

async fn a_deleted_record_is_absent(ground: Ground) {
    let (store, other) = (store(&ground).await, store(&ground).await);
    for (nth, key) in ["x", "y"].iter().enumerate() {
        let key = ground.name(key);
        let version = written(fenced(&store, &key, "v", 5).await);
        let deleted = match nth {
            0 => written(store.delete(&key, token(5)).await.unwrap()),
            _ => match store.delete_if(&key, version).await.unwrap() {
                Checked::Written { version } => version,
                changed => panic!("nobody else wrote: {changed:?}"),
            },
        };
        assert!(deleted > version, "{deleted} after {version}");
        assert_eq!(other.read(&key).await.unwrap(), None);
        for gone in [version, deleted] {
            let changed = other.write_if(&key, "late", Some(gone)).await.unwrap();
            assert_eq!(changed, Checked::Changed { version: None });
            let changed = other.delete_if(&key, gone).await.unwrap();
            assert_eq!(changed, Checked::Changed { version: None });
        }
    }
    // Where there is none, only the token is taken down.
    let key = ground.name("none");
    written(store.delete(&key, token(5)).await.unwrap());
    assert_eq!(store.read(&key).await.unwrap(), None);
    let highest = token(5);
    assert_eq!(
        fenced(&other, &key, "late", 4).await,
        Fenced::Refused { highest }
    );
}

async fn a_deleted_record_refuses_what_is_stale(ground: Ground) {
    let (store, other) = (store(&ground).await, store(&ground).await);
    let key = ground.name("x");
    written(store.write_fenced(&key, "v", pass(7, "one")).await.unwrap());
    written(store.delete(&key, pass(9, "one")).await.unwrap());
    let highest = token(9);
    for stale in [1, 7, 8] {
        assert_eq!(
            fenced(&other, &key, "late", stale).await,
            Fenced::Refused { highest }
        );
        let refused = other.delete(&key, token(stale)).await.unwrap();
        assert_eq!(refused, Fenced::Refused { highest });
    }
    assert_eq!(store.read(&key).await.unwrap(), None);
    let error = other.write_fenced(&key, "b", pass(10, "two")).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidConfig);
    // The same holder may write again, and delete again.
    written(fenced(&store, &key, "back", 9).await);
    assert_eq!(there(&other, &key).await.value, b"back");
    written(store.delete(&key, token(9)).await.unwrap());
    assert_eq!(other.read(&key).await.unwrap(), None);
}

async fn a_stale_deletion_is_refused(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    let first = written(fenced(&store, &key, "a", 5).await);
    let version = written(fenced(&store, &key, "b", 5).await);
    let before = there(&store, &key).await;
    let highest = token(5);
    assert_eq!(
        store.delete(&key, token(4)).await.unwrap(),
        Fenced::Refused { highest }
    );
    assert_eq!(
        store.delete_if(&key, first).await.unwrap(),
        Checked::Changed {
            version: Some(version)
        }
    );
    assert_eq!(there(&store, &key).await, before);
}

async fn a_deleted_record_may_be_written_anew(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    written(store.write_fenced(&key, "v", pass(7, "one")).await.unwrap());
    let deleted = written(store.delete(&key, pass(7, "one")).await.unwrap());
    let Checked::Written { version } = store.write_if(&key, "new", None).await.unwrap() else {
        panic!("there is no record");
    };
    assert!(version > deleted);
    let record = there(&store, &key).await;
    assert_eq!((&*record.value, record.version), (&b"new"[..], version));
    // An optimistic write knows no token: that of the deleted record still counts.
    assert_eq!(record.token, token(7));
    assert_eq!(record.lock.unwrap().as_str(), "one");
    let again = store.write_if(&key, "newer", None).await.unwrap();
    assert_eq!(
        again,
        Checked::Changed {
            version: Some(version)
        }
    );
}

async fn a_version_does_not_come_back_with_a_new_record(ground: Ground) {
    let records = records(&ground).await;
    let key = &Key::new(ground.name("x")).unwrap();
    let value = Content::value(b"v");
    let mut seen = Vec::new();
    for lifetime in [LONG, BRIEF, Duration::ZERO, LONG] {
        for _ in 0..3 {
            seen.push(put(&*records, key, value, 5).await);
        }
        let deleted = put(&*records, key, Content::deleted(lifetime), 5).await;
        if lifetime == BRIEF {
            // A lower token is let in again once nothing is known of the record.
            let pass = token(1).into();
            ground
                .until("the deleted record is forgotten", async || {
                    let tried = records.write_fenced(key, value, &pass).await.unwrap();
                    matches!(tried, Fenced::Written { .. })
                })
                .await;
        }
        if !lifetime.is_zero() {
            seen.push(deleted);
        }
    }
    let last = put(&*records, key, value, 5).await;
    for old in seen {
        assert!(old < last, "{old} came back");
        let changed = records.write_if(key, value, Some(old)).await.unwrap();
        let version = Some(last);
        assert_eq!(changed, Checked::Changed { version });
    }
}

async fn what_has_a_lifetime_ends(ground: Ground) {
    let records = records(&ground).await;
    let [value, deleted] = ["value", "deleted"].map(|key| Key::new(ground.name(key)).unwrap());
    put(&*records, &deleted, Content::deleted(BRIEF), 9).await;
    let before = now();
    put(&*records, &value, Content::passing(b"v", BRIEF), 9).await;
    let is_there = records.read(&value).await.unwrap().is_some();
    assert!(is_there || now() >= before + BRIEF);
    until_ended(&ground, &*records, &value).await;
    for key in [&value, &deleted] {
        let pass = token(1).into();
        ground
            .until("the token is forgotten too", async || {
                let tried = records.write_fenced(key, Content::value(b"w"), &pass).await;
                matches!(tried.unwrap(), Fenced::Written { .. })
            })
            .await;
        assert_eq!(records.read(key).await.unwrap().unwrap().token, token(1));
    }
}

async fn a_lifetime_counts_from_the_last_write(ground: Ground) {
    let records = records(&ground).await;
    let [brief, fenced, checked, deleted] =
        ["brief", "fenced", "checked", "deleted"].map(|key| Key::new(ground.name(key)).unwrap());
    // Long enough for the writes below, also where the host stalls.
    let passing = Content::passing(b"v", 10 * BRIEF);
    for key in [&fenced, &deleted] {
        put(&*records, key, passing, 5).await;
    }
    let version = put(&*records, &checked, passing, 5).await;
    put(&*records, &fenced, Content::value(b"w"), 5).await;
    put(&*records, &deleted, Content::deleted(LONG), 5).await;
    let stays = records.write_if(&checked, Content::value(b"w"), Some(version));
    let stays = stays.await.unwrap();
    assert!(matches!(stays, Checked::Written { .. }), "{stays:?}");
    // Written last, it ends last.
    put(&*records, &brief, passing, 5).await;
    until_ended(&ground, &*records, &brief).await;
    for key in [&fenced, &checked] {
        let record = records.read(key).await.unwrap().expect("it was to stay");
        assert_eq!((&*record.value, record.token), (&b"w"[..], token(5)));
    }
    let stale = token(4).into();
    let refused = records.write_fenced(&deleted, passing, &stale).await;
    let highest = token(5);
    assert_eq!(refused.unwrap(), Fenced::Refused { highest });
}

async fn nothing_is_left_where_nothing_is_to_be_left(ground: Ground) {
    let records = records(&ground).await;
    let key = &Key::new(ground.name("x")).unwrap();
    let nothing = Content::deleted(Duration::ZERO);
    put(&*records, key, nothing, 9).await;
    put(&*records, key, Content::value(b"v"), 5).await;
    put(&*records, key, nothing, 9).await;
    assert_eq!(records.read(key).await.unwrap(), None);
    let version = put(&*records, key, Content::value(b"v"), 5).await;
    let removed = records.write_if(key, nothing, Some(version)).await.unwrap();
    assert!(matches!(removed, Checked::Written { .. }), "{removed:?}");
    put(&*records, key, Content::value(b"v"), 1).await;
    assert_eq!(records.read(key).await.unwrap().unwrap().token, token(1));
}
