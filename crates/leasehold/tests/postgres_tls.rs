//! `postgres:` over TLS: a real server that shows a certificate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, Locks};
use support::authority::certificates;
use support::bad_input::{PASSWORD, check, refused};
use support::postgres_server::PostgresServer;

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
            "SELECT count(*) FILTER (WHERE query LIKE '%beat(%') > 0, count(*) FILTER (WHERE NOT ssl) \
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
    let refusal =
        async |host: &str, options: &str| refused(&url(&server, host, &folder, options)).await;
    let place = server.port.to_string();

    for options in [
        "sslmode=verify-full",
        "sslmode=verify-full&sslrootcert=@other-ca.pem",
        "sslmode=require&sslrootcert=@other-ca.pem",
    ] {
        let error = refusal("127.0.0.1", options).await;
        check(&error, ErrorKind::Denied, "is not trusted", &place);
        assert!(error.advice().unwrap().contains("sslrootcert="), "{error}");
    }
    let error = refusal("localhost", "sslmode=verify-full&sslrootcert=@ca.pem").await;
    check(&error, ErrorKind::Denied, "is for another host", &place);
    assert!(error.to_string().contains("127.0.0.1"), "{error}");

    let error = refusal("127.0.0.1", "sslmode=disable").await;
    check(&error, ErrorKind::Denied, "not encrypted", &place);
    assert!(
        error.advice().unwrap().contains("sslmode=require"),
        "{error}"
    );

    let error = refusal("127.0.0.1", "sslmode=verify-full&sslrootcert=@nowhere.pem").await;
    check(&error, ErrorKind::InvalidConfig, "cannot be read", &place);
    let error = refusal(
        "127.0.0.1",
        "sslmode=verify-full&sslrootcert=@server-key.pem",
    )
    .await;
    check(&error, ErrorKind::InvalidConfig, "no certificates", &place);

    let plain = PostgresServer::start();
    for options in ["sslmode=require", "sslmode=verify-full&sslrootcert=@ca.pem"] {
        let error = refused(&url(&plain, "127.0.0.1", &folder, options)).await;
        let place = plain.port.to_string();
        check(&error, ErrorKind::EngineUnfit, "does not encrypt", &place);
        assert!(
            error.advice().unwrap().contains("sslmode=disable"),
            "{error}"
        );
    }
}
