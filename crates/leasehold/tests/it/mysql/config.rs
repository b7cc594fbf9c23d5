//! A configuration made without a URL, and a pool of the program's own.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use leasehold::engine::mysql::MysqlConfig;
use leasehold::{ErrorKind, Locks};
use mysql_async::prelude::Queryable;
use mysql_async::{OptsBuilder, Pool, PoolConstraints, PoolOpts, SslOpts};

use crate::support::authority::certificates;
use crate::support::bad_input::{PASSWORD, check};
use crate::support::free_port;
use crate::support::mariadb_server::MariadbServer;
use crate::support::of_use::is_of_use;
use crate::support::times::{ms, secs, until};

fn config(server: &MariadbServer) -> MysqlConfig {
    MysqlConfig::new("127.0.0.1", server.port, "locks")
}

fn options(size: usize) -> PoolOpts {
    PoolOpts::new().with_constraints(PoolConstraints::new(1, size).unwrap())
}

/// As a program makes it that has settings of its own.
fn pool(port: u16, database: &str, options: PoolOpts) -> Pool {
    let opts = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .user(Some("program"))
        .db_name(Some(database))
        .setup(vec!["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"])
        .pool_opts(options);
    Pool::new(opts)
}

fn server() -> MariadbServer {
    let server = MariadbServer::start();
    server
        .sql("CREATE USER 'program'@'%'; GRANT ALL ON *.* TO 'program'@'%'; CREATE DATABASE shop");
    server
}

/// How many sessions a user has.
fn sessions(server: &MariadbServer, user: &str) -> usize {
    let query = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{user}' AND info IS NULL"
    );
    server.sql(&query).trim().parse().unwrap()
}

fn tables(server: &MariadbServer) -> String {
    let query = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'leasehold%'";
    server.sql(query).trim().to_owned()
}

