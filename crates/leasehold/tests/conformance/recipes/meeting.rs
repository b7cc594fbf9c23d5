//! Barriers and latches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::ErrorKind;

use super::child::Victim;
use crate::target::Target;

const WAIT: Duration = Duration::from_secs(60);

pub(crate) async fn a_barrier_for_many_rounds(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.barrier("rounds", 4));
    if made.is_none() {
        return;
    }
    let arrived: Arc<AtomicU64> = Arc::default();
    let mut tasks = Vec::new();
    for nth in 0..4u64 {
        let (target, arrived) = (Arc::clone(&target), Arc::clone(&arrived));
        tasks.push(tokio::spawn(async move {
            let barrier = target.connect().await.barrier("rounds", 4).unwrap();
            for round in 0..5 {
                tokio::time::sleep(Duration::from_millis(nth * 7)).await;
                arrived.fetch_add(1, Ordering::SeqCst);
                assert_eq!(barrier.pass(WAIT).await.unwrap(), round);
                let there = arrived.load(Ordering::SeqCst);
                assert!(there >= 4 * (round + 1), "passed with {there} in {round}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

pub(crate) async fn a_latch_opens_once(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.latch("latch", 3));
    let Some(latch) = made else { return };
    assert_eq!(latch.missing().await.unwrap(), 3);
    assert_eq!(latch.arrive("a").await.unwrap(), 2);
    assert_eq!(latch.arrive("a").await.unwrap(), 2, "told twice");
    let late = latch.opened(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    let waiter = {
        let other = target.connect().await.latch("latch", 3).unwrap();
        tokio::spawn(async move { other.opened(WAIT).await })
    };
    let other = target.connect().await.latch("latch", 3).unwrap();
    let (b, c) = tokio::join!(latch.arrive("b"), other.arrive("c"));
    assert_eq!(b.unwrap() + c.unwrap(), 1);
    waiter.await.unwrap().unwrap();
    latch.opened(Duration::ZERO).await.unwrap();
    assert_eq!(latch.arrive("d").await.unwrap(), 0);
    assert_eq!(
        latch.arrive("e\nf").await.unwrap_err().kind(),
        ErrorKind::InvalidConfig
    );
}

pub(crate) async fn the_dead_do_not_count(target: Arc<Target>) {
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.barrier("dead", 2));
    let Some(barrier) = made else { return };
    let gone = barrier.pass(WAIT);
    assert!(
        tokio::time::timeout(Duration::from_millis(150), gone)
            .await
            .is_err()
    );
    locks.flush().await;
    let alone = barrier.pass(Duration::from_millis(150)).await.unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::TimedOut);
    assert_eq!(barrier.waiting().await.unwrap(), 0);
    let (one, two) = tokio::join!(barrier.pass(WAIT), barrier.pass(WAIT));
    assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
    assert_eq!(
        locks.barrier("dead", 0).unwrap_err().kind(),
        ErrorKind::InvalidConfig
    );
}

pub(crate) async fn a_killed_party_does_not_count(target: Arc<Target>) {
    let Some(url) = target.address() else { return };
    let locks = target.connect().await;
    let made = Target::with_store(&locks, locks.barrier("killed-party", 2));
    let Some(barrier) = made else { return };
    let victim = Victim::start(&url, "killed-party");
    while barrier.waiting().await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(victim);
    while barrier.waiting().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let alone = barrier.pass(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::TimedOut);
    let (one, two) = tokio::join!(barrier.pass(WAIT), barrier.pass(WAIT));
    assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
}
