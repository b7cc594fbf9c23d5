//! Servers, users and URLs that cannot serve: each says what, where and what to do; no password is shown, and nothing
//! is left behind.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::free_port;
use crate::support::postgres_server::PostgresServer;
use leasehold::engine::postgres::schema;
use leasehold::{ErrorKind, Locks};

/// A server that asks everyone but its superuser for a password.
fn with_passwords() -> PostgresServer {
    let server = PostgresServer::start();
    let rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    // The next connection may be made before all have heard of it.
    let said = "SELECT count(*) FROM pg_hba_file_rules";
    until(|| server.sql(said) == "2");
    server
}

fn address_of(server: &PostgresServer) -> String {
    format!("127.0.0.1:{}", server.port)
}

fn schemas(server: &PostgresServer, database: &str) -> String {
    let query = "SELECT string_agg(nspname, ' ' ORDER BY nspname) FROM pg_namespace \
                 WHERE nspname !~ '^(pg_|information_schema|public$)'";
    server.try_sql(database, query).unwrap()
}

#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn nobody_listens() {
    let address = format!("127.0.0.1:{}", free_port());
    let error = refused(&format!("postgres://me:{PASSWORD}@{address}/locks")).await;
    check(&error, ErrorKind::Unreachable, "address", &address);
    let error = refused("postgres://no-such-host.invalid/locks").await;
    check(&error, ErrorKind::Unreachable, "address", "no-such-host");
}

#[tokio::test]
async fn a_server_that_never_answers_costs_the_time_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = refused(&format!("postgres://me@{address}/a?connect_timeout=200ms")).await;
    check(&error, ErrorKind::Unreachable, "in time", &address);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_server_that_is_none() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // Kept open, so that what was written arrives.
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            open.push(stream);
        }
    });
    for mode in ["disable", "prefer"] {
        let url = format!("postgres://me@{address}/a?connect_timeout=500ms&sslmode={mode}");
        let error = refused(&url).await;
        check(
            &error,
            ErrorKind::EngineUnfit,
            "not a PostgreSQL server",
            &address,
        );
    }
}

