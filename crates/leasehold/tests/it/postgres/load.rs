//! Many at once on PostgreSQL: what it costs.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::support::postgres_server::PostgresServer;
use leasehold::Locks;
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
    while locks.inspect("x").await.unwrap().waiters.len() < WAITERS {
        most = most.max(connections(&server));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (began, sent) = (Instant::now(), locks.engine().about().requests.unwrap());
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
    let calls = (locks.engine().about().requests.unwrap() - sent) as f64 / WAITERS as f64;
    println!(
        "{WAITERS} waiters: {most} connections, {calls:.2} calls a hand-over, all through in {:?}",
        began.elapsed()
    );
    // And the one that listens.
    assert!(most <= POOL + 1, "{most} connections");
    // The release, the renewal that confirms, and now and then a look.
    assert!(calls <= 3.0, "{calls} calls");
    let left = "SELECT (SELECT count(claim) FROM leasehold.holders) + (SELECT count(*) FROM leasehold.waiters)";
    locks.flush().await;
    assert_eq!(server.sql(left), "0", "nothing is left behind");
}

#[tokio::test]
async fn unused_locks_are_forgotten_but_not_their_tokens() {
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
    server.sql(
        "UPDATE leasehold.holders SET expires_at = since, backed_until = since WHERE name = 'dead'",
    );
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

/// A process that lives for a moment tidies up after others, a little with each call: nobody may live long enough to do it all.
#[tokio::test(flavor = "multi_thread")]
async fn short_lived_processes_leave_little_behind() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    drop(locks.lock("ahead").acquire().await.unwrap());
    locks.flush().await;
    // As if the clock had been an hour ahead.
    let ahead = "UPDATE leasehold.holders SET token = token + 3600000000 RETURNING token";
    let ahead: u64 = server.sql(ahead).lines().next().unwrap().parse().unwrap();
    let long_ago = "UPDATE leasehold.holders SET since = since - interval '1 hour', expires_at = expires_at - interval '1 hour', \
         backed_until = backed_until - interval '1 hour'";
    for batch in 0..20 {
        let locks = Locks::connect(server.url()).await.unwrap();
        for nth in 0..20 {
            let lease = locks.lock(format!("job/{batch}/{nth}")).acquire().await;
            lease.unwrap().release().await.unwrap();
        }
        let killed = locks
            .lock(format!("killed/{batch}"))
            .shared()
            .acquire()
            .await;
        killed.unwrap().detach();
        server.sql(long_ago);
    }
    let rows = server.sql("SELECT count(*) FROM leasehold.holders");
    println!("421 locks, of which {rows} rows are left");
    // Which rows a call looks at is random: some 40 to 70 are left, and all 421 if nobody sweeps.
    assert!(rows.parse::<u64>().unwrap() < 200, "{rows} rows");
    let known = "SELECT count(*) FROM leasehold.holders WHERE name = 'ahead'";
    assert_eq!(server.sql(known), "0", "it was not forgotten");
    let again = locks.lock("ahead").acquire().await.unwrap();
    assert!(again.token().get() > ahead, "tokens go back");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_have_waited_leave_little_behind() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("x").acquire().await.unwrap();
    for nth in 0..25 {
        // Another process, as far as the server can tell.
        let url = format!("{}?connect_timeout={}ms", server.url(), 10_000 + nth);
        let process = Locks::connect(url).await.unwrap();
        let waiting = process.lock("x").wait(Duration::from_millis(20));
        // It may be over before it began.
        let _ = waiting.acquire().await.unwrap_err();
        while server.sql("SELECT count(*) FROM leasehold.listeners") == "0" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(process);
        server.sql("UPDATE leasehold.listeners SET alive_until = alive_until - interval '1 hour'");
    }
    let rows = server.sql("SELECT count(*) FROM leasehold.listeners");
    println!("25 processes have waited, of which {rows} rows are left");
    assert!(rows.parse::<u64>().unwrap() < 15, "{rows} rows");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_waited_and_ends_in_good_order_leaves_no_row() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("x").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("x").wait_forever().acquire());
    let listeners = || server.sql("SELECT count(*) FROM leasehold.listeners");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while locks.inspect("x").await.unwrap().waiters.is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    locks.flush().await;
    assert_eq!(listeners(), "1", "it still waits");
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    while listeners() != "0" {
        assert!(tokio::time::Instant::now() < deadline, "its row is left");
        locks.flush().await;
    }
    // The handle can be used afterwards.
    let held = locks.lock("x").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("x").wait_forever().acquire());
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
