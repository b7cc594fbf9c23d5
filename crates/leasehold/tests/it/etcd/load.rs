//! What many at once cost.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::crowd::{many_at_once, queue_of};
use crate::support::etcd_cluster::EtcdCluster;
use leasehold::Locks;

/// Every waiter gets the lock once, from whoever had it before; returns how many notifications a hand-over has cost.
async fn hand_over_among(waiters: u64) -> f64 {
    let cluster = EtcdCluster::start(1);
    // A thousand requests at once take a busy machine a while.
    let url = format!("{}?timeout=60s&attempt_timeout=30s", cluster.url());
    let locks = Locks::connect(url).await.unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let queue = queue_of(&locks, waiters).await;
    // All watches stand.
    while cluster.metric("etcd_debugging_mvcc_watcher_total") < waiters {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = cluster.metric("etcd_debugging_mvcc_events_total");
    let started = std::time::Instant::now();
    first.release().await.unwrap();
    queue.join_all().await;
    let took = started.elapsed();
    let events = cluster.metric("etcd_debugging_mvcc_events_total") - before;
    println!("{waiters} waiters: {events} notifications, {took:?}");
    events as f64 / waiters as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn one_notification_a_release_with_a_thousand_waiters() {
    for waiters in [10, 1_000] {
        let events = hand_over_among(waiters).await;
        assert!(events <= 1.05, "{events} notifications a release");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_leave_nothing_behind() {
    let cluster = EtcdCluster::start(3);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    many_at_once(&locks, 20).await;
    let keys = cluster.keys("leasehold/");
    assert!(
        keys.iter().all(|key| key.contains("session")),
        "{}",
        keys.len()
    );
}

/// A thousand locks of one process are under one lease, and are renewed with some ten requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_leases_are_kept_with_few_requests() {
    let cluster = EtcdCluster::start(1);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let mut leases = Vec::new();
    for nth in 0..1_000 {
        let lock = locks.lock(format!("x{nth}")).ttl(Duration::from_secs(10));
        leases.push(lock.acquire().await.unwrap());
    }
    let before = locks.engine().about().requests.unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let sent = locks.engine().about().requests.unwrap() - before;
    assert!(leases.iter().all(|lease| lease.is_valid()));
    println!("a thousand leases of 10 s were kept for 12 s with {sent} requests");
    assert!(sent < 400, "{sent} requests");
}
