//! Many at once on PostgreSQL: what it costs.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::Locks;
use support::postgres_server::PostgresServer;
use tokio::task::JoinSet;

const WAITERS: usize = 1_000;
const POOL: usize = 6;

fn connections(server: &PostgresServer) -> usize {
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    server.sql(ours).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters_need_no_more_connections_than_one() {
    let server = PostgresServer::start();
    let url = format!("{}?pool={POOL}&timeout=60s", server.url());
    let locks = Locks::connect(url).await.unwrap();
    let first = locks.lock("x").acquire().await.unwrap();
    let mut queue = JoinSet::new();
    for _ in 0..WAITERS {
        let request = locks.lock("x").wait_forever();
        queue.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    let mut most = 0;
    while locks.show("x").await.unwrap().waiters.len() < WAITERS {
        most = most.max(connections(&server));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (began, sent) = (Instant::now(), locks.engine().commands_sent().unwrap());
    first.release().await.unwrap();
    while !queue.is_empty() {
        most = most.max(connections(&server));
        let _ = tokio::time::timeout(Duration::from_millis(50), async {
            while let Some(done) = queue.join_next().await {
                done.unwrap();
            }
        })
        .await;
    }
    let calls = (locks.engine().commands_sent().unwrap() - sent) as f64 / WAITERS as f64;
    println!(
        "{WAITERS} waiters: {most} connections, {calls:.2} calls a hand-over, all through in {:?}",
        began.elapsed()
    );
    // And the one that listens.
    assert!(most <= POOL + 1, "{most} connections");
    // The release, the renewal that confirms, and now and then a look.
    assert!(calls <= 3.0, "{calls} calls");
    let left = "SELECT (SELECT count(*) FROM leasehold.holders) + (SELECT count(*) FROM leasehold.waiters)";
    locks.settle().await;
    assert_eq!(server.sql(left), "0", "nothing is left behind");
}
