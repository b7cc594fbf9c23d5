//! A configuration made without a URL, and a pool of the program's own.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{ClientWrapper, Hook, HookError, Manager, Pool};
use leasehold::engine::postgres::PostgresConfig;
use leasehold::{ErrorKind, Locks};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::NoTls;

use crate::support::authority::certificates;
use crate::support::bad_input::{PASSWORD, check};
use crate::support::free_port;
use crate::support::of_use::is_of_use;
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres_server::PostgresServer;
use crate::support::times::{ms, secs, until};

fn config(server: &PostgresServer) -> PostgresConfig {
    PostgresConfig::new("127.0.0.1", server.port).database("postgres")
}

/// As a program makes it that cares for nothing: without a runtime and without time-outs.
fn pool(port: u16, database: &str, size: usize) -> Pool {
    let mut server = tokio_postgres::Config::new();
    server
        .host("127.0.0.1")
        .port(port)
        .user("postgres")
        .dbname(database)
        .application_name("the program");
    let pool = Pool::builder(Manager::new(server, NoTls)).max_size(size);
    pool.build().unwrap()
}

/// How many sessions there are, of the program's pool and of leasehold's own.
fn sessions(server: &PostgresServer) -> String {
    server.sql(
        "SELECT count(*) FILTER (WHERE application_name = 'the program'), \
         count(*) FILTER (WHERE application_name = 'leasehold') FROM pg_stat_activity",
    )
}

