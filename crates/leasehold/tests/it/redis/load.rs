//! Many at once on Redis and Redlock: what it costs, and that nothing is left behind.
#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used)]

use super::common::until;
use crate::support::crowd::{many_at_once, queue_of};
use crate::support::deployment::Deployment;
use crate::support::redis_server::RedisServer;
use leasehold::Locks;

/// Every waiter gets the lock once, from whoever had it before; returns what a hand-over has cost.
async fn hand_over_among(waiters: u64) -> (f64, f64) {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let queue = queue_of(&locks, waiters).await;
    let (scripts, messages) = (server.calls("evalsha"), server.calls("publish"));
    first.release().await.unwrap();
    queue.join_all().await;
    let each = |now: u64, before: u64| (now - before) as f64 / waiters as f64;
    (
        each(server.calls("evalsha"), scripts),
        each(server.calls("publish"), messages),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_the_same_with_a_thousand_waiters() {
    for waiters in [10, 1_000] {
        let (scripts, messages) = hand_over_among(waiters).await;
        println!("{waiters} waiters: {scripts:.2} scripts and {messages:.2} messages a hand-over");
        // The release, and the attempt that takes the offer; the message to the next, one to the one behind it, and one to the last.
        assert!(scripts <= 2.5, "{scripts} scripts");
        assert!(messages <= 3.5, "{messages} messages");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_leave_nothing_behind_on_any_node() {
    let deployment = Deployment::start(5);
    deployment.has_stood_a_while();
    let locks = Locks::connect(deployment.url()).await.unwrap();
    many_at_once(&locks, 50).await;
    for node in &deployment.nodes {
        until("the register alone is left", || {
            node.command("DBSIZE") == ":1\r\n"
        })
        .await;
    }
}
