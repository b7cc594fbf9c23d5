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
    // Most are passed on within the process, and the server is told of many at once.
    assert!(calls <= 1.0, "{calls} calls");
    let left = "SELECT (SELECT count(claim) FROM leasehold.holders) + (SELECT count(*) FROM leasehold.waiters)";
    locks.settle().await;
    assert_eq!(server.sql(left), "0", "nothing is left behind");
}

#[tokio::test]
async fn locks_that_nobody_uses_are_forgotten_and_their_tokens_are_not() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let mut last = None;
    for nth in 0..120 {
        let lease = locks.lock(format!("x{nth}")).acquire().await.unwrap();
        last = last.max(Some(lease.token()));
        lease.release().await.unwrap();
    }
    let held = locks.lock("held").shared().acquire().await.unwrap();
    let dead = locks.lock("dead").acquire().await.unwrap();
    dead.detach();
    server.sql("UPDATE leasehold.holders SET since = since - interval '1 hour'");
    server.sql("UPDATE leasehold.holders SET expires_at = since WHERE name = 'dead'");
    let mut sweeps = 0;
    loop {
        sweeps += 1;
        if server.sql("SELECT leasehold.sweep()") == "f" {
            break;
        }
        assert!(sweeps < 100);
    }
    let left = server.sql("SELECT string_agg(DISTINCT name, ' ') FROM leasehold.holders");
    assert_eq!(left, "held");
    let forgotten = server.sql("SELECT forgotten FROM leasehold.tokens");
    assert!(forgotten.parse::<u64>().unwrap() >= last.unwrap().get());
    // As if the clock had been an hour ahead.
    let ahead =
        "UPDATE leasehold.tokens SET forgotten = forgotten + 3600000000 RETURNING forgotten";
    let ahead = server.sql(ahead).lines().next().unwrap().parse::<u64>();
    let lease = locks.lock("x0").acquire().await.unwrap();
    assert_eq!(lease.token().get(), ahead.unwrap() + 1);
    held.release().await.unwrap();
}
