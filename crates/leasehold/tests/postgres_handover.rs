//! What becomes of a lock that was handed over, or granted, and nobody heard of it: on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::{Attempt, Contention, Wake};
use leasehold::{Claim, ClaimId, Claimant, Effect, LeaseState, LockName, Locks, Mode, Ttl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::postgres_server::{PostgresServer, Stop};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const LONG: Duration = Duration::from_secs(30);

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(ms(10)).await;
    }
}

async fn until_queued(locks: &Locks, count: usize) {
    until("they queue", async || {
        locks.show("x").await.unwrap().waiters.len() == count
    })
    .await;
}

fn claim() -> Claim {
    Claim {
        name: LockName::new("x").unwrap(),
        id: ClaimId::random().unwrap(),
        mode: Mode::Exclusive,
        ttl: Ttl::new(LONG).unwrap(),
        queues: true,
        claimant: Arc::new(Claimant::this_process()),
        reason: None,
    }
}

/// The lock goes to the one waiter and is broken before that one can have heard of it.
const HANDED_OVER_AND_BROKEN: &str = "SELECT leasehold.release(name, claim, NULL, NULL, NULL, 5000) FROM leasehold.holders; \
                                      SELECT leasehold.break_lock('x', 5000)";

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_hand_over_was_broken_is_served_at_once() {
    let server = PostgresServer::start();
    let holder = Locks::connect(server.url()).await.unwrap();
    let held = holder.lock("x").ttl(LONG).acquire().await.unwrap();
    // It asks for its hand-overs, and finds none.
    let asking = format!("{}?pooler=transaction", server.url());
    let asking = Locks::connect(&asking).await.unwrap();
    let waiting = tokio::spawn(async move {
        let lease = asking.lock("x").ttl(LONG).wait(LONG).acquire().await;
        lease.unwrap()
    });
    until_queued(&holder, 1).await;
    let began = Instant::now();
    server.sql(HANDED_OVER_AND_BROKEN);
    let lease = tokio::time::timeout(ms(5000), waiting).await;
    let lease = lease.expect("it was forgotten").unwrap();
    println!("served after {:?}", began.elapsed());
    assert!(lease.is_valid());
    held.detach();
}

/// Whether it has given up on messages.
fn asks(locks: &Locks) -> bool {
    let warnings = locks.warnings();
    warnings
        .iter()
        .any(|warning| warning.contains("no messages come"))
}

/// The release that another process sends.
const RELEASED_ELSEWHERE: &str = "SELECT (leasehold.release(name, claim, NULL, NULL, NULL, 5000)).was_held FROM leasehold.holders";

#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_another_process_is_heard_of_by_message() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let mut held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    for _ in 0..20 {
        let next = locks.lock("x").ttl(LONG).wait(LONG);
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        until_queued(&locks, 1).await;
        assert_eq!(server.sql(RELEASED_ELSEWHERE), "t");
        held.detach();
        held = next.await.unwrap();
    }
    // Had it been found by asking, it would say so by now.
    assert!(!asks(&locks));
    held.release().await.unwrap();
}

/// The answer to a release tells of the hand-over if it is to a waiter of the same process: so it needs no message.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_hears_of_its_own_hand_overs_while_no_message_comes_through() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = locks.lock("x").ttl(LONG).wait(LONG);
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_queued(&locks, 1).await;
    let listens =
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%beat(%' AND pid <> pg_backend_pid()";
    let listener = Pid::from_raw(server.sql(listens).parse().unwrap());
    kill(listener, Signal::SIGSTOP).unwrap();
    held.release().await.unwrap();
    let next = tokio::time::timeout(ms(5000), next).await;
    kill(listener, Signal::SIGCONT).unwrap();
    let next = next.expect("it was not told").unwrap();
    assert!(next.is_valid());
    next.release().await.unwrap();
}

/// One that was handed the lock, and has lost it since, does not wait any more: it is not to be offered it again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_was_lost_does_not_come_back_to_the_queue() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let (held, lapsed) = (claim(), claim());
    let granted = engine.try_acquire(&held).await.unwrap();
    assert!(matches!(granted, Attempt::Granted(_)));
    let queued = engine.try_acquire(&lapsed).await.unwrap();
    assert!(matches!(queued, Attempt::Held(_)));
    engine.release(&held).await.unwrap();
    until("the hand-over is heard of", async || {
        let woken = engine.wait(&lapsed, &Contention::default()).await;
        matches!(woken.unwrap(), Wake::Granted(_))
    })
    .await;
    // Its renewals do not come through, it counts as lost, and whoever had it takes a while to notice. This keeps the process alive:
    let other = locks.lock("y").ttl(LONG).acquire().await.unwrap();
    let waiting = locks.lock("y").wait(LONG);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    tokio::time::sleep(ms(800)).await;

    let far = Locks::connect(server.url()).await.unwrap();
    drop(far.lock("x").wait(LONG).acquire().await.unwrap());
    far.settle().await;
    let began = Instant::now();
    for _ in 0..10 {
        let lease = far.lock("x").wait(LONG).acquire().await.unwrap();
        lease.release().await.unwrap();
    }
    let took = began.elapsed();
    println!("10 cycles beside a hand-over that was lost: {took:?}");
    assert!(took < ms(2500), "{took:?}");
    assert_eq!(far.show("x").await.unwrap().waiters.len(), 0);
    other.release().await.unwrap();
    drop(waiting.await.unwrap());
}

