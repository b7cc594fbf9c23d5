//! One real server, sixteen clients, and what can go wrong.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::bent_clock::BentClock;
use crate::support::crowd::Crowd;
use crate::support::database_faults::{self, PATIENCE, TTL};
use crate::support::lost_connections;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres_server::{PostgresServer, Stop};
use crate::support::proxy::Proxy;
use leasehold::{ErrorKind, LeaseState, Locks, LossReason};
use tokio::task::JoinHandle;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn few_connections(url: &str) -> String {
    format!("{url}?pool=2&timeout=2s&connect_timeout=2s")
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_ended_again_and_again_in_every_state() {
    let server = PostgresServer::start();
    let url = few_connections(&server.url());
    let crowd = Crowd::start(&url, TTL).await;
    let ours = "application_name = 'leasehold'";
    let mut ended = 0;
    for which in [
        "state = 'idle'",
        "state = 'active'",
        // Those that listen keep one.
        "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
        "random() < 0.3",
        "true",
    ] {
        for _ in 0..2 {
            crowd.goes_on(10, PATIENCE).await;
            let count = server.sql(&format!(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {ours} AND {which}"
            ));
            ended += count.parse::<usize>().unwrap();
        }
    }
    crowd.goes_on(50, PATIENCE).await;
    // It shares what the crowd knows of this server.
    let warnings = Locks::connect(&url).await.unwrap().warnings();
    let gave_up = warnings
        .iter()
        .any(|warning| warning.contains("no messages"));
    crowd.ends_well("connections ended", ended).await;
    assert!(
        !gave_up,
        "messages that were lost with their connection count"
    );
    assert!(ended > 10, "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_is_restarted_under_load() {
    let server = PostgresServer::with(&["fsync=on"]);
    let crowd = Crowd::start(&few_connections(&server.url()), TTL).await;
    for how in [Stop::Fast, Stop::Immediate, Stop::Kill] {
        crowd.goes_on(30, PATIENCE).await;
        server.stop(how);
        server.revive();
    }
    crowd.goes_on(50, PATIENCE).await;
    crowd.ends_well("restarted, crashed", 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_killed_and_comes_back() {
    let server = PostgresServer::start();
    let pooler = PgBouncer::before(&server, 10);
    let crowd = Crowd::start(&few_connections(&pooler.url()), TTL).await;
    for _ in 0..3 {
        crowd.goes_on(30, PATIENCE).await;
        pooler.kill();
        tokio::time::sleep(ms(200)).await;
        pooler.revive();
    }
    crowd.goes_on(50, PATIENCE).await;
    crowd.ends_well("pooler killed", 3).await;
}

fn with_a_bent_clock() -> (PostgresServer, BentClock) {
    let clock = BentClock::off_by(0);
    (PostgresServer::within(&[], &clock.environment()), clock)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_breaks_nothing() {
    let (server, clock) = with_a_bent_clock();
    let now = || -> f64 {
        let said = server.sql("SELECT extract(epoch FROM clock_timestamp())");
        said.parse().unwrap()
    };
    let before = now();
    database_faults::a_clock_that_steps_back(&few_connections(&server.url()), &clock).await;
    assert!(now() < before - 3000.0, "the clock was not bent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_forward_never_turns_tokens_back() {
    let (server, clock) = with_a_bent_clock();
    database_faults::a_clock_that_steps_forward(&few_connections(&server.url()), &clock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_on_two_connections_wait_for_no_attempt() {
    let server = PostgresServer::start();
    database_faults::two_connections_for_all(&server.url()).await;
}

/// A user's transaction that keeps a table locked, for so long.
async fn locked_for(server: &Arc<PostgresServer>, table: &str, seconds: u64) -> JoinHandle<()> {
    let lock = format!(
        "BEGIN; LOCK TABLE leasehold.{table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT"
    );
    let server = Arc::clone(server);
    let locking = Arc::clone(&server);
    let locked = tokio::task::spawn_blocking(move || {
        locking.sql(&lock);
    });
    let is_locked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                     AND relation IS NOT NULL";
    while server.sql(is_locked) == "0" {
        tokio::time::sleep(ms(20)).await;
    }
    locked
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_locked_for_a_while() {
    let server = Arc::new(PostgresServer::start());
    let impatient = format!("{}?timeout=1s", server.url());
    let impatient = Locks::connect(impatient).await.unwrap();
    let patient = format!("{}?timeout=20s", server.url());
    let patient = Locks::connect(patient).await.unwrap();
    for table in ["holders", "waiters", "listeners", "tokens"] {
        let taken = impatient.lock("y").ttl(ms(60_000)).acquire().await.unwrap();
        let short = patient.lock("a").ttl(ms(1500)).acquire().await.unwrap();
        let long = impatient.lock("b").ttl(ms(60_000)).acquire().await.unwrap();
        let locked = locked_for(&server, table, 4).await;
        let began = Instant::now();

        let free = patient.lock(format!("new to {table}"));
        let free = tokio::spawn(async move { free.acquire().await });
        let refused = match table {
            // Only who waits needs these.
            "waiters" | "listeners" => impatient.lock("y").acquire().await,
            _ => {
                impatient
                    .lock(format!("new, too, to {table}"))
                    .acquire()
                    .await
            }
        };
        if let Err(error) = refused {
            assert_eq!(error.kind(), ErrorKind::Unreachable, "{table}: {error}");
            assert!(error.advice().is_some(), "{table}: {error}");
            assert!(began.elapsed() < ms(3900), "{table}: {:?}", began.elapsed());
        } else {
            panic!("{table} was not locked");
        }
        if table == "holders" {
            let reason = tokio::time::timeout(ms(3500), short.lost()).await;
            let reason = reason.expect("lost in time");
            assert!(matches!(reason, LossReason::Expired { .. }), "{reason:?}");
            let unsure = long.renew().await.unwrap_err();
            assert_eq!(unsure.kind(), ErrorKind::Unreachable, "{unsure}");
            assert_eq!(long.state(), LeaseState::Uncertain);
        } else {
            assert!(short.is_valid(), "renewals need no {table}");
        }
        locked.await.unwrap();
        free.await.unwrap().unwrap().release().await.unwrap();
        long.renew().await.unwrap();
        assert_eq!(long.state(), LeaseState::Held, "{table}");
        long.release().await.unwrap();
        taken.release().await.unwrap();
        drop(short);
        patient.flush().await;
        let again = impatient.lock("y").wait(PATIENCE).acquire().await.unwrap();
        again.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_lost_in_silence_are_replaced() {
    let server = PostgresServer::start();
    let link = Proxy::to(server.port).await;
    let through = server
        .url()
        .replace(&format!(":{}", server.port), &format!(":{}", link.port));
    let through = format!("{through}?timeout=1s");
    lost_connections::are_replaced(&[link], &through, &server.url()).await;
}
