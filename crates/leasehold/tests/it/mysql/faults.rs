//! One real server, sixteen clients, and what can go wrong.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::bent_clock::BentClock;
use crate::support::crowd::Crowd;
use crate::support::database_faults::{self, PATIENCE, TTL};
use crate::support::lost_connections;
use crate::support::mariadb_server::{MariadbServer, Session};
use crate::support::proxy::{Link, Proxy};
use leasehold::{ErrorKind, Locks};
use nix::sys::signal::Signal;

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
    let locked = "SELECT COUNT(*) FROM information_schema.processlist WHERE info = 'DO SLEEP(60)'";
    until("they are locked", async || server.sql(locked) == "1").await;
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_waiters_need_the_pool_and_one_connection() {
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
    assert!(connections <= 5, "{connections} connections");
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
async fn unwakeable_process_of_another_user_is_served() {
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
    assert!(worst < ms(10_000), "{worst:?}");
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
async fn renewals_on_two_connections_wait_for_no_attempt() {
    let server = MariadbServer::start();
    database_faults::two_connections_for_all(&server.url()).await;
}

/// A server that takes so few, with a user for whom no connection is reserved.
fn with_few_connections(most: usize) -> MariadbServer {
    let server = MariadbServer::with(&[&format!("--max-connections={most}")]);
    server.sql("CREATE USER 'me'@'%' IDENTIFIED BY 'p'; GRANT ALL ON locks.* TO 'me'@'%'");
    server
}

/// Strangers take all connections that the server gives.
async fn take_all_connections(server: &MariadbServer, most: usize) -> Vec<Session> {
    let stranger = |_| server.session_of("me", "p", "DO SLEEP(60)");
    let mut strangers: Vec<_> = (0..most).map(stranger).collect();
    let theirs = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'me'";
    // One more is kept for an administrator, who asks; but that one may have come first.
    until("there is room left", async || {
        let full = server.try_sql(theirs) == Ok(most.to_string());
        if !full {
            strangers.push(stranger(0));
        }
        full
    })
    .await;
    strangers
}

/// Strangers give back all connections that they have.
fn make_room(server: &MariadbServer, strangers: Vec<Session>) {
    drop(strangers);
    // Their sessions do not notice by themselves.
    kill_all(server, "info LIKE 'DO SLEEP%'");
}

fn kill_all(server: &MariadbServer, which: &str) {
    let which = format!(
        "SELECT id FROM information_schema.processlist WHERE {which} AND id <> CONNECTION_ID()"
    );
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "they go on");
        // The administrator's last connection may not be over yet.
        let Ok(ids) = server.try_sql(&which) else {
            continue;
        };
        if ids.is_empty() {
            break;
        }
        for id in ids.lines() {
            // It may have gone by now.
            let _ = server.try_sql(&format!("KILL {id}"));
        }
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(20)).await;
    }
}

/// Strangers take all connections that the server gives, just after a lock was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_more_connections() {
    let server = with_few_connections(10);
    let url = server.url_of("me", "p", "locks");
    // Who finds the tables has opened no more connections than it has needed so far.
    drop(Locks::connect(&url).await.unwrap());
    let locks = Locks::connect(&url).await.unwrap();
    let ttl = ms(3000);
    let held = locks.lock("held").ttl(ttl).acquire().await.unwrap();
    let strangers = take_all_connections(&server, 10).await;
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
    tokio::time::sleep(ttl * 2).await;
    assert!(held.is_valid());
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

    make_room(&server, strangers);
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

/// Sixteen handles want thirty-three connections, and there are twenty.
#[tokio::test(flavor = "multi_thread")]
async fn too_few_connections_for_all() {
    let server = with_few_connections(20);
    let url = format!("{}?pool=2&timeout=2s", server.url_of("me", "p", "locks"));
    let crowd = Crowd::start(&url, TTL).await;
    crowd.goes_on(300, PATIENCE).await;
    crowd.ends_well("too few connections", 1).await;
}

