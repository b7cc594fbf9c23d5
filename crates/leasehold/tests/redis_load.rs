//! Many at once on Redis and Redlock: what it costs, and that nothing is left behind.
#![cfg(all(feature = "redis", unix))]
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use leasehold::Locks;
use support::deployment::Deployment;
use support::redis_server::RedisServer;
use tokio::task::JoinSet;

/// How often the server has carried out a command.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command("INFO commandstats");
    let line = format!("cmdstat_{command}:calls=");
    let Some((_, rest)) = stats.split_once(&line) else {
        return 0;
    };
    rest.split(',').next().unwrap().parse().unwrap()
}

/// Every waiter gets the lock once, from whoever had it before; returns what a hand-over has cost.
async fn hand_over_among(waiters: u64) -> (f64, f64) {
    let server = RedisServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let mut queue = JoinSet::new();
    for _ in 0..waiters {
        let request = locks.lock("x").wait_forever();
        queue.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    while (locks.show("x").await.unwrap().waiters.len() as u64) < waiters {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (scripts, messages) = (calls(&server, "evalsha"), calls(&server, "publish"));
    first.release().await.unwrap();
    queue.join_all().await;
    let each = |now: u64, before: u64| (now - before) as f64 / waiters as f64;
    (
        each(calls(&server, "evalsha"), scripts),
        each(calls(&server, "publish"), messages),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_the_same_with_a_thousand_waiters() {
    for waiters in [10, 1_000] {
        let (scripts, messages) = hand_over_among(waiters).await;
        println!("{waiters} waiters: {scripts:.2} scripts and {messages:.2} messages a hand-over");
        // The release, and the renewal that confirms; the message to the next, and one to the one behind it.
        assert!(scripts <= 2.5, "{scripts} scripts");
        assert!(messages <= 2.5, "{messages} messages");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_leave_nothing_behind_on_any_node() {
    let deployment = Deployment::start(5);
    deployment.has_stood_a_while();
    let locks = Locks::connect(deployment.url()).await.unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..50 {
                let lock = locks.lock(format!("task/{task}"));
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    locks.settle().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for node in &deployment.nodes {
        // The register alone.
        assert_eq!(node.command("DBSIZE"), ":1\r\n");
    }
}
