//! Other people's clients of the same cluster, on the same lock, at the same time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Locks;

use super::common::start;
use crate::fleets::other::{NAME, OUR_TTL, Other, each_side_is_refused, nothing_is_lost};
use crate::fleets::script;
use crate::support::failover::until_waiting;
use crate::support::redis_cluster::RedisCluster;

const THEIR_TTL: Duration = Duration::from_secs(2);

async fn other(cluster: &Arc<RedisCluster>, kind: &str, ttl: Duration) -> Other {
    let mut program = match kind {
        "redis-py-cluster" => script::python("fleet.py"),
        _ => script::node("redlock", "fleet.mjs"),
    };
    let port = cluster.nodes[1].port.to_string();
    program.args([kind, &port, NAME, &ttl.as_secs().to_string()]);
    let mut other = Other::process(program);
    assert!(other.ask("ping").await);
    other
}

async fn share_a_lock(kind: &str) {
    let cluster = start().await;
    let locks = Locks::connect(cluster.url_with("?prefix=")).await.unwrap();
    each_side_is_refused(&locks, other(&cluster, kind, THEIR_TTL).await).await;
    let long = Duration::from_secs(20);
    let mut holder = other(&cluster, kind, long).await;
    assert!(holder.ask("try").await);
    let waiting = tokio::spawn(locks.lock(NAME).ttl(OUR_TTL).wait_forever().acquire());
    until_waiting(&locks, NAME, 1).await;
    assert!(holder.ask("release").await);
    let released = Instant::now();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(released.elapsed() < long / 4, "{:?}", released.elapsed());
    let others = [
        other(&cluster, kind, THEIR_TTL).await,
        other(&cluster, kind, THEIR_TTL).await,
    ];
    nothing_is_lost(kind, &locks, others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_on_a_cluster() {
    share_a_lock("redis-py-cluster").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_with_ioredis_on_a_cluster() {
    share_a_lock("redlock4-cluster").await;
}
