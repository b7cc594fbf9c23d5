//! What a user can get wrong with `mysql:`, and what is said then. One server for all.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::OnceLock;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use support::mariadb_server::MariadbServer;

fn server() -> &'static MariadbServer {
    static SERVER: OnceLock<MariadbServer> = OnceLock::new();
    SERVER.get_or_init(MariadbServer::start)
}

async fn refused(url: &str) -> Error {
    match Locks::connect(url).await {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error,
    }
}

fn user(name: &str, rights: &str) {
    server().sql(&format!(
        "CREATE DATABASE IF NOT EXISTS {name}; CREATE OR REPLACE USER '{name}'@'%' IDENTIFIED BY 'S3CRET'; \
         GRANT {rights} ON {name}.* TO '{name}'@'%'"
    ));
}

#[tokio::test]
async fn a_wrong_password_is_said_and_not_shown() {
    user("wrong", "ALL");
    let error = refused(&server().url_of("wrong", "S3CRETbutWRONG", "wrong")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        !format!("{error} {error:?}").contains("S3CRET"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_database_that_is_not_there_is_said() {
    let error = refused(&format!("mysql://root@127.0.0.1:{}/nowhere", server().port)).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = refused(&format!("mysql://root@127.0.0.1:{}", server().port)).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.advice().unwrap().contains("/database"), "{error}");
}

#[tokio::test]
async fn who_may_not_make_the_tables_is_told_and_can_use_those_of_another() {
    user("modest", "SELECT, INSERT, UPDATE, DELETE, EXECUTE");
    let url = server().url_of("modest", "S3CRET", "modest");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.advice().unwrap().contains("leasehold schema mysql"),
        "{error}"
    );
    // An operator makes them, and then it works.
    let schema = leasehold::engine::mysql::schema::sql("leasehold").unwrap();
    server().sql(&format!("USE modest;\n{schema}"));
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    let waiting = locks.lock("x").wait(Duration::from_secs(20));
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap().token() });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let token = lease.token();
    lease.release().await.unwrap();
    assert!(waiting.await.unwrap() > token);
}

#[tokio::test]
async fn two_connections_are_enough_to_make_the_tables() {
    let url = format!("{}?table=few&pool=2&timeout=2s", server().url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn an_older_layout_is_brought_up_to_date_and_a_newer_one_refused() {
    let url = format!("{}?table=aged", server().url());
    let locks = Locks::connect(&url).await.unwrap();
    let token = locks.lock("x").acquire().await.unwrap().token();
    server().sql("UPDATE aged_layout SET version = 0; DROP PROCEDURE aged_sweep");
    let locks = Locks::connect(&url).await.unwrap();
    assert_eq!(server().sql("SELECT version FROM aged_layout"), "1");
    let wait = locks.lock("x").wait(Duration::from_secs(40));
    assert!(wait.acquire().await.unwrap().token() > token);
    server().sql("UPDATE aged_layout SET version = 99");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(error.to_string().contains("99"), "{error}");
}

#[tokio::test]
async fn a_read_only_server_is_refused() {
    let server = MariadbServer::start();
    let root = Locks::connect(server.url()).await.unwrap();
    root.lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    server.sql(
        "CREATE USER 'plain'@'%' IDENTIFIED BY 'p'; GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON locks.* TO 'plain'@'%'; \
         SET GLOBAL read_only = 1",
    );
    let url = server.url_of("plain", "p", "locks");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    server.sql("SET GLOBAL read_only = 0");
    Locks::connect(&url).await.unwrap();
}

#[tokio::test]
async fn options_that_cannot_be_used_are_refused_with_advice() {
    for (options, advice) in [
        ("pool=1", "2 to 1000"),
        ("table=a-b", "letters"),
        ("sslmode=maybe", "verify-full"),
        ("colour=red", "timeout"),
    ] {
        let error = refused(&format!("{}?{options}", server().url())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.advice().unwrap().contains(advice), "{error}");
    }
    let error = refused(&format!("{}?sslmode=require", server().url())).await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_wait_for_its_disk_is_warned_of() {
    let server = MariadbServer::with(&["--innodb-flush-log-at-trx-commit=0"]);
    let locks = Locks::connect(server.url()).await.unwrap();
    let warnings = locks.warnings().join(" ");
    assert!(
        warnings.contains("innodb_flush_log_at_trx_commit"),
        "{warnings}"
    );
}

#[tokio::test]
async fn nobody_answers_there() {
    let port = support::free_port();
    let error = refused(&format!(
        "mysql://root@127.0.0.1:{port}/locks?connect_timeout=2s"
    ))
    .await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}
