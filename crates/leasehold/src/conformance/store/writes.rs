//! Writes: what is stale by its token or its version is refused.

use super::super::Ground;
use super::super::case::theme;
use super::{fenced, pass, store, there, token, written};
use crate::error::ErrorKind;
use crate::guard::{Checked, Fenced, MAX_VALUE, Record, Version};
use crate::token::FencingToken;

theme! { store:
    an_unknown_key_has_no_record [Store] caught by [RecordsAppear];
    what_was_written_is_read [Store] caught by [RecordsAreCut, RecordsVanish];
    the_largest_value_is_kept_and_a_larger_one_refused [Store] caught by [RecordsAreCut];
    versions_never_come_back [Store] caught by [VersionsStandStill];
    a_lower_token_is_refused_and_changes_nothing [Store] caught by [RecordsIgnoreTokens];
    an_equal_token_may_write_again [Store] caught by [RecordsRefuseEqualTokens];
    an_optimistic_write_keeps_the_highest_token [Store] caught by [RecordsIgnoreTokens];
    a_version_that_has_passed_is_refused [Store] caught by [RecordsIgnoreVersions];
    only_one_can_be_first [Store] caught by [RecordsIgnoreVersions];
    a_token_of_another_lock_is_an_error [Store] caught by [RecordsIgnoreLocks];
}

async fn an_unknown_key_has_no_record(ground: Ground) {
    let store = store(&ground).await;
    assert_eq!(store.read(ground.name("x")).await.unwrap(), None);
    let expected = store
        .write_if(ground.name("x"), "v", Some(Version::new(3)))
        .await;
    assert_eq!(expected.unwrap(), Checked::Changed { version: None });
    assert_eq!(store.read(ground.name("x")).await.unwrap(), None);
}

async fn what_was_written_is_read(ground: Ground) {
    let (first, second) = (store(&ground).await, store(&ground).await);
    let every_byte: Vec<u8> = (0..=255).collect();
    let values: [&[u8]; 4] = [b"", b"plain", &every_byte, "caf\u{e9}\n\0\\'\"".as_bytes()];
    for (nth, value) in values.into_iter().enumerate() {
        let key = ground.name(&format!("x{nth}"));
        let version = written(first.write_fenced(&key, value, token(7)).await.unwrap());
        let record = there(&second, &key).await;
        let lock = None;
        let expected = Record {
            value: value.to_vec(),
            version,
            token: token(7),
            lock,
        };
        assert_eq!(record, expected);
        let key = ground.name(&format!("y{nth}"));
        let Checked::Written { version } = first.write_if(&key, value, None).await.unwrap() else {
            panic!("it was not there before");
        };
        let record = there(&second, &key).await;
        assert_eq!((record.value, record.version), (value.to_vec(), version));
        assert_eq!(record.token, FencingToken::NONE);
    }
}

