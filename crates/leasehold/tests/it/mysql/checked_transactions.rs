//! Transactions of the user's own that check the lease first, on a real MariaDB server.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::support::database_handover;
use crate::support::mariadb_server::MariadbServer;
use leasehold::Locks;
use leasehold::guard::sql::{CheckSql, MYSQL_STALE};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, OptsBuilder};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const TTL: Duration = ms(3000);

/// A session with an open transaction, on a table of the user's.
async fn begun(server: &MariadbServer) -> Conn {
    let opts = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port)
        .user(Some("root"))
        .db_name(Some("locks"));
    let mut sql = Conn::new(opts).await.unwrap();
    let table =
        "CREATE TABLE IF NOT EXISTS orders (id INT AUTO_INCREMENT PRIMARY KEY, written_by BIGINT)";
    sql.query_drop(table).await.unwrap();
    sql.query_drop("START TRANSACTION").await.unwrap();
    sql
}

async fn check(sql: &mut Conn, check: &CheckSql) -> Result<(), Error> {
    sql.exec_drop(check.statement(), check.parameters()).await
}

#[track_caller]
fn is_stale(checked: Result<(), Error>) {
    match checked {
        Err(Error::Server(said)) => assert_eq!(said.state, MYSQL_STALE, "{said}"),
        other => panic!("{other:?}"),
    }
}

async fn write_and_commit(sql: &mut Conn, by: &CheckSql) {
    let write = "INSERT INTO orders (written_by) VALUES (?)";
    sql.exec_drop(write, (by.parameters().1,)).await.unwrap();
    sql.query_drop("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_the_lock_no_more_is_refused() {
    let server = MariadbServer::start();
    let locks = Locks::connect(format!("{}?table=other", server.url()))
        .await
        .unwrap();
    let first = locks.lock("a").acquire().await.unwrap();
    let stale = first.check_sql().unwrap();
    first.release().await.unwrap();
    for next in [None, Some(locks.lock("a").acquire().await.unwrap())] {
        is_stale(check(&mut begun(&server).await, &stale).await);
        if let Some(next) = next {
            let mut sql = begun(&server).await;
            check(&mut sql, &next.check_sql().unwrap()).await.unwrap();
        }
    }
    // One whose time is over, though nobody has come after it.
    let short = locks.lock("b").ttl(ms(200)).acquire().await.unwrap();
    let over = short.check_sql().unwrap();
    short.detach();
    tokio::time::sleep(ms(300)).await;
    is_stale(check(&mut begun(&server).await, &over).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_transaction_hinders_no_renewal_or_other_lock() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("orders/42").ttl(TTL).acquire().await.unwrap();
    let mut sql = begun(&server).await;
    let checked = lease.check_sql().unwrap();
    check(&mut sql, &checked).await.unwrap();
    for _ in 0..16 {
        tokio::time::sleep(ms(250)).await;
        assert!(lease.is_valid());
        for other in ["orders/41", "orders/42/", "orders/43"] {
            let other = locks.lock(other).acquire().await.unwrap();
            other.release().await.unwrap();
        }
    }
    check(&mut sql, &checked).await.unwrap();
    write_and_commit(&mut sql, &checked).await;
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_before_the_transaction_has_ended() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("a").ttl(ms(2000)).acquire().await.unwrap();
    let slow = lease.check_sql().unwrap();
    let mut sql = begun(&server).await;
    check(&mut sql, &slow).await.unwrap();
    // Its process is stopped, say, and nobody renews it.
    lease.detach();
    let next = tokio::spawn(locks.lock("a").wait(ms(20_000)).acquire());
    tokio::time::sleep(ms(3500)).await;
    assert!(!next.is_finished());
    write_and_commit(&mut sql, &slow).await;
    let next = next.await.unwrap().unwrap();
    let mut after = begun(&server).await;
    is_stale(check(&mut begun(&server).await, &slow).await);
    let fresh = next.check_sql().unwrap();
    check(&mut after, &fresh).await.unwrap();
    write_and_commit(&mut after, &fresh).await;
    let written = server.sql("SELECT written_by FROM orders ORDER BY id");
    let by = |check: &CheckSql| check.parameters().1;
    assert_eq!(written, format!("{}\n{}", by(&slow), by(&fresh)));
}

/// What it reads is from before all renewals, and the lease is held.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_checks_late() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    let mut sql = begun(&server).await;
    let look = "SELECT COUNT(*) FROM leasehold_holders";
    sql.query_drop(look).await.unwrap();
    tokio::time::sleep(TTL * 2).await;
    let checked = lease.check_sql().unwrap();
    check(&mut sql, &checked).await.unwrap();
    write_and_commit(&mut sql, &checked).await;
    lease.release().await.unwrap();
    // One that began while the lease was held, and checks when another holds it.
    let first = locks.lock("a").acquire().await.unwrap();
    let mut sql = begun(&server).await;
    sql.query_drop(look).await.unwrap();
    let stale = first.check_sql().unwrap();
    first.release().await.unwrap();
    let _next = locks.lock("a").acquire().await.unwrap();
    is_stale(check(&mut sql, &stale).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_past_its_offer_holds_up_no_other_lock() {
    let server = MariadbServer::start();
    let check = async |token| {
        let mut session = begun(&server).await;
        let check = format!("CALL leasehold_check_lease('x', {token})");
        let checked = session.query_drop(check).await;
        checked.is_ok().then_some(session)
    };
    let commit = async |mut session: Conn| session.query_drop("COMMIT").await.unwrap();
    database_handover::a_transaction_that_outlasts_its_offer(&server.url(), check, commit).await;
}
