//! Slots that move from one node to another while locks are held and waited for.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Instant;

use leasehold::{ErrorKind, Locks};

use super::common::{X, elsewhere, ms, on, start};
use crate::support::crowd::{Crowd, a_turn, queue_of};
use crate::support::failover::{LONG, acquired, blocking, until_waiting};
use crate::support::redis_cluster::RedisCluster;

#[tokio::test(flavor = "multi_thread")]
async fn slot_moved_under_load_breaks_no_promise() {
    let _turn = a_turn().await;
    let cluster = start().await;
    let crowd = Crowd::start(&cluster.url(), ms(2000)).await;
    for _ in 0..6 {
        crowd.goes_on(50, LONG).await;
        on(&cluster, |cluster| {
            let slot = cluster.slot(X);
            cluster.move_slot(slot, elsewhere(cluster, slot));
        })
        .await;
    }
    crowd.goes_on(100, LONG).await;
    crowd.ends_well("cluster: slot moved", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_added_under_load_breaks_no_promise() {
    let _turn = a_turn().await;
    let mut cluster = blocking(RedisCluster::start).await;
    let crowd = Crowd::start(&cluster.url(), ms(2000)).await;
    crowd.goes_on(50, LONG).await;
    let cluster = blocking(move || {
        let new = cluster.add_node();
        for key in [X, "leasehold:y"] {
            cluster.move_slot(cluster.slot(key), new);
        }
        cluster
    })
    .await;
    crowd.goes_on(200, LONG).await;
    let new = cluster.nodes.last().unwrap();
    assert!(new.calls("evalsha") > 0, "the locks are there now");
    crowd.ends_well("cluster: node added", 1).await;
}

/// Its own key has moved, and the others of its slot have not.
#[tokio::test(flavor = "multi_thread")]
async fn lease_is_renewed_while_its_slot_moves() {
    let cluster = start().await;
    let locks = Locks::connect(cluster.url_with("?timeout=2s"))
        .await
        .unwrap();
    let held = acquired(&locks, "x").await;
    let (slot, to) = on(&cluster, |cluster| {
        let slot = cluster.slot(X);
        let to = elsewhere(cluster, slot);
        cluster.begin_move(slot, to);
        (slot, to)
    })
    .await;
    held.renew().await.unwrap();
    on(
        &cluster,
        move |cluster| while cluster.move_keys(slot, to, 10) > 0 {},
    )
    .await;
    held.renew().await.unwrap();
    // Whoever wants it has to wait for the rest.
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.is_busy() && error.advice().is_some(), "{error}");
    assert!(error.to_string().contains(&slot.to_string()), "{error}");
    let next = tokio::spawn(locks.lock("x").wait(LONG).acquire());
    on(&cluster, move |cluster| cluster.finish_move(slot, to)).await;
    held.renew().await.unwrap();
    until_waiting(&locks, "x", 1).await;
    let token = held.token();
    held.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_keep_their_turns_when_their_slot_moves() {
    let cluster = start().await;
    let holder = Locks::connect(cluster.url()).await.unwrap();
    let held = acquired(&holder, "x").await;
    let (order, mut turns) = tokio::sync::mpsc::unbounded_channel();
    let mut waiting = tokio::task::JoinSet::new();
    for nth in 0..3 {
        // Each a process of its own, as far as the servers can tell.
        let (locks, order) = (Locks::connect(cluster.url()).await.unwrap(), order.clone());
        waiting.spawn(async move {
            let lease = acquired(&locks, "x").await;
            order.send(nth).unwrap();
            lease.release().await.unwrap();
        });
        until_waiting(&holder, "x", nth + 1).await;
    }
    on(&cluster, |cluster| {
        let slot = cluster.slot(X);
        cluster.move_slot(slot, elsewhere(cluster, slot));
    })
    .await;
    let released = Instant::now();
    held.release().await.unwrap();
    for nth in 0..3 {
        assert_eq!(turns.recv().await, Some(nth));
    }
    waiting.join_all().await;
    // Nobody waited for the end of a TTL.
    assert!(released.elapsed() < LONG / 2, "{:?}", released.elapsed());
}

/// A node that nobody knew of when they began to wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_hears_from_a_node_that_is_new() {
    let mut cluster = blocking(RedisCluster::start).await;
    let holder = Locks::connect(cluster.url()).await.unwrap();
    let held = acquired(&holder, "x").await;
    let waiter = Locks::connect(cluster.url()).await.unwrap();
    let waiting = tokio::spawn(async move { acquired(&waiter, "x").await });
    until_waiting(&holder, "x", 1).await;
    let _cluster = blocking(move || {
        let new = cluster.add_node();
        cluster.move_slot(cluster.slot(X), new);
        cluster
    })
    .await;
    let released = Instant::now();
    held.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < LONG / 2, "{:?}", released.elapsed());
}

/// A message is sent to one node's subscribers, not to those of each.
#[tokio::test(flavor = "multi_thread")]
async fn hand_over_takes_three_calls_at_most() {
    let cluster = start().await;
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let held = acquired(&locks, "x").await;
    let calls = || {
        let nodes = cluster.nodes.iter();
        nodes.map(|node| node.calls("evalsha")).sum::<u64>()
    };
    let waiters = 50;
    let queue = queue_of(&locks, waiters).await;
    let before = calls();
    held.release().await.unwrap();
    queue.join_all().await;
    let each = (calls() - before) as f64 / waiters as f64;
    println!("cluster: {each:.2} calls a hand-over");
    assert!(each <= 3.0, "{each}");
}

/// The new node takes the waiter for dead. Its process learns of the move from an answer to someone else.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_a_new_node_passed_over_looks_again() {
    let mut cluster = blocking(RedisCluster::start).await;
    let holder = Locks::connect(cluster.url()).await.unwrap();
    let held = acquired(&holder, "x").await;
    let waiter = Locks::connect(cluster.url()).await.unwrap();
    let other = waiter.clone();
    let waiting = tokio::spawn(async move { acquired(&waiter, "x").await });
    until_waiting(&holder, "x", 1).await;
    let _cluster = blocking(move || {
        let (new, slot) = (cluster.add_node(), cluster.slot(X));
        cluster.begin_move(slot, new);
        cluster.finish_move(slot, new);
        cluster
    })
    .await;
    held.release().await.unwrap();
    other.inspect("x").await.unwrap();
    let released = Instant::now();
    waiting.await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < LONG / 2, "{:?}", released.elapsed());
}