fn schemas(server: &PostgresServer, database: &str) -> String {
    let query = "SELECT count(*) FROM pg_namespace WHERE nspname = 'leasehold'";
    server.try_sql(database, query).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_without_a_url_is_used() {
    let server = PostgresServer::start();
    let config = config(&server)
        .login("postgres", PASSWORD)
        .schema("own")
        .pool(2)
        .timeout(secs(10));
    assert!(!format!("{config:?}").contains(PASSWORD));
    let locks = Locks::new(config.connect().await.unwrap());
    let location = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    assert_eq!(locks.location(), format!("{location}?schema=own"));
    is_of_use(&locks, "x").await;
    // It is the same lock by URL.
    let held = locks.lock("x").ttl(secs(20)).acquire().await.unwrap();
    let url = format!("{location}?schema=own");
    let other = Locks::connect(&url).await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let parsed: PostgresConfig = url.parse().unwrap();
    let other = Locks::new(parsed.connect().await.unwrap());
    other
        .lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn own_pool_carries_the_calls() {
    let server = PostgresServer::start();
    let pool = pool(server.port, "postgres", 2);
    let engine = config(&server).connect_with(pool.clone()).await.unwrap();
    let locks = Locks::new(engine);
    assert_eq!(sessions(&server), "1|0");
    is_of_use(&locks, "x").await;
    // More at once than there are connections.
    let one_by_one = (0..20).map(|_| {
        let next = locks.lock("y").wait(secs(60)).acquire();
        tokio::spawn(async move { next.await.unwrap().release().await.unwrap() })
    });
    for done in one_by_one.collect::<Vec<_>>() {
        done.await.unwrap();
    }
    let found = sessions(&server);
    let (programs, own) = found.split_once('|').unwrap();
    assert!(matches!(programs, "1" | "2"), "{found}");
    assert!(
        matches!(own, "0" | "1"),
        "{found}: no more than it listens with"
    );
    // The program goes on to use it.
    let client = pool.get().await.unwrap();
    let row = client.query_one("SELECT 'as before'", &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "as before");
}

/// The configuration says nothing of it: no statement may be relied on to stay prepared.
#[tokio::test(flavor = "multi_thread")]
async fn own_pool_may_lead_through_a_pooler() {
    let server = PostgresServer::start();
    let pooler = PgBouncer::before(&server, 2);
    let pool = pool(pooler.port, "postgres", 4);
    let engine = config(&server).connect_with(pool).await.unwrap();
    let locks = Locks::new(engine);
    is_of_use(&locks, "x").await;
    let many = (0..20).map(|nth| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let held = locks.lock(format!("y{nth}")).acquire().await.unwrap();
            held.release().await.unwrap();
        })
    });
    for done in many.collect::<Vec<_>>() {
        done.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_leave_connections_of_an_own_pool() {
    let server = PostgresServer::start();
    let pool = pool(server.port, "postgres", 2);
    let config = config(&server).timeout(secs(5));
    let locks = Locks::new(config.connect_with(pool.clone()).await.unwrap());
    // The program has one that has a transaction open, in which nobody can take a lock.
    let other = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    let (blocking, connection) = other;
    tokio::spawn(connection);
    let stop = "BEGIN; LOCK TABLE leasehold.holders IN ACCESS EXCLUSIVE MODE";
    blocking.batch_execute(stop).await.unwrap();
    let stuck: Vec<_> = (0..4)
        .map(|nth| tokio::spawn(locks.lock(format!("x{nth}")).acquire()))
        .collect();
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let end = Instant::now() + secs(4);
    while server.sql(waits) == "0" {
        assert!(Instant::now() < end, "no attempt has begun");
    }
    // All of them wait for their turn on one connection, and the other is free.
    let free = tokio::time::timeout(secs(3), pool.get()).await;
    drop(free.expect("a connection in time").unwrap());
    blocking.batch_execute("COMMIT").await.unwrap();
    for stuck in stuck {
        stuck.await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn own_pool_that_is_busy_is_an_error_in_time() {
    let server = PostgresServer::start();
    let pool = pool(server.port, "postgres", 2);
    let config = config(&server).timeout(ms(500)).connect_timeout(secs(2));
    let locks = Locks::new(config.connect_with(pool.clone()).await.unwrap());
    let taken = [pool.get().await.unwrap(), pool.get().await.unwrap()];
    let asked = tokio::time::timeout(secs(20), locks.lock("x").try_acquire());
    let error = asked.await.unwrap().unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        "all 2 connections are busy",
        "x",
    );
    assert!(error.is_busy());
    drop(taken);
    is_of_use(&locks, "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_that_cannot_be_used_are_refused() {
    let server = PostgresServer::start();
    // Copied from the same files: even the identifiers of both are the same.
    let other = PostgresServer::start();
    server.sql("CREATE DATABASE shop");
    let closed = pool(server.port, "postgres", 2);
    closed.close();
    for (pool, words) in [
        (pool(server.port, "postgres", 1), "1 connection(s) at most"),
        (closed, "the pool is closed"),
        (
            pool(server.port, "shop", 2),
            "leads to the database \"shop\"",
        ),
        (pool(other.port, "postgres", 2), "leads to another server"),
        (pool(other.port, "shop", 2), "over the pool that was given"),
        (
            pool(free_port(), "postgres", 2),
            "over the pool that was given",
        ),
    ] {
        let error = config(&server).connect_with(pool).await.unwrap_err();
        let kind = match words.contains("over") {
            true => error.kind(),
            false => ErrorKind::InvalidConfig,
        };
        check(&error, kind, words, &server.port.to_string());
    }
    // Nothing was made anywhere.
    assert_eq!(schemas(&server, "postgres"), "0");
    assert_eq!(schemas(&server, "shop"), "0");
    assert_eq!(schemas(&other, "postgres"), "0");
}

/// As a program makes it whose connections begin with some statement.
fn pool_that_begins_with(port: u16, statement: &'static str) -> Pool {
    let mut server = tokio_postgres::Config::new();
    server.host("127.0.0.1").port(port).user("postgres");
    let pool = Pool::builder(Manager::new(server, NoTls)).max_size(2);
    let begin = Hook::async_fn(move |client: &mut ClientWrapper, _| {
        Box::pin(async move {
            let begun = client.batch_execute(statement).await;
            begun.map_err(HookError::Backend)
        })
    });
    pool.post_create(begin).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn own_pool_in_the_wrong_mode_is_refused() {
    let server = PostgresServer::start();
    for (begins_with, words) in [
        (
            "SET default_transaction_isolation = 'serializable'",
            "are serializable by default",
        ),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "are repeatable read by default",
        ),
        ("SET default_transaction_read_only = on", "are read-only"),
        ("BEGIN", "a transaction that is open"),
        ("BEGIN READ ONLY", "a transaction that is open"),
    ] {
        let pool = pool_that_begins_with(server.port, begins_with);
        let error = config(&server).connect_with(pool).await.unwrap_err();
        let address = server.port.to_string();
        check(&error, ErrorKind::InvalidConfig, words, &address);
    }
    assert_eq!(schemas(&server, "postgres"), "0");
    let pool = pool_that_begins_with(server.port, "SET search_path = ''");
    let locks = Locks::new(config(&server).connect_with(pool).await.unwrap());
    is_of_use(&locks, "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_that_cannot_be_used_are_refused() {
    let server = PostgresServer::start();
    let config = || config(&server);
    for (config, words) in [
        (config().timeout(Duration::ZERO), "timeout is zero"),
        (
            config().connect_timeout(Duration::ZERO),
            "connect_timeout is zero",
        ),
        (config().schema("a\"b"), "cannot be the name of the schema"),
        (config().pool(1), "pool=1 cannot be used"),
    ] {
        let error = config.connect().await.unwrap_err();
        check(&error, ErrorKind::InvalidConfig, words, "");
    }
    let zero = config().timeout(Duration::ZERO);
    let pool = pool(server.port, "postgres", 2);
    let error = zero.connect_with(pool).await.unwrap_err();
    check(&error, ErrorKind::InvalidConfig, "timeout is zero", "");
    for url in [
        "mysql://127.0.0.1/db",
        "postgres://127.0.0.1/db?wrong=1",
        "postgres://127.0.0.1/db?timeout=0s",
    ] {
        let error = url.parse::<PostgresConfig>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
    }
}

/// Whether leasehold's connections are encrypted, those that there are.
fn are_encrypted(server: &PostgresServer) -> String {
    server.sql(
        "SELECT bool_and(ssl) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE application_name = 'leasehold'",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_can_be_asked_for_without_a_url() {
    let folder = certificates();
    let server = PostgresServer::secured(folder.path(), "host all all 127.0.0.1/32 trust\n");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config = || config(&server);
    for (config, encrypted) in [
        (config(), "t"),
        (config().without_tls(), "f"),
        (config().unverified_tls(), "t"),
        (config().verified_tls_by(path("ca.pem")).unwrap(), "t"),
    ] {
        let locks = Locks::new(config.connect().await.unwrap());
        let held = locks.lock("x").acquire().await.unwrap();
        assert_eq!(are_encrypted(&server), encrypted);
        held.release().await.unwrap();
        drop(locks);
        until("the connections are closed", async || {
            are_encrypted(&server).is_empty()
        })
        .await;
    }
    let other = config().verified_tls_by(path("other-ca.pem")).unwrap();
    for unknown in [config().verified_tls(), other] {
        let error = unknown.connect().await.unwrap_err();
        check(&error, ErrorKind::Denied, "certificate is not trusted", "");
    }
    let plain = PostgresServer::start();
    let unencrypted = PostgresConfig::new("127.0.0.1", plain.port).unverified_tls();
    let error = unencrypted.connect().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "does not encrypt", "");
    for bad in [path("missing.pem"), path("server-key.pem")] {
        let error = config().verified_tls_by(bad).unwrap_err();
        check(&error, ErrorKind::InvalidConfig, ".pem", "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn own_tls_configuration_is_used() {
    let folder = certificates();
    let server = PostgresServer::secured(folder.path(), "hostssl all all 127.0.0.1/32 trust\n");
    let trusting = |file: &str| {
        let file = std::fs::read(folder.path().join(file)).unwrap();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&file) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        Arc::new(tls.with_root_certificates(roots).with_no_client_auth())
    };
    let config = || config(&server);
    let locks = Locks::new(config().tls(trusting("ca.pem")).connect().await.unwrap());
    is_of_use(&locks, "x").await;
    let error = config().tls(trusting("other-ca.pem")).connect().await;
    let error = error.unwrap_err();
    check(&error, ErrorKind::Denied, "certificate is not trusted", "");
}
