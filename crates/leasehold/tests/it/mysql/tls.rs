//! `mysql:` over TLS: a real server that shows a certificate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::authority::certificates;
use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::mariadb_server::MariadbServer;
use crate::support::tls_refusals;
use leasehold::{ErrorKind, LeaseState, Locks};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// It then refuses all who do not encrypt.
const WHO_ENCRYPTS: &str = "--require-secure-transport=ON";

/// Whoever connects has a password.
fn with_a_user(server: MariadbServer) -> MariadbServer {
    server.sql(&format!(
        "CREATE USER 'me'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON locks.* TO 'me'@'%'"
    ));
    server
}

/// The options refer to files in the folder by `@`.
fn url(server: &MariadbServer, host: &str, folder: &tempfile::TempDir, options: &str) -> String {
    let options = options.replace('@', &format!("{}/", folder.path().display()));
    format!(
        "mysql://me:{PASSWORD}@{host}:{}/locks?{options}",
        server.port
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_over_tls() {
    let folder = certificates();
    let server = with_a_user(MariadbServer::secured(folder.path(), &[WHO_ENCRYPTS]));
    let connect = async |options: &str| {
        let url = url(&server, "127.0.0.1", &folder, options);
        Locks::connect(url).await.expect(options)
    };
    // Those who encrypt differently wait apart, so a hand-over to the other wakes it.
    let holder = connect("sslmode=require&sslrootcert=@ca.pem&pool=4").await;
    for options in [
        "",
        "sslmode=prefer",
        "sslmode=require",
        "sslmode=verify-full&sslrootcert=@ca.pem",
    ] {
        let locks = connect(options).await;
        let held = holder.lock("a").ttl(ms(1000)).acquire().await.unwrap();
        let next = tokio::spawn(locks.lock("a").ttl(ms(1000)).wait(ms(20_000)).acquire());
        // Through renewals, while one waits.
        tokio::time::sleep(ms(1500)).await;
        assert_eq!(held.state(), LeaseState::Held, "{options}");
        let token = held.token();
        held.release().await.unwrap();
        let next = next.await.unwrap().unwrap();
        assert!(next.token() > token, "{options}");
        next.release().await.unwrap();
        assert_eq!(locks.warnings(), Vec::<String>::new(), "{options}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tls_if_need_be() {
    let folder = certificates();
    let server = with_a_user(MariadbServer::secured(folder.path(), &[]));
    let plain = with_a_user(MariadbServer::start());
    for (server, options) in [
        (&server, "sslmode=disable"),
        (&plain, "sslmode=disable"),
        (&plain, "sslmode=prefer"),
        (&plain, ""),
    ] {
        let url = url(server, "127.0.0.1", &folder, options);
        let locks = Locks::connect(url).await.expect(options);
        drop(locks.lock("a").acquire().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said() {
    let folder = certificates();
    let server = with_a_user(MariadbServer::secured(folder.path(), &[WHO_ENCRYPTS]));
    let plain = with_a_user(MariadbServer::start());
    tls_refusals::are_said(
        |host, options| url(&server, host, &folder, options),
        |host, options| url(&plain, host, &folder, options),
    )
    .await;
}

/// A user of whom the server asks for TLS, on a server that does not ask it of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_must_encrypt() {
    let folder = certificates();
    let server = with_a_user(MariadbServer::secured(folder.path(), &[]));
    server.sql("ALTER USER 'me'@'%' REQUIRE SSL");
    let with = |options| url(&server, "127.0.0.1", &folder, options);
    Locks::connect(with("")).await.unwrap();
    let error = refused(&with("sslmode=disable")).await;
    let location = server.port.to_string();
    check(&error, ErrorKind::Denied, "refuses this user", &location);
    assert!(
        error.advice().unwrap().contains("sslmode=require"),
        "{error}"
    );
    // Whoever encrypts need not be told.
    let wrong = with("").replace(PASSWORD, "wrong");
    let error = refused(&wrong).await;
    assert!(!error.to_string().contains("sslmode"), "{error}");
}
