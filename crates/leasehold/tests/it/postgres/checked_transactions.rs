//! Transactions of the user's own that check the lease first, on a real PostgreSQL server.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::support::database_handover;
use crate::support::postgres_server::PostgresServer;
use leasehold::guard::sql::{CheckSql, POSTGRES_STALE};
use leasehold::{ErrorKind, Locks};
use tokio_postgres::{Client, Error, NoTls};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const TTL: Duration = ms(3000);

/// A session with an open transaction, on a table of the user's.
async fn begun(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let table = "CREATE TABLE IF NOT EXISTS orders (written_by bigint); BEGIN";
    client.batch_execute(table).await.unwrap();
    client
}

async fn check(client: &Client, check: &CheckSql) -> Result<(), Error> {
    let (name, token) = check.parameters();
    let checked = client.execute(check.statement(), &[&name, &token]).await;
    checked.map(|_| ())
}

async fn write_and_commit(client: &Client, by: &CheckSql) {
    let write = format!("INSERT INTO orders VALUES ({}); COMMIT", by.parameters().1);
    client.batch_execute(&write).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_the_lock_no_more_is_refused() {
    let server = PostgresServer::start();
    let locks = Locks::connect(format!("{}?schema=other", server.url()))
        .await
        .unwrap();
    let first = locks.lock("a").acquire().await.unwrap();
    let stale = first.check_sql().unwrap();
    first.release().await.unwrap();
    for next in [None, Some(locks.lock("a").acquire().await.unwrap())] {
        let error = check(&begun(&server).await, &stale).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), POSTGRES_STALE, "{error}");
        if let Some(next) = next {
            let sql = begun(&server).await;
            check(&sql, &next.check_sql().unwrap()).await.unwrap();
        }
    }
    // One whose time is over, though nobody has come after it.
    let short = locks.lock("b").ttl(ms(200)).acquire().await.unwrap();
    let over = short.check_sql().unwrap();
    short.detach();
    tokio::time::sleep(ms(300)).await;
    let error = check(&begun(&server).await, &over).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), POSTGRES_STALE, "{error}");

    let memory = Locks::connect("memory:").await.unwrap();
    let lease = memory.lock("a").acquire().await.unwrap();
    let error = lease.check_sql().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_transaction_hinders_no_renewal_or_other_lock() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("orders/42").ttl(TTL).acquire().await.unwrap();
    let sql = begun(&server).await;
    let checked = lease.check_sql().unwrap();
    check(&sql, &checked).await.unwrap();
    for _ in 0..16 {
        tokio::time::sleep(ms(250)).await;
        assert!(lease.is_valid());
        for other in ["orders/41", "orders/42/", "orders/43"] {
            let other = locks.lock(other).acquire().await.unwrap();
            other.release().await.unwrap();
        }
    }
    check(&sql, &checked).await.unwrap();
    write_and_commit(&sql, &checked).await;
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_before_the_transaction_has_ended() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("a").ttl(ms(2000)).acquire().await.unwrap();
    let slow = lease.check_sql().unwrap();
    let sql = begun(&server).await;
    check(&sql, &slow).await.unwrap();
    // Its process is stopped, say, and nobody renews it.
    lease.detach();
    let next = tokio::spawn(locks.lock("a").wait(ms(20_000)).acquire());
    tokio::time::sleep(ms(3500)).await;
    assert!(!next.is_finished());
    write_and_commit(&sql, &slow).await;
    let next = next.await.unwrap().unwrap();
    let after = begun(&server).await;
    let late = check(&begun(&server).await, &slow).await.unwrap_err();
    assert_eq!(late.code().unwrap().code(), POSTGRES_STALE, "{late}");
    let fresh = next.check_sql().unwrap();
    check(&after, &fresh).await.unwrap();
    write_and_commit(&after, &fresh).await;
    let written = server.sql("SELECT written_by FROM orders");
    let by = |check: &CheckSql| check.parameters().1;
    assert_eq!(written, format!("{}\n{}", by(&slow), by(&fresh)));
}

/// A transaction that sees the past does not take it for the present.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_an_old_view_is_refused() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    server.sql("CREATE TABLE orders (written_by bigint)");
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let lease = locks.lock("a").ttl(ms(20_000)).acquire().await.unwrap();
        let old = lease.check_sql().unwrap();
        let [gone, live] = [begun(&server).await, begun(&server).await];
        for sql in [&gone, &live] {
            let view = format!("COMMIT; BEGIN ISOLATION LEVEL {isolation}; SELECT * FROM orders");
            sql.batch_execute(&view).await.unwrap();
        }
        check(&live, &old).await.unwrap();
        // Renewals go on beside it.
        let renewed = tokio::time::timeout(ms(3000), lease.renew()).await;
        renewed.unwrap().unwrap();
        live.batch_execute("COMMIT").await.unwrap();
        lease.release().await.unwrap();
        let next = locks.lock("a").acquire().await.unwrap();
        check(&gone, &old).await.unwrap_err();
        next.release().await.unwrap();
    }
}

/// A release waits for the transaction, whether the library knows of it or it calls the function by itself; and so does the next in line.
#[tokio::test(flavor = "multi_thread")]
async fn waiter_enters_after_the_last_holders_transaction() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    for by_itself in [false, true] {
        let held = locks.lock("x").acquire().await.unwrap();
        let next = locks.lock("x").wait(ms(20_000));
        let next = tokio::spawn(async move { next.acquire().await.unwrap() });
        while locks.inspect("x").await.unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
        let session = begun(&server).await;
        if by_itself {
            let sql = format!("SELECT leasehold.check_lease('x', {})", held.token());
            session.batch_execute(&sql).await.unwrap();
        } else {
            check(&session, &held.check_sql().unwrap()).await.unwrap();
        }
        let releasing = tokio::spawn(held.release());
        tokio::time::sleep(ms(300)).await;
        assert!(!next.is_finished());
        session.batch_execute("COMMIT").await.unwrap();
        releasing.await.unwrap().unwrap();
        next.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_past_its_offer_holds_up_no_other_lock() {
    let server = PostgresServer::start();
    let check = async |token| {
        let session = begun(&server).await;
        let check = format!("SELECT leasehold.check_lease('x', {token})");
        let checked = session.batch_execute(&check).await;
        checked.is_ok().then_some(session)
    };
    let commit = async |session: Client| session.batch_execute("COMMIT").await.unwrap();
    database_handover::a_transaction_that_outlasts_its_offer(&server.url(), check, commit).await;
}