#[tokio::test]
async fn passwords_databases_and_the_right_to_connect() {
    let server = with_passwords();
    let address = address_of(&server);
    server.sql(&format!("CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'"));
    let url = |user: &str, password: &str| server.url_of(user, password, "postgres");
    let none = refused(&format!("postgres://app@{address}/postgres")).await;
    check(&none, ErrorKind::Denied, "password", &address);
    let wrong = refused(&url("app", &format!("{PASSWORD}-wrong"))).await;
    check(&wrong, ErrorKind::Denied, "password", &address);
    let nobody = refused(&url("nobody", PASSWORD)).await;
    check(&nobody, ErrorKind::Denied, "password", &address);
    let elsewhere = refused(&server.url_of("app", PASSWORD, "nowhere")).await;
    check(&elsewhere, ErrorKind::InvalidConfig, "nowhere", &address);

    server.sql("CREATE DATABASE shut");
    server.sql("REVOKE CONNECT ON DATABASE shut FROM PUBLIC");
    let shut = refused(&server.url_of("app", PASSWORD, "shut")).await;
    check(&shut, ErrorKind::Denied, "shut", &address);

    server.sql("GRANT CREATE ON DATABASE postgres TO app");
    let locks = Locks::connect(url("app", PASSWORD)).await.unwrap();
    assert_eq!(
        locks.location(),
        format!("postgres://app:***@{address}/postgres")
    );
    assert!(!format!("{locks:?}").contains(PASSWORD));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_password_of_any_letters() {
    let server = with_passwords();
    server.sql("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'a/b?c@d,e:f%'' '");
    let url = server.url_of("app", "a%2Fb%3Fc%40d%2Ce%3Af%25%27%20", "postgres");
    let locks = Locks::connect(url).await.unwrap();
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

/// Who may not make the tables is told who can, and how; who was let in may then do all that locks need.
#[tokio::test]
async fn a_user_with_no_right_to_create() {
    let server = PostgresServer::start();
    let address = address_of(&server);
    server.sql("CREATE ROLE app LOGIN");
    let url = format!("postgres://app@{address}/postgres");
    let error = refused(&url).await;
    check(
        &error,
        ErrorKind::Denied,
        "leasehold schema postgres",
        &address,
    );
    assert!(
        error.advice().unwrap().contains("USAGE"),
        "what to grant: {error}"
    );
    assert_eq!(schemas(&server, "postgres"), "", "nothing is left behind");

    server.sql(&schema::sql("leasehold").unwrap());
    let error = refused(&url).await;
    check(&error, ErrorKind::Denied, "USAGE", &address);
    server.sql(
        "GRANT USAGE ON SCHEMA leasehold TO app; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO app",
    );
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let waiting = locks.clone();
    let waiting = tokio::spawn(async move { waiting.lock("a").acquire().await });
    while locks.inspect("a").await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    let record = locks.store().unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    record.write_fenced("k", b"v", &lease).await.unwrap();

    server.sql("REVOKE INSERT ON leasehold.holders FROM app");
    let error = locks.lock("b").acquire().await.unwrap_err();
    check(&error, ErrorKind::Denied, "holders", &address);
}

#[tokio::test]
async fn older_and_newer_layouts() {
    let server = PostgresServer::start();
    let address = address_of(&server);
    server.sql("CREATE ROLE app LOGIN");
    let older = || {
        server.sql(
            "UPDATE leasehold.layout SET version = 1; DROP FUNCTION leasehold.sweep; \
             ALTER TABLE leasehold.holders ADD COLUMN reserved bigint NOT NULL DEFAULT 0; \
             ALTER TABLE leasehold.listeners DROP COLUMN session, ADD COLUMN in_session boolean NOT NULL; \
             CREATE FUNCTION leasehold.take_turn(integer) RETURNS text LANGUAGE sql AS 'SELECT NULL'; \
             GRANT USAGE ON SCHEMA leasehold TO app; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO app",
        );
    };
    let locks = Locks::connect(server.url()).await.unwrap();
    let held = locks.lock("held").acquire().await.unwrap();
    let token = held.token();
    older();
    let app = format!("postgres://app@{address}/postgres");
    let error = refused(&app).await;
    check(
        &error,
        ErrorKind::Denied,
        "leasehold schema postgres",
        &address,
    );
    assert_eq!(
        server.sql("SELECT version FROM leasehold.layout"),
        "1",
        "left as it was"
    );

    // Who may brings it up to date, and what was held stays so.
    let migrated = Locks::connect(server.url()).await.unwrap();
    assert_eq!(server.sql("SELECT version FROM leasehold.layout"), "2");
    let functions = "SELECT count(*) FROM pg_proc WHERE proname = 'take_turn'";
    assert_eq!(server.sql(functions), "1", "the older one is gone");
    server.sql("SELECT leasehold.sweep()");
    assert!(migrated.lock("held").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let next = Locks::connect(&app).await.unwrap();
    let next = next.lock("held").acquire().await.unwrap();
    assert!(next.token() > token);

    server.sql("UPDATE leasehold.layout SET version = 3");
    let error = refused(&server.url()).await;
    check(&error, ErrorKind::EngineUnfit, "layout 3", &address);
    // Nor does the SQL of an older version undo a newer one, whoever runs it.
    let undone = server.try_sql("postgres", &schema::sql("leasehold").unwrap());
    assert!(undone.unwrap_err().contains("layout 3"));
    assert_eq!(server.sql("SELECT version FROM leasehold.layout"), "3");
}

/// Tables of another program by the same name are left alone.
#[tokio::test]
async fn a_schema_that_is_another_programs() {
    let server = PostgresServer::start();
    let address = address_of(&server);
    server.sql("CREATE SCHEMA taken; CREATE TABLE taken.holders (who text)");
    let error = refused(&format!("{}?schema=taken", server.url())).await;
    check(&error, ErrorKind::EngineUnfit, "", &address);
    let tables =
        "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'taken'::regnamespace";
    assert_eq!(server.sql(tables), "holders", "nothing is left behind");
}

#[tokio::test]
async fn servers_that_only_read() {
    let server = PostgresServer::start();
    let locks = Locks::connect(server.url()).await.unwrap();
    let standby = server.standby();
    let error = refused(&standby.url()).await;
    check(
        &error,
        ErrorKind::EngineUnfit,
        "read-only",
        &address_of(&standby),
    );
    until(|| server.sql("SELECT count(*) FROM pg_stat_replication") == "1");
    let warnings = Locks::connect(server.url()).await.unwrap().warnings();
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("1 standby(s)")),
        "{warnings:?}"
    );

    server.sql(
        "CREATE ROLE app LOGIN SUPERUSER; ALTER ROLE app SET default_transaction_read_only = on",
    );
    let address = address_of(&server);
    let url = format!("postgres://app@{address}/postgres");
    let error = refused(&url).await;
    check(&error, ErrorKind::EngineUnfit, "read-only", &address);

    // One that becomes so: a failover that went wrong.
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("SELECT pg_reload_conf()");
    let deadline = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match locks.lock("a").acquire().await {
            Ok(lease) => lease.release().await.map(|_| ()).unwrap_or_default(),
            Err(error) => break error,
        }
        assert!(Instant::now() < deadline, "it still writes");
    };
    check(&error, ErrorKind::EngineUnfit, "read-only", &address);
}