async fn isolation(connection: &mut mysql_async::Conn) -> String {
    let asked = connection.query_first("SELECT @@SESSION.tx_isolation");
    asked.await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_without_a_url_is_used() {
    let server = server();
    server.sql(&format!(
        "ALTER USER 'program'@'%' IDENTIFIED BY '{PASSWORD}'"
    ));
    let config = config(&server)
        .login("program", PASSWORD)
        .table("own")
        .pool(2)
        .timeout(secs(10));
    assert!(!format!("{config:?}").contains(PASSWORD));
    let locks = Locks::new(config.connect().await.unwrap());
    let location = format!("mysql://program@127.0.0.1:{}/locks?table=own", server.port);
    assert_eq!(locks.location(), location);
    is_of_use(&locks, "x").await;
    // It is the same lock by URL.
    let held = locks.lock("x").ttl(secs(20)).acquire().await.unwrap();
    let url = format!("{}?table=own", server.url());
    let other = Locks::connect(&url).await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let parsed: MysqlConfig = url.parse().unwrap();
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
    let server = server();
    let pool = pool(server.port, "locks", options(2));
    let engine = config(&server).connect_with(pool.clone()).await.unwrap();
    let locks = Locks::new(engine);
    until("leasehold has no connection of its own", async || {
        sessions(&server, "root") == 0
    })
    .await;
    is_of_use(&locks, "x").await;
    // More at once than there are connections.
    let one_by_one = (0..20).map(|_| {
        let next = locks.lock("y").wait(secs(60)).acquire();
        tokio::spawn(async move { next.await.unwrap().release().await.unwrap() })
    });
    for done in one_by_one.collect::<Vec<_>>() {
        done.await.unwrap();
    }
    assert!(matches!(sessions(&server, "program"), 1..=2));
    // The program finds its own settings.
    let mut both = [
        pool.get_conn().await.unwrap(),
        pool.get_conn().await.unwrap(),
    ];
    for connection in &mut both {
        assert_eq!(isolation(connection).await, "SERIALIZABLE");
    }
}

/// A reset of a connection leaves it in the database that the program chose last.
#[tokio::test(flavor = "multi_thread")]
async fn own_pool_in_another_database_keeps_no_locks_there() {
    let server = server();
    let direct = Locks::connect(server.url()).await.unwrap();
    let shop = server.url().replace("/locks", "/shop");
    drop(Locks::connect(&shop).await.unwrap());
    let pool = pool(server.port, "locks", options(2));
    let locks = Locks::new(config(&server).connect_with(pool.clone()).await.unwrap());
    let (mut one, mut two) = (
        pool.get_conn().await.unwrap(),
        pool.get_conn().await.unwrap(),
    );
    for connection in [&mut one, &mut two] {
        connection.query_drop("USE shop").await.unwrap();
    }
    drop((one, two));
    let lease = locks.lock("x").acquire().await.unwrap();
    assert!(direct.lock("x").try_acquire().await.unwrap().is_none());
    assert_eq!(
        server.sql("SELECT COUNT(*) FROM shop.leasehold_holders"),
        "0"
    );
    lease.release().await.unwrap();
}

/// Its answer comes when nobody waits for it: it must not be taken for that of another question.
#[tokio::test(flavor = "multi_thread")]
async fn late_answer_on_an_own_pool_reaches_nobody() {
    let server = server();
    let pool = pool(server.port, "locks", options(2));
    let config = config(&server).timeout(ms(300)).connect_timeout(secs(10));
    let locks = Locks::new(config.connect_with(pool.clone()).await.unwrap());
    locks
        .lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let stopped = server.session("LOCK TABLES leasehold_holders WRITE; SELECT SLEEP(60)");
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(60)%' AND user = 'root' AND state = 'User sleep'";
    until("the tables are locked", async || {
        server.sql(waits).trim() == "1"
    })
    .await;
    for nth in 0..4 {
        let asked = locks.lock(format!("y{nth}")).try_acquire();
        let asked = tokio::time::timeout(ms(100 + 200 * nth), asked).await;
        assert!(!matches!(asked, Ok(Ok(_))), "{asked:?}");
        let mut connection = pool.get_conn().await.unwrap();
        let answer: Option<String> = connection.query_first("SELECT 'mine'").await.unwrap();
        assert_eq!(answer.as_deref(), Some("mine"));
        assert_eq!(isolation(&mut connection).await, "SERIALIZABLE");
    }
    server.sql("KILL USER root");
    drop(stopped);
    is_of_use(&locks, "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_pool_that_is_busy_is_an_error_in_time() {
    let server = server();
    let pool = pool(server.port, "locks", options(2));
    let config = config(&server).connect_timeout(secs(2));
    let locks = Locks::new(config.connect_with(pool.clone()).await.unwrap());
    let taken = [
        pool.get_conn().await.unwrap(),
        pool.get_conn().await.unwrap(),
    ];
    let asked = tokio::time::timeout(secs(20), locks.lock("x").try_acquire());
    let error = asked.await.unwrap().unwrap_err();
    check(&error, ErrorKind::Unreachable, "no connection in time", "x");
    assert!(error.is_busy());
    drop(taken);
    is_of_use(&locks, "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_that_cannot_be_used_are_refused() {
    let server = server();
    let other = self::server();
    let closed = pool(server.port, "locks", options(2));
    closed.clone().disconnect().await.unwrap();
    let keeps = options(2).with_reset_connection(false);
    for (pool, words) in [
        (
            pool(server.port, "locks", options(1)),
            "1 connection at most",
        ),
        (pool(server.port, "locks", keeps), "does not reset"),
        (
            pool(server.port, "shop", options(2)),
            "leads to the database \"shop\"",
        ),
        (
            pool(other.port, "locks", options(2)),
            "leads to another server",
        ),
        (
            pool(other.port, "none", options(2)),
            "over the pool that was given",
        ),
        (
            pool(free_port(), "locks", options(2)),
            "over the pool that was given",
        ),
        (closed, "over the pool that was given"),
    ] {
        let error = config(&server).connect_with(pool).await.unwrap_err();
        let kind = match words.contains("over") {
            true => error.kind(),
            false => ErrorKind::InvalidConfig,
        };
        check(&error, kind, words, &server.port.to_string());
    }
    // Nothing was made anywhere.
    assert_eq!(
        (tables(&server), tables(&other)),
        ("0".to_owned(), "0".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_that_cannot_be_used_are_refused() {
    let server = server();
    let config = || config(&server);
    for (config, words) in [
        (config().timeout(Duration::ZERO), "timeout is zero"),
        (
            config().connect_timeout(Duration::ZERO),
            "connect_timeout is zero",
        ),
        (config().table("a`b"), "cannot begin with"),
        (config().pool(1), "pool=1 cannot be used"),
    ] {
        let error = config.connect().await.unwrap_err();
        check(&error, ErrorKind::InvalidConfig, words, "");
    }
    let zero = config().timeout(Duration::ZERO);
    let error = zero
        .connect_with(pool(server.port, "locks", options(2)))
        .await;
    check(
        &error.unwrap_err(),
        ErrorKind::InvalidConfig,
        "timeout is zero",
        "",
    );
    for url in [
        "postgres://127.0.0.1/db",
        "mysql://127.0.0.1/db?wrong=1",
        "mysql://127.0.0.1",
    ] {
        let error = url.parse::<MysqlConfig>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_can_be_asked_for_without_a_url() {
    let folder = certificates();
    let server = MariadbServer::secured(folder.path(), &[]);
    server.sql("CREATE USER 'who'@'%' REQUIRE SSL; GRANT ALL ON locks.* TO 'who'@'%'");
    server.sql("CREATE USER 'plain'@'%'; GRANT ALL ON locks.* TO 'plain'@'%'");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let of = |user: &str| config(&server).login(user, "");
    for config in [
        of("who"),
        of("who").unverified_tls(),
        of("who").verified_tls_by(path("ca.pem")).unwrap(),
        of("plain").without_tls(),
    ] {
        is_of_use(&Locks::new(config.connect().await.unwrap()), "x").await;
    }
    let error = of("who").without_tls().connect().await.unwrap_err();
    check(&error, ErrorKind::Denied, "refuses this user", "");
    let other = of("who").verified_tls_by(path("other-ca.pem")).unwrap();
    for unknown in [of("who").verified_tls(), other] {
        let error = unknown.connect().await.unwrap_err();
        check(&error, ErrorKind::Denied, "certificate is not trusted", "");
    }
    for bad in [path("missing.pem"), path("server-key.pem")] {
        let error = of("who").verified_tls_by(bad).unwrap_err();
        check(&error, ErrorKind::InvalidConfig, ".pem", "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn own_tls_options_are_used() {
    let folder = certificates();
    let server = MariadbServer::secured(folder.path(), &["--require-secure-transport=ON"]);
    let trusting = |file: &str| {
        let roots = folder.path().join(file);
        SslOpts::default()
            .with_root_certs(vec![roots.into()])
            .with_disable_built_in_roots(true)
    };
    let config = || config(&server);
    let locks = Locks::new(config().tls(trusting("ca.pem")).connect().await.unwrap());
    is_of_use(&locks, "x").await;
    let error = config().tls(trusting("other-ca.pem")).connect().await;
    check(
        &error.unwrap_err(),
        ErrorKind::Denied,
        "certificate is not trusted",
        "",
    );
}
