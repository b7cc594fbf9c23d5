//! What many at once cost.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leasehold::Locks;
use support::etcd_cluster::EtcdCluster;
use tokio::task::JoinSet;

/// A counter of the server.
fn metric(cluster: &EtcdCluster, name: &str) -> u64 {
    let mut stream = TcpStream::connect(cluster.host(0)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let lines = answer.lines().filter(|line| line.starts_with(name));
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64;
    lines.map(value).sum()
}

/// Every waiter gets the lock once, from whoever had it before; returns how many notifications a hand-over has cost.
async fn hand_over_among(waiters: u64) -> f64 {
    let cluster = EtcdCluster::start(1);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let mut queue = JoinSet::new();
    for _ in 0..waiters {
        let request = locks.lock("x").wait_forever();
        queue.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    while (locks.show("x").await.unwrap().waiters.len() as u64) < waiters {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // All watches stand.
    while metric(&cluster, "etcd_debugging_mvcc_watcher_total") < waiters {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = metric(&cluster, "etcd_debugging_mvcc_events_total");
    let started = std::time::Instant::now();
    first.release().await.unwrap();
    queue.join_all().await;
    let took = started.elapsed();
    let events = metric(&cluster, "etcd_debugging_mvcc_events_total") - before;
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
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..20 {
                let lock = locks.lock(format!("task/{task}"));
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    locks.settle().await;
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
    let before = locks.engine().commands_sent().unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let sent = locks.engine().commands_sent().unwrap() - before;
    assert!(leases.iter().all(|lease| lease.is_valid()));
    println!("a thousand leases of 10 s were kept for 12 s with {sent} requests");
    assert!(sent < 400, "{sent} requests");
}
