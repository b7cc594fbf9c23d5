//! Keys are data, and those of users, fences and recipes never meet.

use super::super::Ground;
use super::super::case::theme;
use super::super::ground::LONG;
use super::{fenced, pass, store, there, token, written};
use crate::engine::Released;
use crate::error::ErrorKind;
use crate::guard::{Admission, Fencing, StoredFence};
use crate::name::LockName;

theme! { store:
    keys_are_data [Store] caught by [RecordsMixUpKeys];
    bad_keys_are_errors [Store] caught by [RecordsAppear];
    fences_and_users_records_never_meet [Store] caught by [RecordsAreReachable];
    recipes_and_users_records_never_meet [Store] caught by [RecordsAreReachable];
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

async fn fences_and_users_records_never_meet(ground: Ground) {
    let store = store(&ground).await;
    let fence = StoredFence::new(store.clone());
    let longest = "k".repeat(255 - ground.name("").len());
    for rest in ["orders/42", &longest] {
        let lock = LockName::new(ground.name(rest)).unwrap();
        let name = lock.as_str();
        written(
            store
                .write_fenced(name, "paid", pass(5, name))
                .await
                .unwrap(),
        );
        let before = there(&store, name).await;
        let admitted = fence.check(&lock, token(9)).await.unwrap();
        assert_eq!(admitted, Admission::Admitted);
        assert_eq!(there(&store, name).await, before, "the fence wrote over it");
        let highest = token(9);
        let refused = fence.check(&lock, token(8)).await.unwrap();
        assert_eq!(refused, Admission::Refused { highest });
        // The record has a token of its own.
        written(store.delete(name, token(6)).await.unwrap());
        let refused = fence.check(&lock, token(8)).await.unwrap();
        assert_eq!(refused, Admission::Refused { highest });
    }
}

/// What recipes keep was once found under the lock's name with a word behind it.
async fn recipes_and_users_records_never_meet(ground: Ground) {
    let locks = ground.locks().await;
    let store = locks.store().unwrap();
    let name = ground.name("job");
    let words = ["once", "ids", "latch", "barrier", "ask", "fence"];
    let keys: Vec<_> = words.iter().map(|word| format!("{name}#{word}")).collect();
    let mut users = Vec::new();
    for key in &keys {
        written(fenced(&store, key, "the user's", 5).await);
        users.push(there(&store, key).await);
        // Nor can a user name what recipes keep.
        let beside = key.replace('#', "\u{1f}");
        let error = store.read(&beside).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let error = locks.inspect(&beside).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
    }

    locks.id_pool(&name).unwrap().take(3).await.unwrap();
    let latch = locks.latch(&name, 1).unwrap();
    latch.arrive("one").await.unwrap();
    latch.opened(LONG).await.unwrap();
    if locks.capabilities().shared {
        locks.barrier(&name, 1).unwrap().pass(LONG).await.unwrap();
    }
    let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
    locks.request_revoke(&name, "a deploy").await.unwrap();
    assert_eq!(lease.revoke_requested().await.unwrap().reason, "a deploy");
    assert_eq!(lease.release().await.unwrap(), Released::Yes);
    let once = locks.lock(&name).once_per(LONG);
    let run = once.run(|_| async { Ok::<_, ()>(()) }).await.unwrap();
    assert_eq!(run, Some(Ok(())));
    locks.forget_run(&name).await.unwrap();

    for (key, before) in keys.iter().zip(users) {
        assert_eq!(there(&store, key).await, before, "{key}");
    }
}
