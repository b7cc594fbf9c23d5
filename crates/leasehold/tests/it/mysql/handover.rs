//! What becomes of a lock that was handed over, or of a waiter that was passed over, while nobody heard of it: on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::database_handover::{self, LONG, SOON, until, until_queued};
use crate::support::mariadb_server::MariadbServer;
use crate::support::proxy::{Link, Proxy};
use crate::support::stuck_disk::StuckDisk;
use leasehold::{Effect, Lease, LeaseState, Locks};
use tokio::task::{JoinHandle, JoinSet};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn through(proxy: &Proxy) -> String {
    format!("mysql://root@127.0.0.1:{}/locks", proxy.port)
}

/// Someone holds the lock "x" and another handle, connected to this URL, waits for it.
async fn held_and_waited_for(
    server: &MariadbServer,
    waits_at: &str,
) -> (Locks, Lease, JoinHandle<Lease>) {
    let holder = Locks::connect(server.url()).await.unwrap();
    let held = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = Locks::connect(waits_at).await.unwrap();
    let waiting = tokio::spawn(async move {
        let request = waiter.lock("x").ttl(LONG).wait(LONG);
        request.acquire().await.unwrap()
    });
    until_queued(&holder, 1).await;
    (holder, held, waiting)
}

/// The release that another process would send.
const RELEASE: &str = "SELECT claim INTO @claim FROM leasehold_holders WHERE name = 'x'; \
                       CALL leasehold_release('x', @claim, '');";

