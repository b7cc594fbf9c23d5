//! Primaries that are lost: what that costs, and what it can lose.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Instant;

use leasehold::conformance::history::Violation;
use leasehold::{ErrorKind, Locks};

use super::common::{X, ms, on, start, start_with};
use crate::support::crowd::{Crowd, a_turn};
use crate::support::failover::{LONG, acquired, blocking, both_hold, only_overlaps, until_waiting};
use crate::support::redis_cluster::RedisCluster;

/// The primary of the lock `x` is killed; returns its number once another has taken its place.
fn lose_primary(cluster: &RedisCluster) -> usize {
    let lost = cluster.owner(cluster.slot(X));
    cluster.nodes[lost].kill();
    cluster.failed_over(lost);
    lost
}

async fn killed_under_load(options: &str) -> Vec<Violation> {
    let _turn = a_turn().await;
    let cluster = start().await;
    let url = cluster.url_with(&format!("?timeout=1s{options}"));
    let crowd = Crowd::start(&url, ms(2000)).await;
    for _ in 0..2 {
        crowd.goes_on(100, LONG).await;
        // Without a replica no grant would count.
        on(&cluster, |cluster| {
            cluster.bring_back(lose_primary(cluster))
        })
        .await;
        crowd.goes_on(100, LONG).await;
    }
    crowd.goes_on(100, LONG).await;
    let what = format!("cluster{options}: primary killed");
    crowd.end(&what, 2, Vec::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn primary_killed_under_load_lets_tokens_rise() {
    for options in ["", "&wait_replicas=1"] {
        let violations = killed_under_load(options).await;
        only_overlaps(&format!("cluster{options}"), violations);
    }
}

/// It takes connections and answers nothing, so that all the time of a request may pass before another node is asked.
#[tokio::test(flavor = "multi_thread")]
async fn primary_that_stands_still_is_replaced() {
    let cluster = start().await;
    let url = cluster.url_with("?timeout=300ms&connect_timeout=300ms");
    let idle = Locks::connect(&url).await.unwrap();
    acquired(&idle, "x").await.release().await.unwrap();
    on(&cluster, |cluster| {
        let frozen = cluster.owner(cluster.slot(X));
        cluster.stop(frozen);
        cluster.failed_over(frozen);
    })
    .await;
    let found = Instant::now();
    let lease = acquired(&idle, "x").await;
    println!("cluster: found elsewhere after {:?}", found.elapsed());
    lease.release().await.unwrap();
}

/// Those of the others can be had: a node that is lost has only some of the locks.
#[tokio::test(flavor = "multi_thread")]
async fn primary_without_replica_takes_its_locks_along() {
    let options = ["--cluster-require-full-coverage", "no"];
    let cluster = blocking(move || {
        let cluster = RedisCluster::with(&options);
        let lost = cluster.owner(cluster.slot(X));
        for node in [lost + 3, lost] {
            cluster.nodes[node].kill();
        }
        cluster
    });
    let cluster = cluster.await;
    let lost = cluster.owner(cluster.slot(X));
    let port = cluster.nodes[lost].port.to_string();
    let locks = Locks::connect(cluster.url_with("?timeout=500ms"))
        .await
        .unwrap();
    let warned = locks
        .warnings()
        .iter()
        .any(|warning| warning.contains(&port));
    assert!(warned, "{:?}", locks.warnings());
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.is_busy() && error.to_string().contains(&port),
        "{error}"
    );
    let mut names = (0..100).map(|nth| format!("n{nth}"));
    let elsewhere =
        names.find(|name| cluster.owner(cluster.slot(&format!("leasehold:{name}"))) != lost);
    let lease = acquired(&locks, &elsewhere.unwrap()).await;
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_and_waiter_survive_a_failover() {
    let cluster = start().await;
    let locks = Locks::connect(cluster.url_with("?wait_replicas=1"))
        .await
        .unwrap();
    let held = acquired(&locks, "x").await;
    let other = Locks::connect(cluster.url()).await.unwrap();
    let waiting = tokio::spawn(async move { acquired(&other, "x").await });
    until_waiting(&locks, "x", 1).await;
    on(&cluster, lose_primary).await;
    let plain = Locks::connect(cluster.url()).await.unwrap();
    let resumed = plain.resume("x", held.claim_id()).unwrap();
    let deadline = Instant::now() + LONG;
    loop {
        match resumed.renew(LONG).await {
            Ok(renewed) => {
                assert!(renewed.is_some(), "it was copied");
                break;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                assert!(Instant::now() < deadline, "{error}");
            }
        }
    }
    let token = held.token();
    held.release().await.unwrap();
    let released = Instant::now();
    let next = waiting.await.unwrap();
    assert!(released.elapsed() < LONG / 2, "{:?}", released.elapsed());
    assert!(next.token() > token);
    next.release().await.unwrap();
}

/// The replica of the lock's primary stays up and hears nothing more.
fn cut_off(cluster: &RedisCluster) {
    let primary = cluster.owner(cluster.slot(X));
    let replica = primary + 3;
    let _: () = cluster.tell(replica, &["CONFIG", "SET", "masterauth", "wrong"]);
    let _: i64 = cluster.tell(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
    cluster.until("it is cut off", || cluster.replicas_of(primary) == 0);
}

const PASSWORDS: &[&str] = &["--requirepass", "s3cret", "--masterauth", "s3cret"];

fn with_password(url: &str) -> String {
    url.replacen("://", "://:s3cret@", 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn uncopied_grant_lost_lets_two_in_with_rising_tokens() {
    let cluster = start_with(PASSWORDS).await;
    let url = with_password(&cluster.url());
    let first = Locks::connect(&url).await.unwrap();
    assert!(!first.warnings().is_empty(), "it says what replicas mean");
    on(&cluster, cut_off).await;
    let old = first.lock("x").ttl(LONG).acquire().await.unwrap();
    on(&cluster, lose_primary).await;
    let second = Locks::connect(&url).await.unwrap();
    let new = acquired(&second, "x").await;
    both_hold("cluster without wait_replicas", old, &new);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_replicas_refuses_an_uncopied_grant() {
    let cluster = start_with(PASSWORDS).await;
    let url = with_password(&cluster.url_with("?wait_replicas=1&timeout=1s"));
    let locks = Locks::connect(&url).await.unwrap();
    assert_eq!(locks.warnings(), [""; 0]);
    acquired(&locks, "x").await.release().await.unwrap();
    on(&cluster, cut_off).await;
    let error = locks.lock("x").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
}
