//! Tables of the user's own that refuse stale tokens, in MariaDB.

#![allow(clippy::unwrap_used)]

use crate::support::mariadb_server::MariadbServer;
use leasehold::guard::sql::{Dialect, FenceTable, MYSQL_STALE};
use leasehold::{ErrorKind, Locks};

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

/// `REPLACE` is a delete and an insert, and would leave no trace of the token that was there.
#[tokio::test(flavor = "multi_thread")]
async fn mysql_refuses_to_replace_a_row_with_a_lower_token() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    server.sql("CREATE TABLE orders (id INT PRIMARY KEY, ref INT UNIQUE, state TEXT)");
    locks.fence_table("orders", None).await.unwrap();
    server
        .sql("INSERT INTO orders VALUES (1, 11, 'paid', 5), (2, 12, 'paid', 5), (3, 13, 'new', 0)");
    for stale in [
        "REPLACE INTO orders VALUES (1, 11, 'late', 4)",
        // Also where another key is the one that is there already, or one row of several.
        "REPLACE INTO orders VALUES (9, 12, 'late', 4)",
        "REPLACE INTO orders VALUES (8, 18, 'late', 4), (3, 13, 'late', 4), (2, 12, 'late', 4)",
        "REPLACE INTO orders SELECT id, ref, 'late', 4 FROM orders",
        // Without a token at all, which would set it back to nothing.
        "REPLACE INTO orders (id, ref, state) VALUES (1, 11, 'late')",
        "INSERT INTO orders VALUES (1, 11, 'late', 4) \
         ON DUPLICATE KEY UPDATE state = VALUES(state), fencing_token = VALUES(fencing_token)",
    ] {
        let said = server.try_sql(stale).unwrap_err();
        assert!(said.contains(MYSQL_STALE), "{stale}: {said}");
    }
    let rows = "SELECT GROUP_CONCAT(id, state, fencing_token ORDER BY id) FROM orders";
    assert_eq!(server.sql(rows), "1paid5,2paid5,3new0");
    server.sql(
        "REPLACE INTO orders VALUES (1, 11, 'sent', 5), (2, 12, 'sent', 6), (4, 14, 'new', 1)",
    );
    assert_eq!(server.sql(rows), "1sent5,2sent6,3new0,4new1");
    // What was inserted, or failed to be, has no say in a DELETE that follows in the same session.
    server.sql(
        "INSERT IGNORE INTO orders VALUES (1, 11, 'late', 0); DELETE FROM orders WHERE id = 1; \
         INSERT INTO orders VALUES (5, 15, 'new', 0); DELETE FROM orders WHERE id = 2",
    );
    assert_eq!(server.sql(rows), "3new0,4new1,5new0");
    locks.unfence_table("orders", None).await.unwrap();
    assert_eq!(server.sql("SHOW TRIGGERS"), "");
}

/// The names of triggers belong to the whole database.
#[tokio::test(flavor = "multi_thread")]
async fn mysql_fences_tables_beside_triggers_of_others() {
    let server = MariadbServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let long = "o".repeat(60);
    let (one, other) = (format!("{long}_one"), format!("{long}_two"));
    server.sql(&format!(
        "CREATE TABLE {one} (id INT PRIMARY KEY); CREATE TABLE {other} (id INT PRIMARY KEY); CREATE TABLE log (id INT); \
         CREATE TABLE orders (id INT PRIMARY KEY); \
         CREATE TRIGGER orders_fence BEFORE UPDATE ON orders FOR EACH ROW INSERT INTO log VALUES (NEW.id)"
    ));
    for table in [&one, &other, "orders"] {
        locks.fence_table(table, None).await.unwrap();
        server.sql(&format!("INSERT INTO {table} VALUES (1, 5)"));
    }
    for table in [&one, &other, "orders"] {
        let stale = server.try_sql(&format!("UPDATE {table} SET fencing_token = 4"));
        assert!(stale.unwrap_err().contains(MYSQL_STALE), "{table}");
        locks.unfence_table(table, None).await.unwrap();
    }
    server.sql("UPDATE orders SET id = 2");
    assert_eq!(server.sql("SELECT * FROM log"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_takes_odd_names_and_explains_errors() {
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
