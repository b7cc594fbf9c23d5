//! One handle used from two runtimes: the end of one strands nobody on the other.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::deployment::Deployment;
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::mariadb_server::MariadbServer;
use crate::support::postgres_server::PostgresServer;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_sentinels::Sentinels;
use crate::support::redis_server::RedisServer;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::Locks;
use tokio::runtime::Runtime;

/// No lease ends by itself meanwhile, and no waiter looks by the clock.
const TTL: Duration = Duration::from_secs(50);

/// Far longer than a hand-over takes, and far shorter than that.
const SOON: Duration = Duration::from_secs(15);

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

async fn until_waited_for(locks: &Locks, name: &str) {
    let deadline = Instant::now() + SOON;
    while locks.inspect(name).await.unwrap().waiters.is_empty() {
        assert!(Instant::now() < deadline, "nobody waits for {name}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whatever listens for the waiters was started by the first of them, whose runtime ends.
fn waiter_enters_after_the_runtime_of_another_has_ended(url: &str) {
    let (holding, first, second) = (runtime(), runtime(), runtime());
    let holder = holding.block_on(Locks::connect(url)).unwrap();
    let locks = first.block_on(Locks::connect(url)).unwrap();
    let hold = |name| holding.block_on(async { holder.lock(name).ttl(TTL).acquire().await });
    let (x, y) = (hold("x").unwrap(), hold("y").unwrap());
    let wait = |name: &'static str| {
        let locks = locks.clone();
        async move { locks.lock(name).ttl(TTL).wait(TTL).acquire().await }
    };
    first.spawn(wait("x"));
    holding.block_on(until_waited_for(&holder, "x"));
    let waits = second.spawn(wait("y"));
    holding.block_on(until_waited_for(&holder, "y"));
    first.shutdown_timeout(Duration::from_secs(1));
    holding.block_on(y.release()).unwrap();
    let entered = second.block_on(async { tokio::time::timeout(SOON, waits).await });
    let lease = entered.expect("nobody wakes it").unwrap().unwrap();
    second.block_on(lease.release()).unwrap();
    holding.block_on(x.release()).unwrap();
    for runtime in [holding, second] {
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// A runtime that makes progress only while something is awaited on it.
fn single_threaded() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

/// The connections belong to a runtime that ends at every stage of the waiter's requests: before one is sent, before it is answered, between two.
fn waiter_outlives_the_runtime_of_its_connections(url: &str) {
    let (holding, waiting) = (runtime(), single_threaded());
    let holder = holding.block_on(Locks::connect(url)).unwrap();
    for stage in 0..10 {
        let hold = async { holder.lock("z").ttl(TTL).wait(SOON).acquire().await };
        let z = holding.block_on(hold).unwrap();
        let connected = single_threaded();
        let locks = connected.block_on(Locks::connect(url)).unwrap();
        let mut entering = Box::pin(locks.lock("z").ttl(TTL).wait(TTL).acquire());
        for turn in 0..=stage {
            let polled = waiting.block_on(async { futures_util::poll!(&mut entering) });
            assert!(polled.is_pending(), "{polled:?}");
            if turn < stage {
                connected.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
            }
        }
        connected.shutdown_timeout(Duration::from_secs(1));
        // Its request fails before the lock is free.
        let polled = waiting.block_on(async { futures_util::poll!(&mut entering) });
        assert!(polled.is_pending(), "at stage {stage}: {polled:?}");
        holding.block_on(z.release()).unwrap();
        let entered = waiting.block_on(async { tokio::time::timeout(SOON, entering).await });
        let lease = entered.unwrap_or_else(|_| panic!("nobody wakes it at stage {stage}"));
        let lease = lease.unwrap_or_else(|error| panic!("at stage {stage}: {error}"));
        waiting.block_on(lease.release()).unwrap();
    }
    for runtime in [holding, waiting] {
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

#[test]
fn on_redis() {
    let server = RedisServer::start();
    waiter_enters_after_the_runtime_of_another_has_ended(&server.url());
}

#[test]
fn on_redlock() {
    let nodes = Deployment::with(3, TTL, "node_timeout=1s");
    nodes.has_stood_a_while();
    waiter_enters_after_the_runtime_of_another_has_ended(&nodes.url());
}

#[test]
fn on_cluster() {
    let cluster = RedisCluster::start();
    waiter_enters_after_the_runtime_of_another_has_ended(&cluster.url());
}

#[test]
fn on_sentinel() {
    let sentinels = Sentinels::start();
    waiter_enters_after_the_runtime_of_another_has_ended(&sentinels.url_with("?timeout=8s"));
}

#[test]
fn on_postgres() {
    let server = PostgresServer::start();
    waiter_enters_after_the_runtime_of_another_has_ended(&server.url());
}

#[test]
fn on_mysql() {
    let server = MariadbServer::start();
    waiter_enters_after_the_runtime_of_another_has_ended(&server.url());
}

#[test]
fn request_under_way_is_repeated_on_redis() {
    let server = RedisServer::start();
    waiter_outlives_the_runtime_of_its_connections(&server.url());
}

#[test]
fn request_under_way_is_repeated_on_redlock() {
    let nodes = Deployment::with(3, TTL, "node_timeout=1s");
    nodes.has_stood_a_while();
    waiter_outlives_the_runtime_of_its_connections(&nodes.url());
}

#[test]
fn request_under_way_is_repeated_on_cluster() {
    let cluster = RedisCluster::start();
    waiter_outlives_the_runtime_of_its_connections(&cluster.url());
}

#[test]
fn request_under_way_is_repeated_on_sentinel() {
    let sentinels = Sentinels::start();
    waiter_outlives_the_runtime_of_its_connections(&sentinels.url_with("?timeout=8s"));
}

#[test]
fn request_under_way_is_repeated_on_postgres() {
    let server = PostgresServer::start();
    waiter_outlives_the_runtime_of_its_connections(&server.url());
}

#[test]
fn request_under_way_is_repeated_on_mysql() {
    let server = MariadbServer::start();
    waiter_outlives_the_runtime_of_its_connections(&server.url());
}

#[test]
fn on_etcd() {
    let cluster = EtcdCluster::start(1);
    waiter_enters_after_the_runtime_of_another_has_ended(&cluster.url());
}

/// The session ends with the runtime that it was opened on: the waiter queues again, in the next one.
#[test]
fn on_zookeeper() {
    let cluster = ZooKeeperCluster::start(1);
    waiter_enters_after_the_runtime_of_another_has_ended(&cluster.url());
}
