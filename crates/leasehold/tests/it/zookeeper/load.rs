//! Many at once on ZooKeeper: what it costs, and that nothing is left behind.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::support::zookeeper_cluster::{ZooKeeperCluster, ZooKeeperNode};
use leasehold::Locks;
use tokio::task::JoinSet;

/// How many watches have been set off so far, of whatever kind.
fn notifications(node: &ZooKeeperNode) -> f64 {
    let kinds = ["created", "deleted", "changed", "children"];
    let count = |kind: &&str| node.count(&format!("sum_node_{kind}_watch_count"));
    kinds.iter().map(count).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_of_a_thousand_waiters() {
    const WAITERS: usize = 1_000;
    // A session that outlasts a busy machine: without one, nobody would wait any more.
    let cluster = ZooKeeperCluster::with(1, "maxSessionTimeout=60000");
    let url = format!("{}?session_timeout=60s&timeout=30s", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let mut queue = JoinSet::new();
    for _ in 0..WAITERS {
        let request = locks.lock("x").wait_forever();
        queue.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    while cluster.nodes[0].count("watch_count") < WAITERS as f64 {
        assert!(first.is_valid(), "the lock is lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = notifications(&cluster.nodes[0]);
    let sent = locks.engine().about().requests.unwrap();
    first.release().await.unwrap();
    queue.join_all().await;
    let told = (notifications(&cluster.nodes[0]) - before) / WAITERS as f64;
    let sent = (locks.engine().about().requests.unwrap() - sent) as f64 / WAITERS as f64;
    println!("{WAITERS} waiters: {told:.3} notifications and {sent:.2} commands a hand-over");
    assert!(told > 0.99, "{told} notifications are not counted");
    assert!(told < 1.01, "{told} notifications a release");
    assert!(sent < 4.0, "{sent} commands");
    assert_eq!(cluster.nodes[0].count("watch_count"), 0.0);
    assert_eq!(cluster.nodes[0].count("ephemerals_count"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_leave_nothing_behind() {
    // Empty containers are looked for each second instead of each minute.
    let cluster = ZooKeeperCluster::with(1, "-Dznode.container.checkIntervalMs=1000");
    let url = format!("{}?session_timeout=4s&timeout=30s", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let nodes = cluster.nodes[0].count("znode_count");
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for _ in 0..10 {
                let lock = locks.lock(format!("task/{task}"));
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    locks.flush().await;
    assert_eq!(cluster.nodes[0].count("ephemerals_count"), 0.0);
    let gone = async {
        // The node above them stays.
        while cluster.nodes[0].count("znode_count") > nodes + 1.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), gone).await;
    gone.expect("the server removes empty locks");
}
