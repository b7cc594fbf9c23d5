//! What a user can get wrong with `mysql:`, and what is said then.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::mariadb_server::MariadbServer;
use leasehold::{Error, ErrorKind, Locks};

async fn refused(url: &str) -> Error {
    match Locks::connect(url).await {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error,
    }
}

fn user(server: &MariadbServer, name: &str, rights: &str) {
    server.sql(&format!(
        "CREATE DATABASE IF NOT EXISTS {name}; CREATE OR REPLACE USER '{name}'@'%' IDENTIFIED BY 'S3CRET'; \
         GRANT {rights} ON {name}.* TO '{name}'@'%'"
    ));
}

#[tokio::test]
async fn a_wrong_password_is_said_and_not_shown() {
    let server = MariadbServer::start();
    user(&server, "wrong", "ALL");
    let error = refused(&server.url_of("wrong", "S3CRETbutWRONG", "wrong")).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        !format!("{error} {error:?}").contains("S3CRET"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_database_that_is_not_there_is_said() {
    let server = MariadbServer::start();
    let error = refused(&format!("mysql://root@127.0.0.1:{}/nowhere", server.port)).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = refused(&format!("mysql://root@127.0.0.1:{}", server.port)).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.advice().unwrap().contains("/database"), "{error}");
}

#[tokio::test]
async fn user_without_create_right_uses_tables_of_another() {
    let server = MariadbServer::start();
    user(&server, "modest", "SELECT, INSERT, UPDATE, DELETE, EXECUTE");
    let url = server.url_of("modest", "S3CRET", "modest");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.advice().unwrap().contains("leasehold schema mysql"),
        "{error}"
    );
    // An operator makes them, and then it works.
    let schema = leasehold::engine::mysql::schema::sql("leasehold").unwrap();
    server.sql(&format!("USE modest;\n{schema}"));
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
    let server = MariadbServer::start();
    let url = format!("{}?table=few&pool=2&timeout=2s", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("x").acquire().await.unwrap();
    lease.release().await.unwrap();
}

#[tokio::test]
async fn older_layout_is_upgraded_and_a_newer_one_refused() {
    let server = MariadbServer::start();
    let url = format!("{}?table=aged", server.url());
    let locks = Locks::connect(&url).await.unwrap();
    let token = locks.lock("x").acquire().await.unwrap().token();
    server.sql("UPDATE aged_layout SET version = 0; DROP PROCEDURE aged_sweep");
    let locks = Locks::connect(&url).await.unwrap();
    assert_eq!(server.sql("SELECT version FROM aged_layout"), "2");
    let wait = locks.lock("x").wait(Duration::from_secs(40));
    assert!(wait.acquire().await.unwrap().token() > token);
    server.sql("UPDATE aged_layout SET version = 99");
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

/// A cluster of one node, which is all that it takes to be one.
#[tokio::test]
async fn a_node_of_a_galera_cluster_is_refused() {
    let group = crate::support::free_port();
    let server = MariadbServer::with(&[
        "--wsrep-on=ON",
        "--wsrep-provider=/usr/lib/galera/libgalera_smm.so",
        "--wsrep-cluster-address=gcomm://",
        "--wsrep-node-address=127.0.0.1",
        &format!("--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{group}"),
        "--binlog-format=ROW",
        "--innodb-autoinc-lock-mode=2",
    ]);
    assert_eq!(
        server.sql("SHOW STATUS LIKE 'wsrep_cluster_status'"),
        "wsrep_cluster_status\tPrimary"
    );
    let error = refused(&server.url()).await;
    assert_eq!(error.kind(), ErrorKind::EngineUnfit, "{error}");
    assert!(error.to_string().contains("Galera"), "{error}");
    assert!(error.advice().is_some(), "{error}");
    assert_eq!(server.sql("SHOW TABLES"), "", "nothing was made there");
}

#[tokio::test]
async fn options_that_cannot_be_used_are_refused_with_advice() {
    let server = MariadbServer::start();
    for (options, advice) in [
        ("pool=1", "2 to 1000"),
        ("table=a-b", "letters"),
        ("sslmode=maybe", "verify-full"),
        ("colour=red", "timeout"),
    ] {
        let error = refused(&format!("{}?{options}", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.advice().unwrap().contains(advice), "{error}");
    }
    let error = refused(&format!("{}?sslmode=require", server.url())).await;
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
async fn unsynced_binary_log_is_warned_of() {
    let of = |arguments: &[&str]| {
        let server = MariadbServer::with(arguments);
        async move {
            let locks = Locks::connect(server.url()).await.unwrap();
            locks.warnings().join(" ")
        }
    };
    let unsynced = of(&["--log-bin=binlog", "--sync-binlog=0"]).await;
    assert!(unsynced.contains("sync_binlog"), "{unsynced}");
    for synced in [
        &["--log-bin=binlog", "--sync-binlog=1"][..],
        &["--sync-binlog=0"],
        // MariaDB's own: also the binary log's order is on the disk.
        &["--innodb-flush-log-at-trx-commit=3"],
    ] {
        assert_eq!(of(synced).await, "", "{synced:?}");
    }
}

#[tokio::test]
async fn nobody_answers_there() {
    let port = crate::support::free_port();
    let error = refused(&format!(
        "mysql://root@127.0.0.1:{port}/locks?connect_timeout=2s"
    ))
    .await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}
