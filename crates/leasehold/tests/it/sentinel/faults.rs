//! One primary, two replicas, three sentinels: what a failover costs, and what it can lose.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::crowd::{Crowd, a_turn};
use crate::support::failover::{LONG, acquired, blocking, both_hold, only_overlaps, until_waiting};
use crate::support::redis_sentinels::Sentinels;
use leasehold::conformance::history::Violation;
use leasehold::{ErrorKind, Locks};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn start() -> Arc<Sentinels> {
    blocking(|| Arc::new(Sentinels::start())).await
}

/// The primary is killed; returns the number of the lost one, and that of the next.
async fn fail_over(all: &Arc<Sentinels>) -> (usize, usize) {
    let all = Arc::clone(all);
    blocking(move || {
        let lost = all.primary();
        all.servers[lost].kill();
        (lost, all.failed_over(lost))
    })
    .await
}

/// The replicas stay up and hear nothing more of the primary.
fn cut_off(all: &Sentinels) {
    for replica in &all.servers[1..] {
        let cut = replica.command("REPLICAOF 127.0.0.1 1");
        assert!(cut.contains("OK"), "{cut}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn uncopied_grant_lost_lets_two_in_with_rising_tokens() {
    let all = start().await;
    let url = all.url_with("?wait_replicas=0");
    let first = Locks::connect(&url).await.unwrap();
    assert!(!first.warnings().is_empty(), "it says what replicas mean");
    cut_off(&all);
    let old = first.lock("x").ttl(LONG).acquire().await.unwrap();
    fail_over(&all).await;
    let second = Locks::connect(&url).await.unwrap();
    let new = acquired(&second, "x").await;
    both_hold("sentinels without wait_replicas", old, &new);
}

#[tokio::test(flavor = "multi_thread")]
async fn uncopied_grant_does_not_count_by_default() {
    let all = start().await;
    let locks = Locks::connect(all.url_with("?timeout=1s")).await.unwrap();
    assert_eq!(locks.warnings(), [""; 0]);
    acquired(&locks, "y").await.release().await.unwrap();
    cut_off(&all);
    let error = locks.lock("x").ttl(LONG).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    fail_over(&all).await;
    let second = Locks::connect(all.url()).await.unwrap();
    let new = acquired(&second, "x").await;
    println!("with wait_replicas=1: 2 operations, 1 fault, 0 overlaps");
    new.release().await.unwrap();
}

/// Sixteen clients while the primary is killed, twice.
async fn killed_under_load(options: &str) -> Vec<Violation> {
    let _turn = a_turn().await;
    let all = start().await;
    let url = all.url_with(&format!("?timeout=1s{options}"));
    let crowd = Crowd::start(&url, ms(2000)).await;
    for _ in 0..2 {
        crowd.goes_on(100, LONG).await;
        let (lost, primary) = fail_over(&all).await;
        crowd.goes_on(100, LONG).await;
        let all = Arc::clone(&all);
        blocking(move || {
            all.servers[lost].revive();
            all.follow(lost, primary);
            all.settle();
        })
        .await;
    }
    crowd.goes_on(100, LONG).await;
    let what = format!("sentinels{options}: primary killed");
    crowd.end(&what, 2, Vec::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn primary_killed_under_load_lets_tokens_rise() {
    for options in ["", "&wait_replicas=0"] {
        let violations = killed_under_load(options).await;
        only_overlaps(&format!("sentinels{options}"), violations);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_and_waiter_survive_a_failover() {
    let all = start().await;
    let locks = Locks::connect(all.url()).await.unwrap();
    let held = acquired(&locks, "x").await;
    let other = Locks::connect(all.url()).await.unwrap();
    let waiting = tokio::spawn(async move { acquired(&other, "x").await });
    until_waiting(&locks, "x", 1).await;
    fail_over(&all).await;
    let deadline = Instant::now() + LONG;
    while let Err(error) = held.renew().await {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(ms(20)).await;
    }
    let token = held.token();
    held.release().await.unwrap();
    let released = Instant::now();
    let next = waiting.await.unwrap();
    // Not when the lock's time would have been over.
    assert!(released.elapsed() < LONG / 2, "{:?}", released.elapsed());
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn former_primary_that_restarts_is_left_alone() {
    let all = start().await;
    let before = Locks::connect(all.url()).await.unwrap();
    acquired(&before, "x").await.release().await.unwrap();
    let (lost, primary) = fail_over(&all).await;
    let servers = Arc::clone(&all);
    blocking(move || servers.servers[lost].revive()).await;
    let role = || all.servers[lost].command("INFO replication");
    assert!(role().contains("role:master"), "it takes itself for one");
    let after = Locks::connect(all.url()).await.unwrap();
    for locks in [&before, &after] {
        acquired(locks, "x").await.release().await.unwrap();
    }
    assert_eq!(all.servers[lost].calls("evalsha"), 0);
    assert!(all.servers[primary].calls("evalsha") > 0);
}

/// Its connections are still open, and it does not know of the failover.
#[tokio::test(flavor = "multi_thread")]
async fn former_primary_that_stood_still_is_left_alone() {
    let all = start().await;
    let idle = Locks::connect(all.url()).await.unwrap();
    acquired(&idle, "x").await.release().await.unwrap();
    let frozen = all.primary();
    let calls = all.servers[frozen].calls("evalsha");
    all.servers[frozen].stop();
    let servers = Arc::clone(&all);
    blocking(move || servers.failed_over(frozen)).await;
    // The sentinels are asked once a second.
    tokio::time::sleep(ms(2500)).await;
    all.servers[frozen].go_on();
    acquired(&idle, "x").await.release().await.unwrap();
    assert_eq!(all.servers[frozen].calls("evalsha"), calls);
}

/// That request has ended the connection, of which only a waiter is left that asks nothing.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_looks_again_after_a_request_was_given_up() {
    let all = start().await;
    let locks = Locks::connect(all.url()).await.unwrap();
    let held = acquired(&locks, "x").await;
    let waiter = Locks::connect(all.url_with("?timeout=300ms"))
        .await
        .unwrap();
    let other = waiter.clone();
    let waiting = tokio::spawn(async move { acquired(&waiter, "x").await });
    until_waiting(&locks, "x", 1).await;
    let frozen = all.primary();
    all.servers[frozen].stop();
    assert!(other.inspect("x").await.is_err(), "nothing is heard");
    let servers = Arc::clone(&all);
    blocking(move || servers.failed_over(frozen)).await;
    let deadline = Instant::now() + LONG;
    while let Err(error) = held.renew().await {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(ms(20)).await;
    }
    held.release().await.unwrap();
    let released = Instant::now();
    waiting.await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < LONG / 2, "{:?}", released.elapsed());
}