#[tokio::test]
async fn transactions_that_are_not_read_committed() {
    let server = PostgresServer::start();
    let address = address_of(&server);
    server.sql("CREATE ROLE app LOGIN SUPERUSER; ALTER ROLE app SET default_transaction_isolation = 'serializable'");
    let url = format!("postgres://app@{address}/postgres");
    let error = refused(&url).await;
    check(&error, ErrorKind::EngineUnfit, "read committed", &address);
    assert_eq!(schemas(&server, "postgres"), "", "nothing is left behind");
    // It may also become so later.
    server.sql("ALTER ROLE app RESET default_transaction_isolation");
    let locks = Locks::connect(&url).await.unwrap();
    server.sql("ALTER ROLE app SET default_transaction_isolation = 'serializable'");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    // The first to hear that their connections have ended may say just that.
    let end = Instant::now() + Duration::from_secs(20);
    let error = loop {
        let error = locks.lock("a").acquire().await.unwrap_err();
        if error.kind() != ErrorKind::Unreachable || Instant::now() > end {
            break error;
        }
    };
    check(&error, ErrorKind::EngineUnfit, "read committed", &address);
}

#[tokio::test]
async fn databases_in_another_encoding() {
    let server = PostgresServer::start();
    let address = address_of(&server);
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0");
    let error = refused(&format!("postgres://postgres@{address}/latin")).await;
    check(&error, ErrorKind::EngineUnfit, "LATIN1", &address);
    assert_eq!(schemas(&server, "latin"), "", "nothing is left behind");
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    for (url, says) in [
        ("postgres://h/a?shcema=x", "shcema"),
        ("postgres://h/a?schema=", "schema"),
        ("postgres://h/a?schema=a%22b", "schema"),
        ("postgres://h/a?schema=a.b", "schema"),
        ("postgres://h/a?schema=a'b", "schema"),
        ("postgres://h/a?schema=a%24%24b", "schema"),
        ("postgres://h/a?schema=pg_locks", "schema"),
        ("postgres://h/a?schema=PG_x", "schema"),
        ("postgres://h/a?schema=1a", "schema"),
        ("postgres://h/a?pool=1", "pool"),
        ("postgres://h/a?pool=many", "pool"),
        ("postgres://h/a?timeout=soon", "timeout"),
        ("postgres://h/a?timeout=0s", "timeout"),
        ("postgres://h/a?sslmode=maybe", "sslmode"),
        (
            "postgres://h/a?sslmode=verify-full&sslrootcert=/no/such/file",
            "/no/such/file",
        ),
        ("postgres://h/a?pooler=session", "pooler"),
        ("postgres://h/a?listen=:5432", "host"),
        ("postgres://h:port/a", "port"),
        ("postgres://g,h/a", "one server"),
        ("postgres:///a", "one server"),
        ("postgres://h/a?socket=/tmp", "one server"),
    ] {
        let started = Instant::now();
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        let shown = error.to_string();
        assert!(shown.contains(says), "{url}: {shown}");
        assert!(error.advice().is_some(), "{url}: {shown}");
        assert!(started.elapsed() < Duration::from_secs(2), "{url}");
    }
}

/// Names of schemas that need quotes, or are words of SQL, do as well as others.
#[tokio::test]
async fn schemas_of_any_plain_name() {
    let server = PostgresServer::start();
    let plain = Locks::connect(server.url()).await.unwrap();
    let _held = plain.lock("a").acquire().await.unwrap();
    for schema in ["Locks", "select", "_1", "leasehold2", "user"] {
        let url = format!("{}?schema={schema}", server.url());
        let locks = Locks::connect(&url).await.unwrap();
        let lease = locks.lock("a").acquire().await.unwrap();
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        lease.release().await.unwrap();
        server.sql(&schema::sql(schema).unwrap());
    }
    assert_eq!(
        schemas(&server, "postgres"),
        "Locks _1 leasehold leasehold2 select user"
    );
}

/// The server counts its own patience in fewer bits.
#[tokio::test]
async fn patience_of_a_day() {
    let server = PostgresServer::start();
    let url = format!("{}?timeout=1day&connect_timeout=1day", server.url());
    let locks = Locks::connect(url).await.unwrap();
    let held = locks.lock("a").acquire().await.unwrap();
    let waiting = locks.lock("a").wait(Duration::from_secs(20));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    while locks.inspect("a").await.unwrap().waiters.is_empty() && !waiting.is_finished() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    held.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// A database that is emptied under a program that runs.
#[tokio::test]
async fn tables_that_are_gone() {
    let server = PostgresServer::start();
    let address = address_of(&server);
    let locks = Locks::connect(server.url()).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    server.sql("DROP SCHEMA leasehold CASCADE");
    let error = locks.lock("a").acquire().await.unwrap_err();
    check(
        &error,
        ErrorKind::EngineUnfit,
        "leasehold schema postgres",
        &address,
    );
    let error = lease.release().await.unwrap_err();
    check(
        &error,
        ErrorKind::EngineUnfit,
        "leasehold schema postgres",
        &address,
    );
}
