//! Where a claim on ZooKeeper does not look at the line, it knows what it would see.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::{Lease, Locks};
use support::zookeeper_cluster::ZooKeeperCluster;
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};

async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !check().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn sent(locks: &Locks) -> u64 {
    locks.engine().commands_sent().unwrap()
}

/// A session that asks for nothing by itself for as long as these tests take.
async fn connect(cluster: &ZooKeeperCluster) -> Locks {
    let url = format!("{}?session_timeout=10m", cluster.url());
    Locks::connect(url).await.unwrap()
}

fn quiet_cluster() -> ZooKeeperCluster {
    ZooKeeperCluster::with(1, "maxSessionTimeout=600000")
}

async fn cycles(locks: &Locks, count: usize) {
    for _ in 0..count {
        let lease = locks.lock("x").acquire().await.unwrap();
        lease.release().await.unwrap();
    }
}

/// Waits in line, with a watch.
async fn waiting(locks: &Locks) -> JoinHandle<Lease> {
    let before = sent(locks);
    let request = locks.lock("x").wait_forever();
    let waiter = tokio::spawn(async move { request.acquire().await.unwrap() });
    until("it watches", async || sent(locks) >= before + 3).await;
    waiter
}

/// One holds the lock and two wait, each in a session of its own.
struct Line {
    first: Lease,
    second: JoinHandle<Lease>,
    third: JoinHandle<Lease>,
    /// The handle of the third.
    last: Locks,
}

async fn three_in_line(cluster: &ZooKeeperCluster) -> Line {
    let holder = connect(cluster).await;
    let last = connect(cluster).await;
    Line {
        first: holder.lock("x").acquire().await.unwrap(),
        second: waiting(&connect(cluster).await).await,
        third: waiting(&last).await,
        last,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_known_to_be_empty_is_not_looked_at() {
    let cluster = quiet_cluster();
    let locks = connect(&cluster).await;
    cycles(&locks, 3).await;
    let before = sent(&locks);
    cycles(&locks, 10).await;
    assert_eq!(sent(&locks) - before, 20);
    // Who has been in between is seen.
    let other = connect(&cluster).await;
    let held = other.lock("x").acquire().await.unwrap();
    let waiter = waiting(&locks).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

/// Its numbers begin at nought, and come to where ours had ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_made_anew_is_not_taken_for_the_old_one() {
    let cluster = quiet_cluster();
    for uses in 1..6 {
        let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
        cycles(&locks, uses).await;
        let client = Client::connect(&cluster.hosts()).await.unwrap();
        client.delete("/leasehold/x", None).await.unwrap();
        cycles(&other, uses - 1).await;
        let held = other.lock("x").acquire().await.unwrap();
        let waiter = waiting(&locks).await;
        let shown = locks.show("x").await.unwrap();
        assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
        assert!(!waiter.is_finished(), "two are in after {uses} uses");
        held.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        client.delete("/leasehold/x", None).await.unwrap();
    }
}

/// Whoever held the lock says so when it goes, and the next one asks for nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_handed_over_without_another_look() {
    let cluster = quiet_cluster();
    let Line {
        first,
        second,
        third,
        last,
    } = three_in_line(&cluster).await;
    let before = sent(&last);
    first.release().await.unwrap();
    second.await.unwrap().release().await.unwrap();
    let third = third.await.unwrap();
    assert_eq!(sent(&last), before);
    third.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_in_the_middle_hands_nothing_over() {
    let cluster = quiet_cluster();
    let Line {
        first,
        second,
        third,
        last,
    } = three_in_line(&cluster).await;
    let before = sent(&last);
    second.abort();
    // It looks, and watches the first.
    until("it has looked", async || sent(&last) >= before + 2).await;
    assert!(first.is_valid() && !third.is_finished());
    first.release().await.unwrap();
    third.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_program_writes_into_its_node_hands_nothing_over() {
    let cluster = quiet_cluster();
    let locks = connect(&cluster).await;
    cycles(&locks, 1).await;
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = "/leasehold/x/0a1b__lock__";
    let (_, sequence) = client.create(prefix, b"theirs", &options).await.unwrap();
    let theirs = format!("{prefix}{sequence}");
    let waiter = waiting(&locks).await;
    let before = sent(&locks);
    client.set_data(&theirs, b"more", None).await.unwrap();
    until("it watches again", async || sent(&locks) > before).await;
    let shown = locks.show("x").await.unwrap();
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1));
    assert!(!waiter.is_finished());
    client.delete(&theirs, None).await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}
