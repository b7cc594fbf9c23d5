//! `postgres:` over TLS: a real server that shows a certificate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::authority::certificates;
use crate::support::bad_input::PASSWORD;
use crate::support::postgres_server::PostgresServer;
use crate::support::tls_refusals;
use leasehold::{LeaseState, Locks};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const WHO_ENCRYPTS: &str = "hostssl all all 127.0.0.1/32 trust\n";
const ANYONE: &str = "host all all 127.0.0.1/32 trust\n";

/// The options refer to files in the folder by `@`.
fn url(server: &PostgresServer, host: &str, folder: &tempfile::TempDir, options: &str) -> String {
    let options = options.replace('@', &format!("{}/", folder.path().display()));
    format!(
        "postgres://postgres:{PASSWORD}@{host}:{}/postgres?{options}",
        server.port
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_over_tls() {
    let folder = certificates();
    let server = PostgresServer::secured(folder.path(), WHO_ENCRYPTS);
    for options in [
        "",
        "sslmode=prefer",
        "sslmode=require",
        "sslmode=require&sslrootcert=@ca.pem",
        "sslmode=verify-full&sslrootcert=@ca.pem",
    ] {
        let url = url(&server, "127.0.0.1", &folder, options);
        let locks = Locks::connect(&url).await.expect(options);
        let held = locks.lock("a").ttl(ms(1000)).acquire().await.unwrap();
        let next = tokio::spawn(locks.lock("a").ttl(ms(1000)).wait(ms(20_000)).acquire());
        // Through renewals, while one waits.
        tokio::time::sleep(ms(1500)).await;
        assert_eq!(held.state(), LeaseState::Held, "{options}");
        let connections = server.sql(
            "SELECT count(*) FILTER (WHERE pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')) > 0, count(*) FILTER (WHERE NOT ssl) \
             FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE application_name = 'leasehold'",
        );
        assert_eq!(connections, "t|0", "one listens, and all are encrypted");
        let token = held.token();
        held.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        assert!(next.token() > token, "{options}");
        next.release().await.unwrap();
        let warnings = locks.warnings().join(" ");
        assert!(!warnings.contains("messages"), "{options}: {warnings}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_if_need_be() {
    let folder = certificates();
    let server = PostgresServer::secured(folder.path(), ANYONE);
    let locks = Locks::connect(url(&server, "127.0.0.1", &folder, "sslmode=disable"))
        .await
        .unwrap();
    drop(locks.lock("a").acquire().await.unwrap());
    let encrypted = "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) \
                     WHERE application_name = 'leasehold' AND ssl";
    assert_eq!(server.sql(encrypted), "0");
    let plain = PostgresServer::start();
    for options in ["", "sslmode=prefer", "sslmode=disable"] {
        let url = url(&plain, "127.0.0.1", &folder, options);
        let locks = Locks::connect(url).await.expect(options);
        drop(locks.lock("a").acquire().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let folder = certificates();
    let server = PostgresServer::secured(folder.path(), WHO_ENCRYPTS);
    let plain = PostgresServer::start();
    tls_refusals::are_said(
        |host, options| url(&server, host, &folder, options),
        |host, options| url(&plain, host, &folder, options),
    )
    .await;
}