/// One that could not hear in time asks again, and gets the lock in its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_offer_lapsed_is_told_at_once() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let (held, late) = (claim(), claim());
    engine.try_acquire(&held).await.unwrap();
    engine.try_acquire(&late).await.unwrap();
    // It has no time to listen just now.
    engine.release(&held).await.unwrap();
    tokio::time::sleep(ms(1500)).await;
    let seen = Contention::default();
    let woken = engine.wait(&late, &seen);
    let woken = tokio::time::timeout(ms(5000), woken).await;
    let woken = woken.expect("nobody told it").unwrap();
    assert!(matches!(woken, Wake::Retry), "it relied on an old offer");
    let again = engine.try_acquire(&late).await.unwrap();
    assert!(matches!(again, Attempt::Granted(_)));
    assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
}

/// Whoever finds that an offer has lapsed passes the lock on, also to its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_behind_a_lapsed_offer_is_served() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let (held, deaf) = (claim(), claim());
    engine.try_acquire(&held).await.unwrap();
    engine.try_acquire(&deaf).await.unwrap();
    let next = locks.lock("x").wait(LONG);
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_queued(&locks, 2).await;
    let began = Instant::now();
    engine.release(&held).await.unwrap();
    let next = tokio::time::timeout(ms(8000), next).await;
    assert!(next.expect("it was forgotten").unwrap().is_valid());
    println!("served behind a lapsed offer after {:?}", began.elapsed());
}

/// Every commit waits for a standby that there is not: what has been decided is not told.
fn hold_back_answers(server: &PostgresServer, hold_back: bool) {
    let standby = if hold_back { "nobody" } else { "" };
    server.sql(&format!(
        "ALTER SYSTEM SET synchronous_standby_names = '{standby}'"
    ));
    server.sql("SELECT pg_reload_conf()");
}

/// Ends those that have decided and could not say so, once they have.
async fn lose_the_answer(server: &PostgresServer) {
    until("a commit is held back", async || {
        let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        server.sql(ended) != "0"
    })
    .await;
    hold_back_answers(server, false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_answer_was_lost_is_found_again() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let second = Locks::connect(server.url()).await.unwrap();
    hold_back_answers(&server, true);
    let acquiring = tokio::spawn(async move { locks.lock("x").ttl(LONG).acquire().await });
    lose_the_answer(&server).await;
    let lease = acquiring.await.unwrap().unwrap();
    let rows = server.sql("SELECT token FROM leasehold.holders");
    assert_eq!(rows, lease.token().to_string(), "one grant, and one only");
    assert!(second.lock("x").try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
    assert!(second.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_whose_answer_was_lost_breaks_nobody_else() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = Locks::connect(server.url()).await.unwrap();
    let next = tokio::spawn(async move {
        let request = next.lock("x").ttl(LONG).wait(LONG);
        request.acquire().await.unwrap()
    });
    until_queued(&locks, 1).await;
    hold_back_answers(&server, true);
    let operator = Locks::connect(server.url()).await.unwrap();
    let breaking = tokio::spawn(async move { operator.break_lock("x").await });
    lose_the_answer(&server).await;
    let error = breaking.await.unwrap().expect_err("nobody knows");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    let next = next.await.unwrap();
    tokio::time::sleep(ms(1000)).await;
    assert_eq!(next.state(), LeaseState::Held);
    assert_eq!(
        server.sql("SELECT token FROM leasehold.holders"),
        next.token().to_string()
    );
    held.detach();
}

/// With a disk that is waited for, what was granted is still held after a crash at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_forgets_no_grant() {
    let server = PostgresServer::with(&["fsync=on"]);
    for round in 0..3 {
        let name = format!("x{round}");
        let locks = Locks::connect(server.url()).await.unwrap();
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        server.stop(Stop::Kill);
        server.revive();
        let other = Locks::connect(server.url()).await.unwrap();
        let taken = other.lock(&name).try_acquire().await.unwrap();
        assert!(taken.is_none(), "the grant was forgotten");
        let shown = other.show(&name).await.unwrap();
        assert_eq!(shown.holders[0].token, lease.token());
        until("it is renewed", async || lease.renew().await.is_ok()).await;
    }
}

/// A hand-over need not be on the disk: what a crash brings back excludes others for as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_a_hand_over_lets_nobody_in_beside_it() {
    // What is not waited for stays in memory.
    let server = PostgresServer::with(&["fsync=on", "wal_writer_delay=10s"]);
    let mut forgotten = 0;
    for _ in 0..4 {
        let locks = Locks::connect(server.url()).await.unwrap();
        let first = locks.lock("x").ttl(ms(3000)).acquire().await.unwrap();
        let next = locks.lock("x").ttl(ms(3000)).wait(LONG);
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        until_queued(&locks, 1).await;
        first.release().await.unwrap();
        let next = next.await.unwrap();
        server.stop(Stop::Kill);
        server.revive();
        let other = Locks::connect(server.url()).await.unwrap();
        let entering = other.lock("x").wait(LONG);
        let entering = tokio::spawn(async move { entering.acquire().await.unwrap() });
        let token = next.token();
        let lost = tokio::time::timeout(ms(2000), next.lost()).await;
        let other = if lost.is_ok() {
            forgotten += 1;
            let other = entering.await.unwrap();
            assert!(!next.is_valid(), "two hold the lock");
            other
        } else {
            assert!(!entering.is_finished(), "two hold the lock");
            next.release().await.unwrap();
            entering.await.unwrap()
        };
        assert!(other.token() > token);
        other.release().await.unwrap();
        locks.settle().await;
    }
    println!("{forgotten} of 4 hand-overs were forgotten");
}
