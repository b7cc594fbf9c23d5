//! Tables of the user's own that refuse stale tokens, in real databases.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)]

mod support;

use leasehold::guard::sql::{Dialect, FenceTable, POSTGRES_STALE};
use leasehold::{ErrorKind, Locks};
use support::postgres_server::PostgresServer;

async fn client(server: &PostgresServer) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refuses_a_lower_token_whoever_sends_it() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let sql = client(&server).await;
    sql.batch_execute("CREATE TABLE orders (id int PRIMARY KEY, state text); INSERT INTO orders VALUES (1, 'new'), (2, 'new')")
        .await
        .unwrap();
    locks.fence_table("orders", None).await.unwrap();
    locks.fence_table("public.orders", None).await.unwrap();
    let first = locks.lock("orders").acquire().await.unwrap();
    let stale = first.fence_sql(Dialect::Postgres);
    first.release().await.unwrap();
    let second = locks.lock("orders").acquire().await.unwrap();
    let fresh = second.fence_sql(Dialect::Postgres);
    for state in ["paid", "sent"] {
        let update = format!(
            "UPDATE orders SET state = $1, {} WHERE id = 1 AND {}",
            fresh.set(),
            fresh.holds()
        );
        assert_eq!(
            sql.execute(&update, &[&state]).await.unwrap(),
            1,
            "equal tokens may write again"
        );
    }
    let error = sql
        .execute(
            &format!(
                "UPDATE orders SET state = 'late', {} WHERE id = 1",
                stale.set()
            ),
            &[],
        )
        .await
        .unwrap_err();
    assert_eq!(error.code().unwrap().code(), POSTGRES_STALE);
    let unchanged = format!(
        "UPDATE orders SET state = 'late', {} WHERE id = 1 AND {}",
        stale.set(),
        stale.holds()
    );
    assert_eq!(sql.execute(&unchanged, &[]).await.unwrap(), 0);
    let state: String = sql
        .query_one("SELECT state FROM orders WHERE id = 1", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(state, "sent");
    // Rows that nobody has written under the lock yet take any token.
    assert_eq!(
        sql.execute(
            &format!("UPDATE orders SET {} WHERE id = 2", stale.set()),
            &[]
        )
        .await
        .unwrap(),
        1
    );
    locks.unfence_table("orders", None).await.unwrap();
    assert!(
        sql.execute("UPDATE orders SET fencing_token = 1", &[])
            .await
            .is_err(),
        "the column is gone"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_takes_odd_names_and_the_printed_sql_and_says_what_is_wrong() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let sql = client(&server).await;
    let odd = "or\"ders'; DROP TABLE safe; --";
    let quoted = format!("\"{}\"", odd.replace('"', "\"\""));
    sql.batch_execute(&format!(
        "CREATE TABLE safe (x int); CREATE TABLE {quoted} (id int); INSERT INTO {quoted} VALUES (1)"
    ))
    .await
    .unwrap();
    locks
        .fence_table(odd, Some("to\"ken$fence$"))
        .await
        .unwrap();
    sql.batch_execute(&format!("UPDATE {quoted} SET \"to\"\"ken$fence$\" = 5"))
        .await
        .unwrap();
    assert!(
        sql.batch_execute(&format!("UPDATE {quoted} SET \"to\"\"ken$fence$\" = 4"))
            .await
            .is_err()
    );
    let printed = FenceTable::new(Dialect::Postgres, "safe")
        .unwrap()
        .install();
    sql.batch_execute(&printed).await.unwrap();
    sql.batch_execute(&printed).await.unwrap();
    sql.batch_execute("SELECT fencing_token FROM safe")
        .await
        .unwrap();
    let error = locks.fence_table("missing", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    // What failed has left nothing half done, and no connection behind that cannot be used.
    for _ in 0..20 {
        locks
            .lock("x")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    sql.batch_execute("CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA leasehold TO guest; \
        GRANT ALL ON ALL TABLES IN SCHEMA leasehold TO guest; GRANT ALL ON ALL SEQUENCES IN SCHEMA leasehold TO guest").await.unwrap();
    let guest = server.url().replace("postgres@", "guest@");
    let error = Locks::connect(guest)
        .await
        .unwrap()
        .fence_table("safe", None)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}