/// A server without room is waited for, like the lock itself.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_also_waits_for_a_full_server() {
    let server = with_few_connections(10);
    let url = format!("{}?timeout=1s", server.url_of("me", "p", "locks"));
    let locks = Locks::connect(url).await.unwrap();
    kill_all(&server, "user = 'me'");
    let strangers = take_all_connections(&server, 10).await;
    // It finds that its connection is lost, and that there is no other.
    locks.inspect("x").await.unwrap_err();
    // Who does not wait is told at once.
    let error = locks.lock("x").try_acquire().await.unwrap_err();
    assert!(error.is_busy(), "{error}");
    let began = Instant::now();
    let error = locks.lock("x").wait(ms(700)).acquire().await.unwrap_err();
    assert!(error.is_busy() && began.elapsed() >= ms(700), "{error}");
    let waiting = tokio::spawn(locks.lock("x").wait(PATIENCE).acquire());
    tokio::time::sleep(ms(500)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    make_room(&server, strangers);
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A user who may have one connection cannot listen, and gets the lock all the same.
#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_listen_for_lack_of_connections_asks_again() {
    let server = with_few_connections(20);
    let root = Locks::connect(server.url()).await.unwrap();
    let held = root.lock("x").ttl(PATIENCE).acquire().await.unwrap();
    server.sql("ALTER USER 'me'@'%' WITH MAX_USER_CONNECTIONS 1");
    let locks = Locks::connect(server.url_of("me", "p", "locks"))
        .await
        .unwrap();
    let ttl = ms(3000);
    let waiting = tokio::spawn(locks.lock("x").ttl(ttl).wait(PATIENCE).acquire());
    tokio::time::sleep(ms(1000)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    held.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    tokio::time::sleep(ttl * 2).await;
    assert!(lease.is_valid());
    lease.release().await.unwrap();
}

/// One connection; a second one while it waits, and a moment longer.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_process_has_two_connections_and_leaves_none() {
    let server = with_few_connections(20);
    let root = Locks::connect(server.url()).await.unwrap();
    let held = root.lock("x").ttl(PATIENCE).acquire().await.unwrap();
    let locks = Locks::connect(server.url_of("me", "p", "locks"))
        .await
        .unwrap();
    let count = |what: &str| -> usize { server.sql(what).parse().unwrap() };
    let mine = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'me'";
    let other = locks.lock("other").ttl(TTL).acquire().await.unwrap();
    other.renew().await.unwrap();
    other.release().await.unwrap();
    // A sweep may have had one for a moment.
    assert!(count(mine) <= 2);
    let waiting = tokio::spawn(locks.lock("x").ttl(TTL).wait(PATIENCE).acquire());
    until("it waits, with one to listen and one to act", async || {
        count("SELECT COUNT(*) FROM leasehold_waiters") == 1 && count(mine) == 2
    })
    .await;
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(count(mine), 2);
    held.release().await.unwrap();
    let lease = waiting.await.unwrap().unwrap();
    until("the one that listened is closed", async || count(mine) == 1).await;
    assert_eq!(count("SELECT COUNT(*) FROM leasehold_listeners"), 0);
    assert!(lease.is_valid());
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_at_once_on_a_fresh_database() {
    let server = MariadbServer::start();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let url = format!("{}?connect_timeout=20s&timeout=20s", server.url());
        all.spawn(async move {
            let locks = Locks::connect(&url).await?;
            let lease = locks.lock("x").wait(PATIENCE).acquire().await?;
            lease.release().await
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap().unwrap();
    }
}

/// What thousands of processes left behind that were killed, or that did not live for long.
const LEFT_BEHIND: &str = "SET @old = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 20000000; \
    INSERT INTO leasehold_holders (name, claim, mode, token, since, expires_at, owner, host, pid) \
    SELECT CONCAT('job/', seq), UNHEX(SHA2(seq, 256)), 0, seq + 1, @old, @old, 'me', 'here', seq FROM seq_1_to_3500; \
    INSERT INTO leasehold_waiters (name, claim, mode, ttl, since, listener, number, owner, host, pid) \
    SELECT CONCAT('job/', seq), UNHEX(SHA2(-seq, 256)), 0, 1000, @old, MD5(seq), 1, 'me', 'here', seq FROM seq_1_to_3500; \
    INSERT INTO leasehold_listeners (id, alive_until, sure_until) SELECT MD5(seq), @old, @old FROM seq_1_to_3500; \
    INSERT INTO leasehold_notices (listener, number, look_at) SELECT MD5(seq), 1, 0 FROM seq_1_to_3500";

#[tokio::test(flavor = "multi_thread")]
async fn short_lived_processes_sweep_a_bounded_part() {
    let server = MariadbServer::start();
    let url = server.url();
    let visit = async || {
        let locks = Locks::connect(&url).await.unwrap();
        let lease = locks.lock("x").acquire().await.unwrap();
        let token = lease.token();
        lease.release().await.unwrap();
        token
    };
    let token = visit().await;
    server.sql(LEFT_BEHIND);
    let left = "SELECT (SELECT COUNT(*) FROM leasehold_holders) + (SELECT COUNT(*) FROM leasehold_waiters) + \
                (SELECT COUNT(*) FROM leasehold_listeners) + (SELECT COUNT(*) FROM leasehold_notices)";
    let count = || -> usize { server.sql(left).parse().unwrap() };
    let tokens = || server.sql("SELECT COUNT(*), SUM(last > 0) FROM leasehold_tokens");
    let known = tokens();
    assert!(visit().await > token);
    until("the first sweeps", async || count() < 4 * 3500).await;
    // No more than a thousand of each at a time; the visit of before may have been late with its own.
    assert!(count() >= 4 * 1500, "{}", count());
    until("others sweep the rest", async || {
        visit().await;
        count() == 0
    })
    .await;
    assert_eq!(tokens(), known);
    assert!(visit().await > token);
}

/// Whoever gave up while the server could not be reached is not listened for any more.
#[tokio::test(flavor = "multi_thread")]
async fn who_gave_up_while_cut_off_is_forgotten() {
    let server = with_few_connections(50);
    let root = Locks::connect(server.url()).await.unwrap();
    let held = root.lock("x").ttl(ms(120_000)).acquire().await.unwrap();
    let proxy = Proxy::to(server.port).await;
    let url = format!(
        "mysql://me:p@127.0.0.1:{}/locks?timeout=1s&connect_timeout=1s",
        proxy.port
    );
    let locks = Locks::connect(url).await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..10 {
        waiting.spawn(locks.lock("x").ttl(ms(200)).wait_forever().acquire());
    }
    let count = |what: &str| -> usize { server.sql(what).parse().unwrap() };
    until("they wait", async || {
        count("SELECT COUNT(*) FROM leasehold_waiters") == 10
    })
    .await;
    proxy.set(Link::Refuse);
    waiting.shutdown().await;
    tokio::time::sleep(ms(2000)).await;
    proxy.set(Link::Open);
    let next = locks.lock("x").wait(ms(500)).acquire().await;
    next.unwrap_err();
    until("the one that listens is closed", async || {
        count("SELECT COUNT(*) FROM leasehold_listeners") == 0
    })
    .await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_lost_in_silence_are_replaced() {
    let server = MariadbServer::start();
    let link = Proxy::to(server.port).await;
    let through = server
        .url()
        .replace(&format!(":{}", server.port), &format!(":{}", link.port));
    let through = format!("{through}?timeout=1s");
    lost_connections::are_replaced(&[link], &through, &server.url()).await;
}
