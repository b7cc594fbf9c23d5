//! A lock that is passed on within a process before the server has heard of it: on a real server.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use leasehold::guard::sql::CheckSql;
use leasehold::{Lease, LeaseState, Locks, LossReason};
use support::postgres_server::PostgresServer;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const LONG: Duration = Duration::from_secs(30);

/// Another process, as far as the server can tell.
async fn another(server: &PostgresServer) -> Locks {
    let url = format!("{}?connect_timeout=6s", server.url());
    Locks::connect(url).await.unwrap()
}

/// The next in the queue.
async fn waits(locks: &Locks) -> JoinHandle<Lease> {
    let before = locks.show("x").await.unwrap().waiters.len();
    let request = locks.lock("x").ttl(LONG).wait(LONG);
    let waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
    while locks.show("x").await.unwrap().waiters.len() <= before {
        tokio::time::sleep(ms(5)).await;
    }
    waiting
}

/// One that was handed the lock, and knows who comes after it.
async fn handed_over(locks: &Locks) -> (Lease, JoinHandle<Lease>) {
    let first = locks.lock("x").ttl(LONG).acquire().await.unwrap();
    let (second, third) = (waits(locks).await, waits(locks).await);
    first.release().await.unwrap();
    (second.await.unwrap(), third)
}

/// A session in a transaction that keeps the lock's turn: the server decides nothing about it meanwhile.
async fn undecided(server: &PostgresServer) -> Client {
    let session = begun(server).await;
    let turn = "SELECT pg_advisory_xact_lock(1818583923, hashtext('x'))";
    session.batch_execute(turn).await.unwrap();
    session
}

async fn begun(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    client
}

async fn check(session: &Client, check: &CheckSql) -> bool {
    let (name, token) = check.parameters();
    let checked = session.execute(check.statement(), &[&name, &token]).await;
    checked.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_begins_before_the_server_has_heard_and_is_then_agreed_to() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let far = another(&server).await;
    let (second, third) = handed_over(&locks).await;
    let undecided = undecided(&server).await;
    let token = second.token();
    let releasing = tokio::spawn(second.release());
    let third = third.await.unwrap();
    assert!(third.token() > token);
    assert!(!releasing.is_finished(), "the server was not kept from it");
    // The user's own transactions may rely on it already.
    let session = begun(&server).await;
    assert!(check(&session, &third.check_sql().unwrap()).await);
    session.batch_execute("COMMIT").await.unwrap();
    undecided.batch_execute("COMMIT").await.unwrap();
    releasing.await.unwrap().unwrap();
    // Each token that may be in use is waited for, should the lock be taken from its holder.
    let reserved = server.sql("SELECT reserved - token FROM leasehold.holders");
    assert!(reserved.parse::<u64>().unwrap() < 100, "{reserved}");
    // For longer than anybody relies on a lock that was only handed over.
    tokio::time::sleep(ms(1500)).await;
    assert_eq!(third.state(), LeaseState::Held);
    assert!(far.lock("x").try_acquire().await.unwrap().is_none());
    let shown = locks.show("x").await.unwrap();
    assert_eq!(shown.holders[0].token, third.token());
    third.release().await.unwrap();
    assert!(far.lock("x").try_acquire().await.unwrap().is_some());
}

/// A lease that a transaction relies on is not passed on before that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_begins_while_the_transaction_of_the_last_one_is_open() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let (second, third) = handed_over(&locks).await;
    let session = begun(&server).await;
    assert!(check(&session, &second.check_sql().unwrap()).await);
    let releasing = tokio::spawn(second.release());
    tokio::time::sleep(ms(300)).await;
    assert!(!third.is_finished());
    session.batch_execute("COMMIT").await.unwrap();
    releasing.await.unwrap().unwrap();
    third.await.unwrap().release().await.unwrap();
}

/// Transactions that check by themselves, of which the library knows nothing, come one after the other at least.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_check_by_themselves_come_one_after_the_other() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let check =
        |token: leasehold::FencingToken| format!("SELECT leasehold.check_lease('x', {token})");
    let (second, third) = handed_over(&locks).await;
    let session = begun(&server).await;
    let checked = session.batch_execute(&check(second.token())).await;
    checked.unwrap();
    let releasing = tokio::spawn(second.release());
    let third = third.await.unwrap();
    let after = begun(&server).await;
    let next = check(third.token());
    let waiting = tokio::spawn(async move { after.batch_execute(&next).await });
    tokio::time::sleep(ms(100)).await;
    assert!(!waiting.is_finished());
    session.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap().unwrap();
    releasing.await.unwrap().unwrap();
    third.release().await.unwrap();
}

/// What the server does not know of yet is not renewed there: it would say that it is lost.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_wait_until_the_server_has_heard() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let mut renewed = 0;
    for _ in 0..5 {
        let (second, third) = handed_over(&locks).await;
        let undecided = undecided(&server).await;
        let releasing = tokio::spawn(second.release());
        let third = third.await.unwrap();
        // A renewal is due by now.
        tokio::time::sleep(ms(200)).await;
        undecided.batch_execute("COMMIT").await.unwrap();
        let _ = releasing.await.unwrap();
        match tokio::time::timeout(ms(1000), third.lost()).await {
            // On a machine that is busy.
            Ok(reason) => assert!(matches!(reason, LossReason::Expired { .. }), "{reason:?}"),
            Err(_) => renewed += 1,
        }
        drop(third);
        locks.settle().await;
    }
    println!("{renewed} of 5 were renewed");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_lost_in_time_if_the_server_is_not_heard_from() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let (second, third) = handed_over(&locks).await;
    let undecided = undecided(&server).await;
    let began = Instant::now();
    let releasing = tokio::spawn(second.release());
    let third = third.await.unwrap();
    third.lost().await;
    assert!(!third.is_valid());
    assert!(began.elapsed() < ms(1500), "{:?}", began.elapsed());
    undecided.batch_execute("COMMIT").await.unwrap();
    let _ = releasing.await.unwrap();
    let far = another(&server).await;
    let token = third.token();
    drop(third);
    let next = far.lock("x").wait(LONG).acquire().await.unwrap();
    assert!(next.token() > token);
}

/// A crash empties the table of those who wait; whoever has begun is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_begun_is_agreed_to_although_the_queue_is_gone() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let far = another(&server).await;
    let (second, third) = handed_over(&locks).await;
    server.sql("DELETE FROM leasehold.waiters");
    second.release().await.unwrap();
    let third = third.await.unwrap();
    for _ in 0..15 {
        assert!(far.lock("x").try_acquire().await.unwrap().is_none());
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(third.state(), LeaseState::Held);
    third.release().await.unwrap();
    assert!(far.lock("x").try_acquire().await.unwrap().is_some());
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

/// Whoever was let in may have given up by then; the lock goes on, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_give_up_meanwhile_do_not_stop_it() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    for round in 0..20 {
        let (second, third) = handed_over(&locks).await;
        let (fourth, fifth) = (waits(&locks).await, waits(&locks).await);
        let releasing = tokio::spawn(second.release());
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        third.abort();
        fourth.abort();
        releasing.await.unwrap().unwrap();
        for stopped in [third, fourth] {
            // It may have come in before.
            if let Ok(lease) = stopped.await {
                lease.release().await.unwrap();
            }
        }
        let fifth = tokio::time::timeout(ms(5000), fifth).await;
        fifth.unwrap().unwrap().release().await.unwrap();
        locks.settle().await;
    }
}
