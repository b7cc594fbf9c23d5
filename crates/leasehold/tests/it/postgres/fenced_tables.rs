//! Tables of the user's own that refuse stale tokens, in real databases.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)]

use crate::support::postgres_server::PostgresServer;
use leasehold::guard::sql::{Dialect, FenceTable, POSTGRES_STALE};
use leasehold::{ErrorKind, Locks};

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
async fn postgres_takes_odd_names_and_explains_errors() {
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

/// An INSERT has no earlier token to be compared with: what covers it is said in the guide, and shown here.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stale_insert_can_and_cannot_do() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let sql = client(&server).await;
    sql.batch_execute("CREATE TABLE orders (id int PRIMARY KEY, state text); CREATE TABLE gates (name text PRIMARY KEY); INSERT INTO gates VALUES ('orders')")
        .await
        .unwrap();
    locks.fence_table("orders", None).await.unwrap();
    locks.fence_table("gates", None).await.unwrap();
    let first = locks.lock("orders").acquire().await.unwrap();
    let (stale, old) = (first.token(), first.check_sql().unwrap());
    first.release().await.unwrap();
    let second = locks.lock("orders").acquire().await.unwrap();
    let fresh = second.token();
    let insert = |id: u32, token| format!("INSERT INTO orders VALUES ({id}, 'x', {token})");
    let pass = |token| format!("UPDATE gates SET fencing_token = {token} WHERE name = 'orders'");
    let refused = async |statements: String| {
        let error = sql.batch_execute(&statements).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), POSTGRES_STALE, "{statements}");
        sql.batch_execute("ROLLBACK").await.unwrap();
    };
    sql.batch_execute(&format!("{}; {}", pass(fresh), insert(1, fresh)))
        .await
        .unwrap();
    // A row that is there is fenced, also against an INSERT that becomes an UPDATE.
    let upsert =
        "ON CONFLICT (id) DO UPDATE SET state = 'late', fencing_token = excluded.fencing_token";
    refused(format!("{} {upsert}", insert(1, stale))).await;
    // One that is not there is not.
    sql.batch_execute(&insert(2, stale)).await.unwrap();
    // But a row that stands for the lock refuses the whole transaction, and so does the lease itself.
    refused(format!(
        "BEGIN; {}; {}; COMMIT",
        pass(stale),
        insert(3, stale)
    ))
    .await;
    let check = format!(
        "SELECT leasehold.check_lease('orders', {})",
        old.parameters().1
    );
    refused(format!("BEGIN; {check}; {}; COMMIT", insert(4, stale))).await;
    let rows = server.sql("SELECT string_agg(id::text, ' ' ORDER BY id) FROM orders");
    assert_eq!(rows, "1 2");
    second.release().await.unwrap();
}

/// A function or a trigger of the user's that has the name that the fence would have is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_the_users_own_is_not_replaced() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let function = "CREATE FUNCTION orders_fence() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$";
    server.sql("CREATE TABLE orders (id int)");
    server.sql(function);
    let body = "SELECT md5(prosrc) FROM pg_proc WHERE proname = 'orders_fence'";
    let before = server.sql(body);
    let error = locks.fence_table("orders", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("orders_fence"), "{error}");
    assert!(error.advice().is_some(), "{error}");
    let error = locks.unfence_table("orders", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert_eq!(server.sql(body), before);
    let columns =
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum > 0";
    assert_eq!(server.sql(columns), "1", "nothing is left behind");

    // A trigger of that name, with a function of another.
    server.sql("ALTER FUNCTION orders_fence() RENAME TO mine");
    server.sql(
        "CREATE TRIGGER orders_fence BEFORE DELETE ON orders FOR EACH ROW EXECUTE FUNCTION mine()",
    );
    let triggers = "SELECT tgfoid::regproc FROM pg_trigger WHERE tgname = 'orders_fence'";
    locks.fence_table("orders", None).await.unwrap_err();
    locks.unfence_table("orders", None).await.unwrap_err();
    assert_eq!(server.sql(triggers), "mine");
    server.sql("DROP TRIGGER orders_fence ON orders");

    // One's own may be installed again, and taken away.
    for _ in 0..2 {
        locks.fence_table("orders", None).await.unwrap();
    }
    locks.unfence_table("orders", None).await.unwrap();
    assert_eq!(server.sql(body), "");
    // Two tables whose names are cut to the same: each column has its own function, or none.
    let long = "x".repeat(60);
    for table in ["a", "b"] {
        server.sql(&format!("CREATE TABLE {long}{table} (id int)"));
    }
    locks.fence_table(&format!("{long}a"), None).await.unwrap();
    let other = format!("{long}b");
    let error = locks.fence_table(&other, Some("version")).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidConfig);
}
