//! What becomes of locks when handles, processes and sessions end.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, Locks, LossReason};
use support::proxy::{Link, Proxy};
use support::zookeeper_cluster::ZooKeeperCluster;

async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !check().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_handle_closes_its_session_once_nothing_is_left_to_its_ttl() {
    let cluster = ZooKeeperCluster::start(1);
    let url = format!("{}?session_timeout=2s", cluster.url());
    let sessions = || cluster.nodes[0].count("global_sessions");
    let locks = Locks::connect(&url).await.unwrap();
    let other = Locks::connect(&url).await.unwrap();
    locks
        .lock("a")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let detached = locks.lock("b").ttl(Duration::from_secs(4)).acquire().await;
    let began = Instant::now();
    detached.unwrap().detach();
    drop(locks);
    let next = other.lock("b").wait_forever().acquire().await.unwrap();
    assert!(
        began.elapsed() >= Duration::from_millis(3_800),
        "freed early"
    );
    until("the session is closed", async || sessions() == 1.0).await;
    next.release().await.unwrap();
    drop(other);
    until("the last session is closed", async || sessions() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_handle_cannot_renew_but_can_release() {
    let cluster = ZooKeeperCluster::start(1);
    let (locks, other) = (
        Locks::connect(cluster.url()).await.unwrap(),
        Locks::connect(cluster.url()).await.unwrap(),
    );
    let id = locks.lock("a").acquire().await.unwrap().detach();
    let resumed = other.resume("a", id).unwrap();
    let refused = resumed.into_lease(Duration::from_secs(30)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.advice().unwrap().contains("leasehold run"));
    other.resume("a", id).unwrap().release().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_session_has_ended_the_next_takes_over() {
    let cluster = ZooKeeperCluster::start(1);
    let url = format!("{}?session_timeout=2s&timeout=3s", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock("a").wait_forever().acquire());
    until("it waits", async || {
        locks.show("a").await.unwrap().waiters.len() == 1
    })
    .await;
    // For longer than the session.
    cluster.nodes[0].stop();
    let lost = tokio::time::timeout(Duration::from_secs(10), lease.lost()).await;
    assert!(matches!(
        lost.unwrap(),
        LossReason::Expired { .. } | LossReason::SessionEnded
    ));
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.nodes[0].go_on();
    let next = tokio::time::timeout(Duration::from_secs(20), waiter).await;
    let next = next.unwrap().unwrap().unwrap();
    assert!(next.token() > lease.token());
    next.release().await.unwrap();
}

/// The release is swallowed, and given up, before the connection is known to be lost; the session lives on.
async fn a_place_is_given_up_although_the_release_is_lost(cancels: bool) {
    let ms = Duration::from_millis;
    let cluster = ZooKeeperCluster::with(1, "maxSessionTimeout=20000");
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let through = format!(
        "zookeeper://127.0.0.1:{}?session_timeout=6s&timeout=10s",
        proxy.port
    );
    let gone = Locks::connect(&through).await.unwrap();
    let other = Locks::connect(cluster.url()).await.unwrap();
    let held = other.lock("a").acquire().await.unwrap();
    let asks = gone.lock("a").ttl(ms(300)).wait(ms(500));
    let asks = tokio::spawn(asks.acquire());
    until("it waits", async || {
        other.show("a").await.unwrap().waiters.len() == 1
    })
    .await;
    proxy.set(Link::Swallow);
    if cancels {
        asks.abort();
    }
    tokio::time::sleep(ms(2_000)).await;
    proxy.set(Link::Open);
    // Its session is as good as before.
    until("it is connected again", async || {
        gone.lock("b").wait(ms(5_000)).acquire().await.is_ok()
    })
    .await;
    assert_eq!(cluster.nodes[0].count("stale_sessions_expired"), 0.0);
    held.release().await.unwrap();
    until("nobody waits any more", async || {
        other.show("a").await.unwrap().waiters.is_empty()
            && other.lock("a").try_acquire().await.unwrap().is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gave_up_while_cut_off_leaves_no_place_behind() {
    a_place_is_given_up_although_the_release_is_lost(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_cancelled_while_cut_off_leaves_no_place_behind() {
    a_place_is_given_up_although_the_release_is_lost(true).await;
}

/// As after a stop: the connection breaks under a request, and the session goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_fails_no_record() {
    let cluster = ZooKeeperCluster::start(1);
    let proxy = Proxy::to(cluster.nodes[0].port).await;
    let url = format!("zookeeper://127.0.0.1:{}?session_timeout=2s", proxy.port);
    let locks = Locks::connect(&url).await.unwrap();
    let store = locks.store().unwrap();
    store.write_if("k", "first", None).await.unwrap();
    let version = store.read("k").await.unwrap().map(|record| record.version);
    let asked = || locks.engine().commands_sent().unwrap();
    for write in [false, true] {
        proxy.set(Link::Hang);
        let before = asked();
        let request = {
            let store = store.clone();
            tokio::spawn(async move {
                match write {
                    true => store.write_if("k", "second", version).await.map(drop),
                    false => store.read("k").await.map(drop),
                }
            })
        };
        until("it is on its way", async || asked() > before + 1).await;
        proxy.set(Link::Refuse);
        proxy.set(Link::Open);
        request.await.unwrap().unwrap();
    }
    let record = store.read("k").await.unwrap().unwrap();
    assert_eq!(record.value, b"second");
}
