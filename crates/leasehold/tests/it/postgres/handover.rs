//! What becomes of a lock that was handed over, or granted, and nobody heard of it: on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::database_handover::{self, LONG, claim, until, until_queued};
use crate::support::postgres_server::{PostgresServer, Stop};
use leasehold::guard::Fenced;
use leasehold::{Effect, FencingToken, Lease, LeaseState, Locks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The lock goes to the one waiter and is broken before that one can have heard of it.
const HANDED_OVER_AND_BROKEN: &str = "SELECT leasehold.release(name, claim, NULL, 5000) FROM leasehold.holders; \
                                      SELECT leasehold.force_release('x', 5000)";

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
const RELEASED_ELSEWHERE: &str =
    "SELECT (leasehold.release(name, claim, NULL, 5000)).was_held FROM leasehold.holders";

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
async fn own_hand_overs_are_heard_without_messages() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = locks.lock("x").ttl(LONG).wait(LONG);
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_queued(&locks, 1).await;
    // Calls of its own take another connection than the one that listens.
    let calls = (0..8).map(|_| locks.inspect("x"));
    futures_util::future::try_join_all(calls).await.unwrap();
    let listens = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted";
    let listener = Pid::from_raw(server.sql(listens).parse().unwrap());
    kill(listener, Signal::SIGSTOP).unwrap();
    held.release().await.unwrap();
    let next = tokio::time::timeout(ms(5000), next).await;
    kill(listener, Signal::SIGCONT).unwrap();
    let next = next.expect("it was not told").unwrap();
    assert!(next.is_valid());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_offer_does_not_return_to_the_queue() {
    let server = PostgresServer::start();
    database_handover::a_hand_over_that_was_lost(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_that_is_left_leaves_nothing_in_this_process() {
    let server = PostgresServer::start();
    database_handover::a_queue_that_is_left(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_have_left_are_not_offered_the_lock() {
    let server = PostgresServer::start();
    database_handover::waiters_that_have_left(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_behind_one_that_leaves_is_let_in() {
    let server = PostgresServer::start();
    database_handover::a_waiter_behind_one_that_leaves(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_that_came_back_elsewhere_is_not_given_up() {
    let server = PostgresServer::start();
    database_handover::a_waiter_that_came_back_elsewhere(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_offer_lapsed_is_told_at_once() {
    let server = PostgresServer::start();
    database_handover::an_offer_that_lapsed(&server.url()).await;
}

/// Whoever finds that an offer has lapsed passes the lock on, also to its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_behind_a_lapsed_offer_is_served() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let engine = locks.engine();
    let (held, unaware) = (claim(), claim());
    engine.try_acquire(&held).await.unwrap();
    engine.try_acquire(&unaware).await.unwrap();
    let next = locks.lock("x").wait(LONG);
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_queued(&locks, 2).await;
    let began = Instant::now();
    engine.release(&held).await.unwrap();
    let next = tokio::time::timeout(ms(8000), next).await;
    assert!(next.expect("it was forgotten").unwrap().is_valid());
    println!("served behind a lapsed offer after {:?}", began.elapsed());
}

/// A server where the commits of one role wait for a standby that there is not: what has been decided is not told.
fn with_a_role_that_is_not_told() -> PostgresServer {
    let settings = [
        "synchronous_standby_names=nobody",
        "synchronous_commit=local",
    ];
    let server = PostgresServer::with(&settings);
    server.sql("CREATE ROLE untold SUPERUSER LOGIN");
    server
}

/// Its connections, from now on.
async fn connect_untold(server: &PostgresServer) -> Locks {
    server.sql("ALTER ROLE untold SET synchronous_commit = 'on'");
    let url = server.url_of("untold", "p", "postgres");
    Locks::connect(url).await.unwrap()
}

/// Ends those that have decided and could not say so, once they have. What is repeated is told.
async fn lose_the_answer(server: &PostgresServer) {
    let held_back = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until("a commit is held back", async || {
        server.sql(&format!("SELECT count(*) {held_back}")) != "0"
    })
    .await;
    server.sql("ALTER ROLE untold SET synchronous_commit = 'local'");
    server.sql(&format!("SELECT pg_terminate_backend(pid) {held_back}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_answer_was_lost_is_found_again() {
    let server = with_a_role_that_is_not_told();
    let second = Locks::connect(server.url()).await.unwrap();
    let locks = connect_untold(&server).await;
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
    let server = with_a_role_that_is_not_told();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = Locks::connect(server.url()).await.unwrap();
    let next = tokio::spawn(async move {
        let request = next.lock("x").ttl(LONG).wait(LONG);
        request.acquire().await.unwrap()
    });
    until_queued(&locks, 1).await;
    let operator = connect_untold(&server).await;
    let breaking = tokio::spawn(async move { operator.force_release("x").await });
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

/// A standby that has taken the place of this server decides about the lock by itself: what it does not know of is not handed out here.
#[tokio::test(flavor = "multi_thread")]
async fn offer_waits_for_a_synchronous_standby() {
    let server = with_a_role_that_is_not_told();
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = claim();
    locks.engine().try_acquire(&held).await.unwrap();
    let next = locks.lock("x").ttl(LONG).wait(LONG);
    let next = tokio::spawn(async move { next.acquire().await.unwrap() });
    until_queued(&locks, 1).await;
    let untold = connect_untold(&server).await;
    let releasing = tokio::spawn(async move { untold.engine().release(&held).await });
    until("the release is held back", async || {
        assert!(!releasing.is_finished(), "it did not wait");
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") != "0"
    })
    .await;
    assert!(!next.is_finished(), "the offer was handed out");
    lose_the_answer(&server).await;
    assert!(next.await.unwrap().is_valid());
    // The repetition cannot tell whether the claim had held the lock.
    if let Err(error) = releasing.await.unwrap() {
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
    }
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
        let shown = other.inspect(&name).await.unwrap();
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
        locks.flush().await;
    }
    println!("{forgotten} of 4 hand-overs were forgotten");
}

/// The functions on the lock `x`, called in an order of the test's own, on a server where what nobody waits for stays in memory.
struct ByHand(PostgresServer);

impl ByHand {
    async fn start() -> Self {
        let server = PostgresServer::with(&["fsync=on", "wal_writer_delay=10s"]);
        drop(Locks::connect(server.url()).await.unwrap());
        let by_hand = Self(server);
        by_hand.beat();
        by_hand
    }

    /// The listener `l` is alive.
    fn beat(&self) {
        let beat = "SELECT leasehold.beat('l', false, 60000, '{x}', 5000)";
        self.0.sql(beat);
    }

    fn acquire(&self, claim: &str, listener: &str) -> String {
        self.0.sql(&format!(
            "SELECT (leasehold.acquire('x', '{claim}', 0, 60000, {listener}, 1, 'o', 'h', 1, NULL, NULL, 5000)).outcome"
        ))
    }

    fn release(&self, claim: &str) -> String {
        let release = format!("SELECT (leasehold.release('x', '{claim}', 'l', 5000)).was_held");
        self.0.sql(&release)
    }

    fn holder(&self) -> String {
        let holder = "SELECT convert_from(claim, 'UTF8') FROM leasehold.holders";
        self.0.sql(holder)
    }

    fn crash(&self) {
        self.0.stop(Stop::Kill);
        self.0.revive();
    }
}

/// What a crash brings back is any prefix of what was decided: also a holder in the middle of a chain.
#[tokio::test(flavor = "multi_thread")]
async fn crash_within_a_chain_of_offers_ends_none_early() {
    let by_hand = ByHand::start().await;
    assert_eq!(by_hand.acquire("first", "NULL"), "granted");
    assert_eq!(by_hand.acquire("second", "'l'"), "held");
    assert_eq!(by_hand.acquire("third", "'l'"), "held");
    assert_eq!(by_hand.release("first"), "t");
    assert_eq!(by_hand.holder(), "second");
    let server = &by_hand.0;
    let ends = server.sql("SELECT expires_at FROM leasehold.holders");
    // What has been decided so far is written, and nothing that follows unless someone asks for it.
    server.sql("CREATE TABLE flushed ()");
    tokio::time::sleep(ms(300)).await;
    by_hand.release("second");
    assert_eq!(by_hand.holder(), "third");
    by_hand.crash();
    // It waits again, as far as it knows without a break.
    by_hand.beat();
    println!("the crash has brought back {}", by_hand.holder());
    // When the second's offer ends, the third still relies on its own.
    let left = format!("SELECT (leasehold.expire('x', NULL, '{ends}', '{ends}')).claim IS NULL");
    assert_eq!(server.sql(&left), "f", "the lock is free while it is held");
    assert_eq!(by_hand.acquire("other", "NULL"), "held");
}

/// The waiter's process has died before it heard of the offer, and its row was removed with those of others that are gone.
#[tokio::test(flavor = "multi_thread")]
async fn offer_to_a_listener_that_was_removed_ends_in_time() {
    let by_hand = ByHand::start().await;
    assert_eq!(by_hand.acquire("first", "NULL"), "granted");
    assert_eq!(by_hand.acquire("second", "'l'"), "held");
    assert_eq!(by_hand.release("first"), "t");
    assert_eq!(by_hand.holder(), "second");
    by_hand.0.sql("DELETE FROM leasehold.listeners");
    tokio::time::sleep(ms(600)).await;
    assert_eq!(by_hand.acquire("other", "NULL"), "granted");
}

/// Whoever asks for a lock removes an offer that has ended, also if the attempt is refused or is a repetition: the permit goes to the next waiter.
#[tokio::test(flavor = "multi_thread")]
async fn permit_of_an_ended_offer_goes_to_the_next() {
    let by_hand = ByHand::start().await;
    let permit = |claim: &str, of: u32, listener: &str| {
        by_hand.0.sql(&format!(
            "SELECT (leasehold.acquire('x', '{claim}', {of}, 60000, {listener}, 1, 'o', 'h', 1, NULL, NULL, 5000)).outcome"
        ))
    };
    for (asks, of, outcome) in [("another", 3, "mismatch"), ("first", 2, "granted")] {
        assert_eq!(permit("first", 2, "NULL"), "granted");
        assert_eq!(permit("second", 2, "NULL"), "granted");
        assert_eq!(permit("third", 2, "'l'"), "held");
        assert_eq!(permit("fourth", 2, "'l'"), "held");
        assert_eq!(by_hand.release("second"), "t");
        let server = &by_hand.0;
        let ended = "UPDATE leasehold.holders SET expires_at = now() WHERE offered RETURNING convert_from(claim, 'UTF8')";
        assert!(server.sql(ended).starts_with("third"));
        assert_eq!(permit(asks, of, "NULL"), outcome);
        let offered = "SELECT convert_from(claim, 'UTF8') FROM leasehold.holders WHERE offered";
        assert_eq!(server.sql(offered), "fourth", "{asks}");
        server.sql("TRUNCATE leasehold.holders, leasehold.waiters");
    }
}

/// The same where nobody has listened since a crash: the offers made meanwhile last longer, those after the first beat do not.
#[tokio::test(flavor = "multi_thread")]
async fn offers_end_in_time_once_a_crash_was_noticed() {
    let by_hand = ByHand::start().await;
    by_hand.crash();
    by_hand.beat();
    assert_eq!(by_hand.acquire("first", "NULL"), "granted");
    assert_eq!(by_hand.acquire("second", "'l'"), "held");
    assert_eq!(by_hand.release("first"), "t");
    by_hand.0.sql("DELETE FROM leasehold.listeners");
    tokio::time::sleep(ms(600)).await;
    assert_eq!(by_hand.acquire("other", "NULL"), "granted");
}

/// A release whose answer was lost is sent again, perhaps by another process. If a crash has forgotten the first one, the waiter that was offered the lock still
/// relies on that.
#[tokio::test(flavor = "multi_thread")]
async fn release_repeated_after_a_crash_frees_nothing_early() {
    let by_hand = ByHand::start().await;
    assert_eq!(by_hand.acquire("first", "NULL"), "granted");
    assert_eq!(by_hand.acquire("second", "'l'"), "held");
    assert_eq!(by_hand.release("first"), "t");
    assert_eq!(by_hand.holder(), "second");
    by_hand.crash();
    assert_eq!(by_hand.holder(), "first", "the crash has forgotten nothing");
    // This one waits, and knows of no end of the lock but that of the first's TTL.
    assert_eq!(by_hand.acquire("third", "'l'"), "held");
    assert_eq!(by_hand.release("first"), "t");
    assert_eq!(by_hand.holder(), "first", "granted beside the second");
    let told = "SELECT look_at <= clock_timestamp() + interval '500 ms' FROM leasehold.waiters";
    assert_eq!(by_hand.0.sql(told), "t", "the third does not know");
    assert_eq!(by_hand.acquire("other", "NULL"), "held");
    tokio::time::sleep(ms(600)).await;
    assert_eq!(by_hand.acquire("third", "'l'"), "granted");
    // No lock that was granted since is kept for longer than it is held.
    assert_eq!(by_hand.release("third"), "t");
    assert_eq!(by_hand.acquire("other", "NULL"), "granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn guarded_write_is_sent_once_if_its_answer_is_lost() {
    let server = with_a_role_that_is_not_told();
    let store = Locks::connect(server.url()).await.unwrap().store().unwrap();
    let token = FencingToken::new(7).unwrap();
    store.write_fenced("k", "v", token).await.unwrap();
    for is_fenced in [true, false] {
        let untold = connect_untold(&server).await.store().unwrap();
        let written = tokio::spawn(async move {
            match is_fenced {
                true => untold.write_fenced("k", "1", token).await.map(drop),
                false => untold.write_if("n", "1", None).await.map(drop),
            }
        });
        lose_the_answer(&server).await;
        let error = written.await.unwrap().expect_err("nobody knows");
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
    }
    let version = store.read("k").await.unwrap().unwrap().version;
    let again = store.write_fenced("k", "2", token).await.unwrap();
    let Fenced::Written { version: next } = again else {
        panic!("{again:?}");
    };
    assert_eq!(next.get(), version.get() + 1);
}

/// A renewal takes no turn: a sweep that waits for it must see what it has done.
#[tokio::test(flavor = "multi_thread")]
async fn sweep_leaves_a_lease_that_is_being_renewed() {
    let server = Arc::new(PostgresServer::start());
    drop(Locks::connect(server.url()).await.unwrap());
    server.sql(
        "SELECT leasehold.acquire('x', 'c', 0, 2000, NULL, NULL, 'o', 'h', 1, NULL, NULL, 5000)",
    );
    let renewing = std::thread::spawn({
        let server = Arc::clone(&server);
        move || {
            server.sql(
                "BEGIN; SELECT token FROM leasehold.renew('{x}', '{c}', '{60000}', '{f}', 5000); \
                 SELECT pg_sleep(14); COMMIT",
            )
        }
    });
    // By now the row of before looks as if nobody had used it for ten seconds.
    tokio::time::sleep(ms(12_500)).await;
    server.sql("SELECT leasehold.forget('{x}', clock_timestamp())");
    let renewed = renewing.join().unwrap();
    assert!(!renewed.is_empty(), "it was not renewed");
    let held = "SELECT count(*) FROM leasehold.holders WHERE claim = 'c'";
    assert_eq!(server.sql(held), "1", "the lease was swept away");
}

/// Another process, as far as the server can tell.
async fn another(server: &PostgresServer) -> Locks {
    let url = format!("{}?connect_timeout=6s", server.url());
    Locks::connect(url).await.unwrap()
}

/// The next in the queue.
async fn waits(locks: &Locks) -> JoinHandle<Lease> {
    let before = locks.inspect("x").await.unwrap().waiters.len();
    let request = locks.lock("x").ttl(LONG).wait(LONG);
    let waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
    until_queued(locks, before + 1).await;
    waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_came_first_goes_first_whatever_its_process() {
    let server = PostgresServer::start();
    let here = Locks::connect(server.url()).await.unwrap();
    let there = another(&server).await;
    let first = here.lock("x").ttl(LONG).acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let order = [&here, &here, &here, &there, &here, &there, &there, &here];
    for (nth, locks) in order.into_iter().enumerate() {
        let (waiting, tell) = (waits(locks).await, tell.clone());
        tokio::spawn(async move {
            let lease = waiting.await.unwrap();
            tell.send((nth, lease.token())).unwrap();
            lease.release().await.unwrap();
        });
    }
    drop(tell);
    let mut last = first.token();
    first.release().await.unwrap();
    let mut nths = Vec::new();
    while let Some((nth, token)) = told.recv().await {
        assert!(token > last, "tokens go back");
        last = token;
        nths.push(nth);
    }
    assert_eq!(nths, (0..order.len()).collect::<Vec<_>>());
}

/// Whoever was handed the lock may be giving up just then; the lock goes on.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_give_up_meanwhile_do_not_stop_it() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    for round in 0..20 {
        let first = locks.lock("x").ttl(LONG).acquire().await.unwrap();
        let (second, third, fourth) = (
            waits(&locks).await,
            waits(&locks).await,
            waits(&locks).await,
        );
        let releasing = tokio::spawn(first.release());
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        second.abort();
        third.abort();
        releasing.await.unwrap().unwrap();
        for stopped in [second, third] {
            // It may have come in before.
            if let Ok(lease) = stopped.await {
                lease.release().await.unwrap();
            }
        }
        let fourth = tokio::time::timeout(ms(5000), fourth).await;
        fourth.unwrap().unwrap().release().await.unwrap();
        locks.flush().await;
    }
}

/// A sweep removes the row of a dead waiter without the lock's turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_waiter_that_is_swept_meanwhile_hides_nobody() {
    let server = Arc::new(PostgresServer::start());
    let locks = Locks::connect(server.url()).await.unwrap();
    let ttl = Duration::from_secs(120);
    let held = locks.lock("x").ttl(ttl).acquire().await.unwrap();
    server.sql(
        "INSERT INTO leasehold.waiters (name, claim, mode, ttl, since, listener, number, owner, host, pid) \
         VALUES ('x', 'dead', 0, 120000, now() - interval '1 minute', 'gone', 1, 'o', 'h', 1)",
    );
    let waiting = tokio::spawn(locks.lock("x").ttl(ttl).wait_forever().acquire());
    while server.sql("SELECT count(*) FROM leasehold.waiters") != "2" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sweeping = std::thread::spawn({
        let server = Arc::clone(&server);
        move || {
            server.sql(
                "BEGIN; DELETE FROM leasehold.waiters WHERE claim = 'dead'; SELECT pg_sleep(1); COMMIT",
            )
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    held.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let next = next.expect("it stands still").unwrap().unwrap();
    next.release().await.unwrap();
    sweeping.join().unwrap();
}
