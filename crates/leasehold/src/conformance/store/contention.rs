//! Many writers at once, and writers that are killed or stopped.

use super::super::Ground;
use super::super::case::theme;
use super::super::child::{Report, Task};
use super::super::ground::{LONG, ms, pause};
use super::{fenced, store, there, token, written};
use crate::error::ErrorKind;
use crate::guard::{Checked, Fenced, Version};
use std::sync::Arc;

theme! { store:
    a_random_sequence_ends_like_its_model [Store] caught by [RecordsIgnoreTokens, RecordsIgnoreVersions, DeletionsForgetTokens];
    the_highest_of_many_at_once_wins [Store] caught by [RecordsIgnoreTokens];
    sixteen_who_count_lose_nothing [Store] caught by [RecordsIgnoreVersions];
    an_update_that_never_succeeds_says_how_often_it_tried [Store] caught by [RecordsIgnoreVersions];
    a_killed_writer_leaves_it_sound [Store, Processes] caught by [RecordsVanish];
    a_sleeper_is_refused_and_would_have_overwritten [Store, Processes] caught by [RecordsIgnoreTokens];
}

async fn a_random_sequence_ends_like_its_model(ground: Ground) {
    let stores = [store(&ground).await, store(&ground).await];
    let key = ground.name("x");
    // A deleted record has no value.
    let mut model: Option<(Option<Vec<u8>>, Version, u64)> = None;
    for step in 0..150 {
        let store = &stores[fastrand::usize(..2)];
        let value = (fastrand::u8(..4) > 0).then(|| format!("value {step}").into_bytes());
        let (version, highest) = match &model {
            Some((value, version, highest)) => (value.as_ref().map(|_| *version), *highest),
            None => (None, 0),
        };
        if fastrand::bool() {
            let number = (highest + 2).saturating_sub(fastrand::u64(..5));
            let tried = match &value {
                Some(value) => store.write_fenced(&key, value, token(number)).await,
                None => store.delete(&key, token(number)).await,
            };
            match tried.unwrap() {
                Fenced::Written { version } => {
                    assert!(number >= highest, "{number} has won over {highest}");
                    model = Some((value, version, number));
                }
                Fenced::Refused { highest: returned } => {
                    assert!(number < highest && returned.get() == highest);
                }
            }
        } else {
            let lag = fastrand::u64(..3);
            let expected = version.map(|version| Version::new(version.get().saturating_sub(lag)));
            let tried = match (&value, expected) {
                (Some(value), expected) => store.write_if(&key, value, expected).await,
                (None, Some(expected)) => store.delete_if(&key, expected).await,
                (None, None) => continue,
            };
            match tried.unwrap() {
                Checked::Written { version: new } => {
                    assert_eq!(expected, version, "an old version was written over");
                    model = Some((value, new, highest));
                }
                Checked::Changed { version: returned } => {
                    assert!(expected != version && returned == version);
                }
            }
        }
        let read = stores[step % 2].read(&key).await.unwrap();
        let read = read.map(|record| (record.value, record.version, record.token.get()));
        let expected = model
            .clone()
            .and_then(|(value, version, highest)| value.map(|value| (value, version, highest)));
        assert_eq!(read, expected, "after step {step}");
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
        let mut returned = 0;
        for _ in 0..fastrand::u64(1..20) {
            match child.report().await {
                Report::Wrote { token } => returned = token,
                other => panic!("it should write: {other:?}"),
            }
        }
        child.kill().await;
        let record = there(&store, &key).await;
        assert!(
            record.token.get() >= returned,
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
