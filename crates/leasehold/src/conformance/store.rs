//! Guarded records refuse stale writes, whoever sends them and whatever happens in between.

use std::sync::Arc;

use super::Ground;
use super::case::theme;
use super::child::{Report, Task};
use super::ground::{LONG, ms, pause};
use crate::error::ErrorKind;
use crate::guard::{Checked, Fenced, MAX_VALUE, Pass, Record, Store, Version};
use crate::name::LockName;
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
    keys_are_data [Store] caught by [RecordsMixUpKeys];
    bad_keys_are_errors [Store] caught by [RecordsAppear];
    a_random_sequence_ends_like_its_model [Store] caught by [RecordsIgnoreTokens, RecordsIgnoreVersions];
    the_highest_of_many_at_once_wins [Store] caught by [RecordsIgnoreTokens];
    sixteen_who_count_lose_nothing [Store] caught by [RecordsIgnoreVersions];
    an_update_that_never_succeeds_says_how_often_it_tried [Store] caught by [RecordsIgnoreVersions];
    a_killed_writer_leaves_it_sound [Store, Processes] caught by [RecordsVanish];
    a_sleeper_is_refused_and_would_have_overwritten [Store, Processes] caught by [RecordsIgnoreTokens];
}

async fn store(ground: &Ground) -> Store {
    ground
        .locks()
        .await
        .store()
        .expect("it says that it has one")
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn pass(number: u64, lock: &str) -> Pass {
    Pass {
        token: token(number),
        lock: Some(LockName::new(lock).unwrap()),
    }
}

async fn there(store: &Store, key: &str) -> Record {
    store.read(key).await.unwrap().expect("a record")
}

async fn fenced(store: &Store, key: &str, value: &str, number: u64) -> Fenced {
    store.write_fenced(key, value, token(number)).await.unwrap()
}

fn written(fenced: Fenced) -> Version {
    match fenced {
        Fenced::Written { version } => version,
        Fenced::Refused { highest } => panic!("refused: {highest} has written"),
    }
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

async fn keys_are_data(ground: Ground) {
    let store = store(&ground).await;
    let odd = [
        "a",
        "A",
        "a/b",
        "a/b/",
        "/a",
        "a//b",
        "..",
        "../a",
        ".",
        ".a",
        "a b",
        " a",
        "a ",
        "a*",
        "a%2Fb",
        "%61",
        "a'b",
        "a\"b",
        "a\\b",
        "{a}",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{1f512}",
        "a;b",
        "-a",
        "a?b=c",
        "a\u{200b}b",
    ];
    let longest = "k".repeat(255 - ground.name("").len());
    let keys: Vec<_> = odd
        .into_iter()
        .chain([longest.as_str()])
        .map(|key| ground.name(key))
        .collect();
    for (nth, key) in keys.iter().enumerate() {
        assert_eq!(
            store.read(key).await.unwrap(),
            None,
            "{key:?} was there before"
        );
        written(fenced(&store, key, key, nth as u64).await);
    }
    for (nth, key) in keys.iter().enumerate() {
        let record = there(&store, key).await;
        assert_eq!(
            (record.value, record.token.get()),
            (key.clone().into_bytes(), nth as u64)
        );
    }
}

async fn bad_keys_are_errors(ground: Ground) {
    let store = store(&ground).await;
    for bad in ["", "a\0b", "a\nb", &"x".repeat(256)] {
        let error = store.read(bad).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(store.write_fenced(bad, "v", token(1)).await.is_err());
        assert!(store.write_if(bad, "v", None).await.is_err());
    }
    assert_eq!(store.read(ground.name("x")).await.unwrap(), None);
}

async fn a_random_sequence_ends_like_its_model(ground: Ground) {
    let stores = [store(&ground).await, store(&ground).await];
    let key = ground.name("x");
    let mut model: Option<(Vec<u8>, Version, u64)> = None;
    for step in 0..150 {
        let store = &stores[fastrand::usize(..2)];
        let value = format!("value {step}").into_bytes();
        let (version, highest) = match &model {
            Some((_, version, highest)) => (Some(*version), *highest),
            None => (None, 0),
        };
        if fastrand::bool() {
            let number = (highest + 2).saturating_sub(fastrand::u64(..5));
            match store
                .write_fenced(&key, &value, token(number))
                .await
                .unwrap()
            {
                Fenced::Written { version } => {
                    assert!(number >= highest, "{number} has won over {highest}");
                    model = Some((value, version, number));
                }
                Fenced::Refused { highest: told } => {
                    assert!(number < highest && told.get() == highest);
                }
            }
        } else {
            let lag = fastrand::u64(..3);
            let expected = version.map(|version| Version::new(version.get().saturating_sub(lag)));
            match store.write_if(&key, &value, expected).await.unwrap() {
                Checked::Written { version: new } => {
                    assert_eq!(expected, version, "an old version was written over");
                    model = Some((value, new, highest));
                }
                Checked::Changed { version: told } => {
                    assert!(expected != version && told == version);
                }
            }
        }
        let read = stores[step % 2].read(&key).await.unwrap();
        let read = read.map(|record| (record.value, record.version, record.token.get()));
        assert_eq!(read, model, "after step {step}");
    }
}

async fn the_highest_of_many_at_once_wins(ground: Ground) {
    let key = ground.name("x");
    let mut writers = Vec::new();
    for _ in 0..4 {
        let (store, key) = (store(&ground).await, key.clone());
        writers.push(async move {
            for _ in 0..25 {
                let number = fastrand::u64(1..1000);
                let before = store
                    .read(&key)
                    .await
                    .unwrap()
                    .map_or(0, |record| record.token.get());
                match fenced(&store, &key, &number.to_string(), number).await {
                    Fenced::Written { .. } => {
                        assert!(number >= before, "{number} has won over {before}")
                    }
                    Fenced::Refused { highest } => assert!(highest.get() > number),
                }
                let after = there(&store, &key).await;
                assert!(after.token.get() >= before.max(number.min(after.token.get())));
                assert_eq!(after.value, after.token.to_string().into_bytes());
            }
        });
    }
    futures_util::future::join_all(writers).await;
}

/// What each of sixteen adds, and how often.
const COUNTERS: u64 = 16;
const ROUNDS: u64 = 8;

async fn sixteen_who_count_lose_nothing(ground: Ground) {
    let key: Arc<str> = ground.name("counter").into();
    let mut counters = Vec::new();
    for _ in 0..COUNTERS {
        let (store, key) = (store(&ground).await, Arc::clone(&key));
        counters.push(async move {
            let mut tries = 0;
            for _ in 0..ROUNDS {
                let add = |old: Option<&[u8]>| {
                    let old = old.map_or("0", |old| std::str::from_utf8(old).unwrap());
                    (old.parse::<u64>().unwrap() + 1).to_string()
                };
                tries += u64::from(store.update_within(LONG, &*key, add).await.unwrap().tries);
            }
            tries
        });
    }
    let tries: u64 = futures_util::future::join_all(counters)
        .await
        .into_iter()
        .sum();
    let sum = there(&store(&ground).await, &key).await.value;
    assert_eq!(sum, (COUNTERS * ROUNDS).to_string().into_bytes());
    println!("{} updates took {tries} tries", COUNTERS * ROUNDS);
}

async fn an_update_that_never_succeeds_says_how_often_it_tried(ground: Ground) {
    let (ours, theirs) = (store(&ground).await, store(&ground).await);
    let key = ground.name("x");
    let runtime = tokio::runtime::Handle::current();
    // Each time, someone else is quicker.
    let rival = |_: Option<&[u8]>| {
        let (theirs, key) = (theirs.clone(), key.clone());
        let work = async move { written(fenced(&theirs, &key, "theirs", 1).await) };
        std::thread::scope(|scope| {
            scope.spawn(|| runtime.block_on(work)).join().unwrap();
        });
        "ours"
    };
    let error = ours.update_within(ms(300), &key, rival).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("tries"), "{error}");
    assert_eq!(there(&ours, &key).await.value, b"theirs");
}

async fn a_killed_writer_leaves_it_sound(ground: Ground) {
    let store = store(&ground).await;
    let key = ground.name("x");
    let mut highest = 0;
    for _ in 0..6 {
        let task = Task::WriteOn {
            key: key.clone(),
            from: highest + 1,
        };
        let mut child = ground.child(task).await;
        let mut told = 0;
        for _ in 0..fastrand::u64(1..20) {
            match child.report().await {
                Report::Wrote { token } => told = token,
                other => panic!("it should write: {other:?}"),
            }
        }
        child.kill().await;
        let record = there(&store, &key).await;
        assert!(
            record.token.get() >= told,
            "what was said to be written is gone"
        );
        assert!(record.token.get() > highest);
        assert_eq!(record.value, record.token.to_string().into_bytes());
        highest = record.token.get();
    }
}

/// The famous story: A holds the lock and is stopped past its TTL; B gets the lock and writes; A wakes and writes.
async fn a_sleeper_is_refused_and_would_have_overwritten(ground: Ground) {
    let locks = ground.locks().await;
    let store = locks.store().unwrap();
    for fenced in [true, false] {
        let (name, key) = (
            ground.name(&format!("lock {fenced}")),
            ground.name(&format!("key {fenced}")),
        );
        let task = Task::WriteAfterSleep {
            name: name.clone(),
            ttl: ms(1000),
            key: key.clone(),
            fenced,
        };
        let mut sleeper = ground.child(task).await;
        let (theirs, _) = sleeper.held().await;
        sleeper.stop();
        let next = locks.lock(&name).ttl(LONG).wait_forever().acquire();
        let next = ground
            .soon("the sleeper loses the lock", next)
            .await
            .unwrap();
        assert!(next.token().get() > theirs);
        written(
            store
                .write_fenced(&key, "by the second", &next)
                .await
                .unwrap(),
        );
        pause(1100).await;
        sleeper.go_on();
        let report = sleeper.report().await;
        let left = there(&store, &key).await.value;
        if fenced {
            let highest = next.token().get();
            assert_eq!(report, Report::Refused { highest });
            assert_eq!(left, b"by the second", "nothing is lost");
        } else {
            // Without the token nothing stops it: this is what the fence is for.
            assert_eq!(report, Report::Wrote { token: theirs });
            assert_eq!(left, b"by the sleeper");
        }
        next.release().await.unwrap();
    }
}
