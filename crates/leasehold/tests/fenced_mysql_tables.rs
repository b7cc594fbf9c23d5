//! Tables of the user's own that refuse stale tokens, in MariaDB.

#![allow(clippy::unwrap_used)]

mod support;

use leasehold::guard::sql::{Dialect, FenceTable, MYSQL_STALE};
use leasehold::{ErrorKind, Locks};
use support::mariadb_server::MariadbServer;

#[tokio::test(flavor = "multi_thread")]
async fn mysql_refuses_a_lower_token_whoever_sends_it() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    server.sql("CREATE TABLE orders (id INT PRIMARY KEY, state TEXT); INSERT INTO orders VALUES (1, 'new'), (2, 'new')");
    locks.fence_table("orders", None).await.unwrap();
    locks.fence_table("locks.orders", None).await.unwrap();
    let first = locks.lock("orders").acquire().await.unwrap();
    let stale = first.fence_sql(Dialect::Mysql);
    first.release().await.unwrap();
    let second = locks.lock("orders").acquire().await.unwrap();
    let fresh = second.fence_sql(Dialect::Mysql);
    let update = |state: &str, set: String, condition: String| {
        format!(
            "UPDATE orders SET state = '{state}', {set} WHERE id = 1 {condition}; SELECT ROW_COUNT()"
        )
    };
    for state in ["paid", "sent"] {
        let holds = format!("AND {}", fresh.holds());
        assert_eq!(server.sql(&update(state, fresh.set(), holds)), "1");
    }
    let late = server.try_sql(&update("late", stale.set(), String::new()));
    let error = late.unwrap_err();
    assert!(error.contains(MYSQL_STALE), "{error}");
    let holds = format!("AND {}", stale.holds());
    assert_eq!(server.sql(&update("late", stale.set(), holds)), "0");
    assert_eq!(server.sql("SELECT state FROM orders WHERE id = 1"), "sent");
    // Rows that nobody has written under the lock yet take any token.
    server.sql(&format!("UPDATE orders SET {} WHERE id = 2", stale.set()));
    locks.unfence_table("orders", None).await.unwrap();
    let gone = server.try_sql("UPDATE orders SET fencing_token = 1");
    assert!(gone.is_err(), "the column is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_takes_odd_names_and_the_printed_sql_and_says_what_is_wrong() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let odd = "or`ders'; DROP TABLE safe; -- ";
    let odd = odd.trim_end();
    let quoted = format!("`{}`", odd.replace('`', "``"));
    server.sql(&format!(
        "CREATE TABLE safe (x INT); CREATE TABLE {quoted} (id INT); INSERT INTO {quoted} VALUES (1)"
    ));
    locks.fence_table(odd, Some("to`ken")).await.unwrap();
    server.sql(&format!("UPDATE {quoted} SET `to``ken` = 5"));
    assert!(
        server
            .try_sql(&format!("UPDATE {quoted} SET `to``ken` = 4"))
            .is_err()
    );
    let printed = FenceTable::new(Dialect::Mysql, "safe").unwrap().install();
    server.sql(&printed);
    server.sql(&printed);
    server.sql("SELECT fencing_token FROM safe");
    let error = locks.fence_table("missing", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    // What failed has left no connection behind that cannot be used.
    for _ in 0..20 {
        let lease = locks.lock("x").acquire().await.unwrap();
        lease.release().await.unwrap();
    }
}
