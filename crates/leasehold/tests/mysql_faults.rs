//! One real server, sixteen clients, and what can go wrong.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::{ErrorKind, LeaseState, Locks};
use nix::sys::signal::Signal;
use support::bent_clock::BentClock;
use support::crowd::Crowd;
use support::database_faults::{self, PATIENCE, TTL};
use support::mariadb_server::MariadbServer;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn patient(server: &MariadbServer) -> String {
    format!("{}?pool=4&timeout=10s&connect_timeout=10s", server.url())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_killed_in_every_state() {
    let server = MariadbServer::start();
    let crowd = Crowd::start(&patient(&server), ms(3000)).await;
    crowd.goes_on(50, ms(30_000)).await;
    let mut faults = 0;
    for round in 0..60 {
        let ids = server.sql("SELECT id FROM information_schema.processlist WHERE db = 'locks' AND id <> CONNECTION_ID()");
        let ids: Vec<_> = ids.lines().collect();
        let kind = if round % 2 == 0 { "" } else { "QUERY " };
        for _ in 0..4 {
            let id = ids[fastrand::usize(..ids.len())];
            // It may have gone by itself.
            let _ = server.try_sql(&format!("KILL {kind}{id}"));
            faults += 1;
        }
        tokio::time::sleep(ms(30)).await;
    }
    crowd.goes_on(100, ms(30_000)).await;
    crowd
        .ends_well("connections and queries killed", faults)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_restarted_under_load() {
    let server = MariadbServer::start();
    let crowd = Crowd::start(&patient(&server), ms(3000)).await;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        crowd.goes_on(50, ms(30_000)).await;
        server.stop(signal);
        server.revive();
    }
    crowd.goes_on(100, ms(30_000)).await;
    crowd
        .ends_well("restarted in good order, and by kill -9", 2)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_another_that_keeps_the_tables_locked() {
    let server = MariadbServer::start();
    let crowd = Crowd::start(&patient(&server), ms(5000)).await;
    crowd.goes_on(50, ms(30_000)).await;
    let stranger = server.session(
        "START TRANSACTION; SELECT COUNT(*) FROM (SELECT * FROM leasehold_tokens FOR UPDATE) t; DO SLEEP(3); COMMIT",
    );
    tokio::time::sleep(ms(3500)).await;
    drop(stranger);
    crowd.goes_on(50, ms(30_000)).await;
    crowd
        .ends_well("the tables locked for three seconds", 1)
        .await;
}

/// Deadlocks and waits that are too long are tried again in time; if it takes too long, that is said.
#[tokio::test(flavor = "multi_thread")]
async fn tables_locked_for_too_long_are_said() {
    let server = MariadbServer::start();
    let url = format!("{}?timeout=1500ms", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let _stranger = server.session(
        "START TRANSACTION; SELECT COUNT(*) FROM (SELECT * FROM leasehold_tokens FOR UPDATE) t; DO SLEEP(60)",
    );
    tokio::time::sleep(ms(500)).await;
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_waiters_need_no_more_connections_than_the_pool_has_and_two() {
    let server = MariadbServer::start();
    let locks = Locks::connect(&patient(&server)).await.unwrap();
    let holder = locks.lock("x").ttl(ms(30_000)).acquire().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let request = locks.lock("x").ttl(ms(30_000)).wait(ms(120_000));
        waiting.spawn(async move { request.acquire().await.unwrap().release().await.unwrap() });
    }
    let count = |what: &str| -> usize { server.sql(what).parse().unwrap() };
    let deadline = Instant::now() + ms(60_000);
    while count("SELECT COUNT(*) FROM leasehold_waiters") < 1000 {
        assert!(Instant::now() < deadline, "not all wait");
        tokio::time::sleep(ms(100)).await;
    }
    let connections = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'locks' AND id <> CONNECTION_ID()";
    let connections = count(connections);
    assert!(connections <= 6, "{connections} connections");
    let began = Instant::now();
    holder.release().await.unwrap();
    while let Some(done) = waiting.join_next().await {
        done.unwrap();
    }
    println!(
        "1,000 waiters on {connections} connections were through after {:?}",
        began.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn another_users_process_is_served_although_it_cannot_be_woken() {
    let server = MariadbServer::start();
    let ours = Locks::connect(&patient(&server)).await.unwrap();
    server.sql("CREATE USER 'other'@'%' IDENTIFIED BY 'p'; GRANT ALL ON locks.* TO 'other'@'%'");
    let theirs = Locks::connect(server.url_of("other", "p", "locks"))
        .await
        .unwrap();
    let mut holder = theirs.lock("x").ttl(ms(30_000)).acquire().await.unwrap();
    let mut worst = Duration::ZERO;
    for round in 0..10 {
        let request = ours.lock("x").ttl(ms(30_000)).wait(ms(30_000));
        let waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
        tokio::time::sleep(ms(100)).await;
        let released = Instant::now();
        holder.release().await.unwrap();
        let lease = waiting.await.unwrap();
        if round > 4 {
            worst = worst.max(released.elapsed());
        }
        lease.release().await.unwrap();
        holder = theirs.lock("x").ttl(ms(30_000)).acquire().await.unwrap();
    }
    println!("without wake-ups, a hand-over took {worst:?} at most");
    assert!(worst < ms(1000), "{worst:?}");
    assert!(ours.warnings().join(" ").contains("another user"));
}

fn few_connections(server: &MariadbServer) -> String {
    format!("{}?pool=2&timeout=2s&connect_timeout=2s", server.url())
}

fn with_a_bent_clock() -> (MariadbServer, BentClock) {
    let clock = BentClock::off_by(0);
    (MariadbServer::within(&[], &clock.environment()), clock)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_breaks_nothing() {
    let (server, clock) = with_a_bent_clock();
    let now = || -> f64 { server.sql("SELECT UNIX_TIMESTAMP(NOW(6))").parse().unwrap() };
    let before = now();
    database_faults::a_clock_that_steps_back(&few_connections(&server), &clock).await;
    assert!(now() < before - 3000.0, "the clock was not bent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_forward_never_turns_tokens_back() {
    let (server, clock) = with_a_bent_clock();
    database_faults::a_clock_that_steps_forward(&few_connections(&server), &clock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_two_connections_renewals_do_not_wait_behind_attempts() {
    let server = MariadbServer::start();
    database_faults::two_connections_for_all(&server.url()).await;
}

/// A server that takes so few, with a user for whom no connection is reserved.
fn with_few_connections(most: usize) -> MariadbServer {
    let server = MariadbServer::with(&[&format!("--max-connections={most}")]);
    server.sql("CREATE USER 'me'@'%' IDENTIFIED BY 'p'; GRANT ALL ON locks.* TO 'me'@'%'");
    server
}

/// Strangers take all connections that the server gives, just after a lock was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_more_connections() {
    let server = with_few_connections(10);
    let url = server.url_of("me", "p", "locks");
    // Who finds the tables has opened no more connections than it has needed so far.
    drop(Locks::connect(&url).await.unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("held").ttl(TTL).acquire().await.unwrap();
    let stranger = |_| server.session_of("me", "p", "DO SLEEP(60)");
    let strangers: Vec<_> = (0..12).map(stranger).collect();
    let theirs = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'me'";
    let deadline = Instant::now() + PATIENCE;
    // One more is kept for an administrator, who asks.
    while server.try_sql(theirs) != Ok("10".to_owned()) {
        assert!(Instant::now() < deadline, "there is room left");
        tokio::time::sleep(ms(20)).await;
    }
    let error = Locks::connect(format!("{url}?table=other"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("no more connections"), "{error}");
    assert!(
        error.advice().unwrap().contains("max_connections"),
        "{error}"
    );

    // What is held is kept, and given back.
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(held.state(), LeaseState::Held);
    let other = locks.lock("other").ttl(TTL).acquire().await.unwrap();
    other.release().await.unwrap();
    // Whoever would wait is told why it cannot.
    let error = locks
        .lock("held")
        .wait(ms(500))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("no more connections"), "{error}");
    assert!(error.advice().is_some(), "{error}");
    held.release().await.unwrap();

    drop(strangers);
    // Their sessions do not notice by themselves.
    let asleep = "SELECT id FROM information_schema.processlist WHERE info LIKE 'DO SLEEP%'";
    loop {
        let ids = server.sql(asleep);
        if ids.is_empty() {
            break;
        }
        for id in ids.lines() {
            // It may have gone by now.
            let _ = server.try_sql(&format!("KILL {id}"));
        }
    }
    let held = locks.lock("held").acquire().await.unwrap();
    let next = tokio::spawn(locks.lock("held").wait(PATIENCE).acquire());
    let waits = "SELECT COUNT(*) FROM leasehold_waiters";
    while server.sql(waits) == "0" {
        assert!(!next.is_finished(), "{:?}", next.await);
        tokio::time::sleep(ms(20)).await;
    }
    held.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
}

/// Sixteen handles want thirty-four connections, and there are twenty.
#[tokio::test(flavor = "multi_thread")]
async fn too_few_connections_for_all() {
    let server = with_few_connections(20);
    let url = format!("{}?pool=2&timeout=2s", server.url_of("me", "p", "locks"));
    let crowd = Crowd::start(&url, TTL).await;
    crowd.goes_on(300, PATIENCE).await;
    crowd.ends_well("too few connections", 1).await;
}