async fn is_served(waiting: JoinHandle<Lease>) {
    let began = Instant::now();
    let lease = tokio::time::timeout(SOON, waiting).await;
    let lease = lease.expect("the waiter was forgotten").unwrap();
    println!("served after {:?}", began.elapsed());
    assert!(lease.is_valid());
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_hand_over_was_broken_is_served_at_once() {
    let server = MariadbServer::start();
    let proxy = Proxy::to(server.port).await;
    for _ in 0..3 {
        let (_holder, held, waiting) = held_and_waited_for(&server, &through(&proxy)).await;
        // Its listener is cut off for a moment, and the call that it has made ends.
        proxy.set(Link::Hang);
        tokio::time::sleep(ms(200)).await;
        server.sql(&format!("{RELEASE} CALL leasehold_force_release('x', '')"));
        proxy.set(Link::Open);
        is_served(waiting).await;
        held.detach();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_whose_answer_was_lost_breaks_nobody_else() {
    let server = MariadbServer::start();
    let (_holder, held, waiting) = held_and_waited_for(&server, &server.url()).await;
    // What was decided is not told: the call stands still after its commit, before its answer.
    server.sql(
        "CREATE OR REPLACE PROCEDURE leasehold_wake(p_listeners MEDIUMTEXT CHARACTER SET ascii) DO SLEEP(60); \
         CREATE USER 'operator'@'%' IDENTIFIED BY 'p'; GRANT ALL ON locks.* TO 'operator'@'%'",
    );
    let operator = server.url_of("operator", "p", "locks");
    let operator = Locks::connect(operator).await.unwrap();
    let breaking = tokio::spawn(async move { operator.force_release("x").await });
    let next = waiting.await.unwrap();
    let stands_still = "SELECT id FROM information_schema.processlist WHERE info = 'DO SLEEP(60)'";
    until("the call stands still", async || {
        let connection = server.sql(stands_still);
        !connection.is_empty() && server.try_sql(&format!("KILL {connection}")).is_ok()
    })
    .await;
    let broken = breaking.await.unwrap();
    tokio::time::sleep(ms(500)).await;
    let holders = server.sql("SELECT token FROM leasehold_holders");
    assert_eq!(holders, next.token().to_string(), "{broken:?}");
    assert_eq!(next.state(), LeaseState::Held);
    let error = broken.expect_err("nobody knows");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    next.release().await.unwrap();
    held.detach();
}

/// Without a binary log, others see what a transaction has written before it is on the disk, where a crash would still forget it.
#[tokio::test(flavor = "multi_thread")]
async fn no_offer_is_told_before_it_is_on_the_disk() {
    let disk = StuckDisk::working();
    let server = MariadbServer::on(&disk);
    let proxy = Proxy::to(server.port).await;
    let (_holder, held, mut waiting) = held_and_waited_for(&server, &through(&proxy)).await;
    // Its attempts have ended, and its listener sleeps.
    tokio::time::sleep(ms(300)).await;
    disk.stop();
    let releasing = tokio::spawn(held.release());
    let told = tokio::time::timeout(ms(1500), &mut waiting).await;
    assert!(!releasing.is_finished(), "the disk is not waited for");
    assert!(told.is_err(), "it was told, and is not on the disk");
    disk.resume();
    releasing.await.unwrap().unwrap();
    is_served(waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_offer_does_not_return_to_the_queue() {
    let server = MariadbServer::start();
    database_handover::a_hand_over_that_was_lost(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_that_is_left_leaves_nothing_in_this_process() {
    let server = MariadbServer::start();
    database_handover::a_queue_that_is_left(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_have_left_are_not_offered_the_lock() {
    let server = MariadbServer::start();
    database_handover::waiters_that_have_left(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_behind_one_that_leaves_is_let_in() {
    let server = MariadbServer::start();
    database_handover::a_waiter_behind_one_that_leaves(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_came_back_elsewhere_is_not_given_up() {
    let server = MariadbServer::start();
    database_handover::a_waiter_that_came_back_elsewhere(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_offer_lapsed_is_told_at_once() {
    let server = MariadbServer::start();
    database_handover::an_offer_that_lapsed(&server.url()).await;
}

/// A process whose connections were cut counts as dead until it has new ones; who was passed over meanwhile looks again.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_passed_over_while_cut_off_looks_again() {
    let server = MariadbServer::start();
    server.sql("CREATE USER 'me'@'%' IDENTIFIED BY 'p'; GRANT ALL ON locks.* TO 'me'@'%'");
    let proxy = Proxy::to(server.port).await;
    let mine = format!("mysql://me:p@127.0.0.1:{}/locks", proxy.port);
    for _ in 0..3 {
        let (_holder, held, waiting) = held_and_waited_for(&server, &mine).await;
        // None of its attempts is under way any more.
        tokio::time::sleep(ms(300)).await;
        // Closed on both sides; the server has noticed once they are not in its list any more.
        proxy.set(Link::Refuse);
        let began = Instant::now();
        until("its connections end", async || {
            server.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'me'")
                == "0"
        })
        .await;
        server.sql(RELEASE);
        println!("passed over after {:?}", began.elapsed());
        proxy.set(Link::Open);
        is_served(waiting).await;
        held.detach();
    }
}

/// A server whose disk is slow, or a row that is locked, holds up the word that a process is alive until it counts as dead.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_passed_over_with_a_late_beat_looks_again() {
    let server = MariadbServer::start();
    for _ in 0..3 {
        let (_holder, held, waiting) = held_and_waited_for(&server, &server.url()).await;
        // Until just after the process counts as dead, and no longer.
        let _stranger = server.session(
            "START TRANSACTION; SELECT id FROM leasehold_listeners FOR UPDATE; DO SLEEP(60)",
        );
        let stranger = "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE info = 'DO SLEEP(60)'";
        until("the row is locked", async || server.sql(stranger) != "0").await;
        server.sql(&format!(
            "SET @stranger = ({stranger}); \
             SELECT MAX(alive_until) - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) INTO @left FROM leasehold_listeners; \
             DO SLEEP(GREATEST(0, @left / 1000000) + 0.002); {RELEASE} KILL @stranger"
        ));
        is_served(waiting).await;
        held.detach();
    }
}

/// On MariaDB, whoever ends a SLEEP that another has just ended takes two seconds, in which no other ends.
#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_that_meet_do_not_hide_the_waiter() {
    let server = Arc::new(MariadbServer::start());
    let (holder, held, waiting) = held_and_waited_for(&server, &server.url()).await;
    let listener = server.sql("SELECT listener FROM leasehold_waiters");
    let began = Instant::now();
    let mut wakers = JoinSet::new();
    for _ in 0..3 {
        // Now and then the listener has just begun to sleep, or is about to wake.
        let wake = format!("CALL leasehold_wake('{listener}'); DO BENCHMARK(RAND() * 3000, 1);");
        let wake = wake.repeat(300);
        let server = Arc::clone(&server);
        wakers.spawn_blocking(move || server.sql(&wake));
    }
    while !wakers.is_empty() {
        assert_eq!(holder.inspect("x").await.unwrap().waiters.len(), 1);
        tokio::time::sleep(ms(10)).await;
        if let Some(done) = wakers.try_join_next() {
            done.unwrap();
        }
    }
    let took = began.elapsed();
    println!("900 wake-ups took {took:?}");
    assert!(took < SOON, "{took:?}");
    held.release().await.unwrap();
    is_served(waiting).await;
}

/// Nothing is believed that is not written where the lock is: whoever may only read, and call what others may call, grants nothing. It can take
/// locks of the server's own by their names, as anyone can, and so delay wake-ups.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_read_grants_nothing() {
    let server = MariadbServer::start();
    // Who encrypts differently has a listener of its own, like another process.
    let elsewhere = format!("{}?sslmode=disable", server.url());
    let (_holder, held, waiting) = held_and_waited_for(&server, &elsewhere).await;
    server.sql(
        "CREATE USER 'reader'@'%' IDENTIFIED BY 'p'; GRANT SELECT, EXECUTE, SHOW VIEW ON locks.* TO 'reader'@'%'",
    );
    let reader = |sql: &str| server.try_sql_of("reader", "p", sql);
    let waiter = reader("SELECT listener, number, HEX(claim) FROM leasehold_waiters").unwrap();
    let [listener, number, claim] = waiter.split('\t').collect::<Vec<_>>()[..] else {
        panic!("{waiter}");
    };
    let listens = server.sql(&format!("SELECT IS_USED_LOCK('leasehold-life:{listener}')"));
    for refused in [
        format!("KILL QUERY {listens}"),
        format!("KILL {listens}"),
        format!(
            "INSERT INTO leasehold_holders (name, claim, mode, token, since, expires_at, offered_to, number, ttl, owner, host, pid) \
             VALUES ('x', UNHEX('{claim}'), 0, 9007199254740991, 0, 9007199254740991, '{listener}', {number}, 60000, '', '', 1)"
        ),
        "DELETE FROM leasehold_holders".to_owned(),
        "UPDATE leasehold_tokens SET last = 9007199254740991".to_owned(),
        format!(
            "INSERT INTO leasehold_notices (listener, number, look_at) VALUES ('{listener}', {number}, 0)"
        ),
        format!("CALL leasehold_release('x', (SELECT claim FROM leasehold_holders), '{listener}')"),
        format!("CALL leasehold_force_release('x', '{listener}')"),
        format!("CALL leasehold_listen('{listener}', 60000, 0, 0, 0, 0, 0, '', '')"),
    ] {
        let said = reader(&refused).expect_err(&refused);
        assert!(
            said.contains("denied") || said.contains("not owner"),
            "{refused}: {said}"
        );
    }
    // It takes all names that it can.
    let names = format!(
        "DO GET_LOCK('leasehold:{listener}', 5), GET_LOCK('leasehold-life:{listener}', 1), SLEEP(60)"
    );
    let _names = server.session_of("reader", "p", &names);
    until("the reader has the name of the sleeper", async || {
        let has = format!("SELECT IS_USED_LOCK('leasehold:{listener}') IN (SELECT id FROM information_schema.processlist WHERE user = 'reader')");
        server.sql(&has) == "1"
    })
    .await;
    tokio::time::sleep(ms(1500)).await;
    assert!(!waiting.is_finished(), "two hold the lock");
    assert_eq!(held.state(), LeaseState::Held);
    let token = held.token();
    held.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(next.token() > token && next.token().get() < 9_007_199_254_740_000);
    next.release().await.unwrap();
}
