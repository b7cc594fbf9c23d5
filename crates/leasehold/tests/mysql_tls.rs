//! `mysql:` over TLS: a real server that shows a certificate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, Locks};
use support::authority::certificates;
use support::bad_input::{PASSWORD, check, refused};
use support::mariadb_server::MariadbServer;

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

    let error = refusal("127.0.0.1", "sslmode=disable").await;
    check(&error, ErrorKind::Denied, "refuses this user", &place);
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

    let plain = with_a_user(MariadbServer::start());
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

/// A user of whom the server asks for TLS, on a server that does not ask it of all.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_must_encrypt() {
    let folder = certificates();
    let server = with_a_user(MariadbServer::secured(folder.path(), &[]));
    server.sql("ALTER USER 'me'@'%' REQUIRE SSL");
    let with = |options| url(&server, "127.0.0.1", &folder, options);
    Locks::connect(with("")).await.unwrap();
    let error = refused(&with("sslmode=disable")).await;
    let place = server.port.to_string();
    check(&error, ErrorKind::Denied, "refuses this user", &place);
    assert!(
        error.advice().unwrap().contains("sslmode=require"),
        "{error}"
    );
    // Whoever encrypts need not be told.
    let wrong = with("").replace(PASSWORD, "wrong");
    let error = refused(&wrong).await;
    assert!(!error.to_string().contains("sslmode"), "{error}");
}