async fn the_largest_value_is_kept_and_a_larger_one_refused(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    let mut value: Vec<u8> = (0..MAX_VALUE).map(|nth| (nth % 251) as u8).collect();
    written(store.write_fenced(&key, &value, token(1)).await.unwrap());
    assert!(
        there(&store, &key).await.value == value,
        "it came back changed"
    );
    value.push(0);
    for refused in [
        store.write_fenced(&key, &value, token(2)).await.map(|_| ()),
        store.write_if(&key, &value, None).await.map(|_| ()),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    assert_eq!(there(&store, &key).await.token, token(1));
}

async fn versions_never_come_back(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    let mut last = written(fenced(&store, &key, "0", 1).await);
    for round in 0..10 {
        // The same value again is a write as well.
        let next = if round % 2 == 0 {
            written(fenced(&store, &key, "same", 1).await)
        } else {
            match store.write_if(&key, "same", Some(last)).await.unwrap() {
                Checked::Written { version } => version,
                Checked::Changed { version } => panic!("nobody else wrote: {version:?}"),
            }
        };
        assert!(next > last, "{next} after {last}");
        assert_eq!(there(&store, &key).await.version, next);
        last = next;
    }
}

async fn a_lower_token_is_refused_and_changes_nothing(ground: Ground) {
    let (store, other) = (store(&ground).await, store(&ground).await);
    let key = ground.name("x");
    written(fenced(&store, &key, "new", 900).await);
    let before = there(&store, &key).await;
    for lower in [0, 1, 89, 899] {
        let highest = token(900);
        assert_eq!(
            fenced(&other, &key, "old", lower).await,
            Fenced::Refused { highest }
        );
        assert_eq!(there(&store, &key).await, before);
    }
    // Compared as numbers, not as text; to the last bit.
    let greatest = FencingToken::MAX.get();
    for higher in [1000, 10_000, greatest - 1, greatest] {
        written(fenced(&store, &key, "new", higher).await);
    }
    let highest = FencingToken::MAX;
    assert_eq!(
        fenced(&other, &key, "old", greatest - 1).await,
        Fenced::Refused { highest }
    );
}

async fn an_equal_token_may_write_again(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    for value in ["first", "second", "third"] {
        written(fenced(&store, &key, value, 5).await);
        assert_eq!(there(&store, &key).await.value, value.as_bytes());
    }
}

async fn an_optimistic_write_keeps_the_highest_token(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    let by = pass(50, "the-lock");
    let version = written(store.write_fenced(&key, "a", by.clone()).await.unwrap());
    let changed = store.write_if(&key, "b", Some(version)).await.unwrap();
    assert!(matches!(changed, Checked::Written { .. }));
    let record = there(&store, &key).await;
    assert_eq!((record.token, &record.lock), (by.token, &by.lock));
    assert_eq!(
        fenced(&store, &key, "c", 49).await,
        Fenced::Refused { highest: by.token }
    );
    assert_eq!(there(&store, &key).await, record);
}

async fn a_version_that_has_passed_is_refused(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    let first = written(fenced(&store, &key, "a", 1).await);
    let second = written(fenced(&store, &key, "b", 1).await);
    let later = Version::new(second.get() + 1);
    for wrong in [None, Some(first), Some(later), Some(Version::new(u64::MAX))] {
        let refused = store.write_if(&key, "c", wrong).await.unwrap();
        assert_eq!(
            refused,
            Checked::Changed {
                version: Some(second)
            }
        );
    }
    assert_eq!(there(&store, &key).await.value, b"b");
    let Checked::Written { version } = store.write_if(&key, "c", Some(second)).await.unwrap()
    else {
        panic!("it was the right one");
    };
    assert!(version > second);
}

async fn only_one_can_be_first(ground: Ground) {
    let key = ground.name("x");
    let mut firsts = 0;
    let mut attempts = Vec::new();
    for nth in 0..8 {
        let (store, key) = (store(&ground).await, key.clone());
        attempts.push(async move { store.write_if(&key, nth.to_string(), None).await });
    }
    for attempt in futures_util::future::join_all(attempts).await {
        firsts += usize::from(matches!(attempt.unwrap(), Checked::Written { .. }));
    }
    assert_eq!(firsts, 1);
}

async fn a_token_of_another_lock_is_an_error(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    written(store.write_fenced(&key, "a", pass(5, "one")).await.unwrap());
    let before = there(&store, &key).await;
    assert_eq!(before.lock.as_ref().unwrap().as_str(), "one");
    for number in [4, 5, 6] {
        let error = store
            .write_fenced(&key, "b", pass(number, "two"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("\"one\""), "{error}");
    }
    assert_eq!(there(&store, &key).await, before);
    // A token alone is believed to be the right lock's, and does not make the record forget it.
    written(fenced(&store, &key, "c", 6).await);
    assert_eq!(there(&store, &key).await.lock, before.lock);
    written(store.write_fenced(&key, "d", pass(7, "one")).await.unwrap());
}
