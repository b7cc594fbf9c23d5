//! Several locks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{ErrorKind, Locks, Released};
use nix::sys::signal::Signal;

use super::child::{self, Victim};
use crate::target::Target;

/// Tasks that each want two or three of six locks, in any order: they must all get on, and never two into one.
pub(crate) async fn random_sets_make_progress(target: Arc<Target>) {
    let taken: Arc<[AtomicBool; 6]> = Arc::default();
    let mut tasks = Vec::new();
    for seed in 0..8 {
        let (target, taken) = (Arc::clone(&target), Arc::clone(&taken));
        tasks.push(tokio::spawn(async move {
            let locks = target.connect().await;
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..15 {
                let mut wanted: Vec<_> = (0..6).collect();
                random.shuffle(&mut wanted);
                wanted.truncate(random.usize(2..=3));
                let names = wanted.iter().map(|nth| format!("progress/{nth}"));
                let held = child::despite_losses(|| {
                    locks
                        .all(names.clone())
                        .wait(Duration::from_secs(60))
                        .acquire()
                });
                let held = held.await.unwrap();
                for nth in &wanted {
                    assert!(!taken[*nth].swap(true, Ordering::SeqCst), "two in one");
                }
                tokio::time::sleep(Duration::from_millis(random.u64(0..3))).await;
                for nth in &wanted {
                    taken[*nth].store(false, Ordering::SeqCst);
                }
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn nothing_is_held(locks: &Locks, prefix: &str) {
    locks.flush().await;
    assert_eq!(locks.list(prefix).await.unwrap(), []);
}

pub(crate) async fn none_is_left_behind(target: Arc<Target>) {
    let (locks, other) = (target.connect().await, target.connect().await);
    let names = ["left/c", "left/a", "left/b", "left/a"];
    let all = || locks.all(names);

    let held = all().acquire().await.unwrap();
    let order: Vec<_> = held.tokens().into_iter().map(|(name, _)| name).collect();
    let order: Vec<_> = order.iter().map(|name| name.as_str()).collect();
    assert_eq!(order, ["left/a", "left/b", "left/c"]);
    assert!(held.is_valid() && held.get("left/b").is_some());
    drop(held);
    nothing_is_held(&locks, "left/").await;

    let in_the_way = other.lock("left/c").acquire().await.unwrap();
    assert!(all().try_acquire().await.unwrap().is_none());
    let error = all().wait(Duration::from_millis(100)).acquire().await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.lock(), Some("left/c"));
    let cancelled = all().wait_forever().acquire();
    assert!(
        tokio::time::timeout(Duration::from_millis(100), cancelled)
            .await
            .is_err()
    );
    locks.flush().await;
    let left = locks.list("left/").await.unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(
        (left[0].name.as_str(), left[0].waiters.len()),
        ("left/c", 0)
    );
    in_the_way.release().await.unwrap();

    let bad = locks
        .all(["left/a", "left/\0"])
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(bad.kind(), ErrorKind::InvalidName);
    let none = locks.all([""; 0]).acquire().await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidConfig);
    nothing_is_held(&locks, "left/").await;
}

pub(crate) async fn lost_with_one(target: Arc<Target>) {
    let (locks, other) = (target.connect().await, target.connect().await);
    let held = locks.all(["lost/a", "lost/b"]);
    let held = held.ttl(Duration::from_secs(3)).acquire().await.unwrap();
    other.force_release("lost/b").await.unwrap();
    let (name, _) = held.lost().await;
    assert_eq!(name.as_str(), "lost/b");
    assert!(!held.is_valid());
    assert_eq!(held.release().await.unwrap(), Released::WasNotHeld);
    nothing_is_held(&locks, "lost/").await;
}

pub(crate) async fn circles_are_reported(target: Arc<Target>) {
    let locks = target.connect().await;
    let owners = ["ann", "bob", "cid"].map(|label| locks.reentrant(label).unwrap());
    let name = |nth: usize| format!("circle/{}", nth % 3);
    let mut held = Vec::new();
    for (nth, owner) in owners.iter().enumerate() {
        held.push(owner.lock(name(nth)).acquire().await.unwrap());
    }
    assert_eq!(locks.deadlocks("circle/").await.unwrap(), []);
    let waiting: Arc<AtomicUsize> = Arc::default();
    let mut tasks = Vec::new();
    for (nth, owner) in owners.iter().cloned().enumerate() {
        let waiting = Arc::clone(&waiting);
        tasks.push(tokio::spawn(async move {
            waiting.fetch_add(1, Ordering::SeqCst);
            let next = owner.lock(name(nth + 1)).wait_forever();
            next.acquire().await.unwrap().release().await.unwrap();
        }));
        if nth < 2 {
            assert_eq!(locks.deadlocks("circle/").await.unwrap(), []);
        }
    }
    let circle = loop {
        let found = locks.deadlocks("circle/").await.unwrap();
        if let Some(circle) = found.into_iter().next() {
            break circle;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let told: Vec<_> = circle
        .edges
        .iter()
        .map(|wait| (wait.who.label.as_str(), wait.lock.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("ann", "circle/1"),
            ("bob", "circle/2"),
            ("cid", "circle/0")
        ]
    );
    assert_eq!(circle.edges[0].held_by.label, "bob");
    assert_eq!(circle.edges[0].token, held[1].token());
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(locks.deadlocks("circle/").await.unwrap(), []);
}

/// Processes that hold some of the locks are killed and stopped; nobody is kept out for longer than their TTL.
pub(crate) async fn killed_at_random_leaves_no_half(target: Arc<Target>) {
    let Some(url) = target.address() else { return };
    let locks = target.connect().await;
    let (ttl, wait) = (Duration::from_secs(20), Duration::from_secs(60));
    let mut victims: Vec<_> = (0..3).map(|_| Victim::start(&url, "all")).collect();
    for round in 0..8 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(50..300))).await;
        let nth = round % victims.len();
        if round % 4 == 0 {
            // Past its TTL.
            victims[nth].signal(Signal::SIGSTOP);
            tokio::time::sleep(Duration::from_millis(1500)).await;
            victims[nth].signal(Signal::SIGCONT);
        } else {
            victims[nth] = Victim::start(&url, "all");
        }
        let taken = child::despite_losses(|| child::take_some(&locks, ttl));
        taken.await.unwrap();
    }
    drop(victims);
    let names = (0..5).map(|nth| format!("killed/{nth}"));
    let all = locks.all(names).wait(wait).acquire().await.unwrap();
    assert_eq!(all.release().await.unwrap(), Released::Yes);
    nothing_is_held(&locks, "killed/").await;
}
