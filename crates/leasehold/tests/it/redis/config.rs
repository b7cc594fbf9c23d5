//! Redis and Redlock by their typed configuration, and with clients of the user's own.

use std::time::Duration;

use leasehold::engine::redis::RedisConfig;
use leasehold::engine::redis::redis::{Client, TlsCertificates};
use leasehold::engine::redlock::RedlockConfig;
use leasehold::{Error, ErrorKind, Locks, Ttl};

use super::common::{LONG, until_waiting};
use crate::support::authority::certificates;
use crate::support::deployment::Deployment;
use crate::support::free_port;
use crate::support::redis_server::RedisServer;

fn client(server: &RedisServer, rest: &str) -> Client {
    Client::open(format!("{}{rest}", server.url())).unwrap()
}

fn advises(error: &Error, kind: ErrorKind, advice: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let given = error.advice().unwrap_or_default();
    assert!(given.contains(advice), "{error}: {given}");
}

/// Two handles share one lock: one excludes the other, and hands it over.
async fn share_a_lock(one: &Locks, other: &Locks) {
    let held = one.lock("x").acquire().await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(other.lock("x").wait(LONG).acquire());
    until_waiting(one, "x", 1).await;
    let token = held.token();
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn own_client_shares_locks_with_its_url() {
    let server = RedisServer::start();
    let config = RedisConfig::default().prefix("app:");
    let ours = client(&server, "/3?protocol=resp3");
    let engine = config.connect_with(ours.clone()).await.unwrap();
    let location = engine.about().location;
    assert_eq!(location, format!("{}?db=3", server.url()));
    let own = Locks::new(engine);
    let by_url = Locks::connect(format!("{}/3?prefix=app:", server.url())).await;
    share_a_lock(&own, &by_url.unwrap()).await;
    // Another database has other locks.
    let _held = own.lock("x").acquire().await.unwrap();
    let elsewhere = Locks::connect(format!("{}/4?prefix=app:", server.url())).await;
    let there = elsewhere.unwrap().lock("x").try_acquire().await;
    assert!(there.unwrap().is_some());
    // The client still serves the program.
    let mut connection = ours.get_multiplexed_async_connection().await.unwrap();
    let there: bool = redis::cmd("EXISTS")
        .arg("app:x")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert!(there);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_client_survives_a_restart_of_the_server() {
    let server = RedisServer::start();
    let own = client(&server, "?protocol=resp3");
    let engine = RedisConfig::default().connect_with(own).await.unwrap();
    let locks = Locks::new(engine);
    locks.lock("x").acquire().await.unwrap().detach();
    server.kill();
    server.revive();
    let other = Locks::connect(server.url()).await.unwrap();
    share_a_lock(&locks, &other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_client_in_the_wrong_mode_is_refused() {
    let server = RedisServer::start();
    let connect = async |client| RedisConfig::default().connect_with(client).await;
    let error = connect(client(&server, "")).await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "protocol=resp3");
    let error = connect(client(&server, "/9999?protocol=resp3"))
        .await
        .unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "databases");
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &server.port.to_string()]);
    let error = connect(client(&replica, "?protocol=resp3"))
        .await
        .unwrap_err();
    advises(&error, ErrorKind::EngineUnfit, "primary");
    let gone = Client::open("redis://127.0.0.1:1?protocol=resp3").unwrap();
    let error = connect(gone).await.unwrap_err();
    advises(&error, ErrorKind::Unreachable, "address");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_says_what_a_url_says() {
    let server = RedisServer::with(&["--requirepass", "secret/?"]);
    let config = RedisConfig::new("127.0.0.1", server.port)
        .login("", "secret/?")
        .database(2)
        .prefix("p:")
        .timeout(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(5))
        .max_ttl(Ttl::new(Duration::from_secs(1)).unwrap());
    assert!(!format!("{config:?}").contains("secret"), "{config:?}");
    let url = format!(
        "redis://:secret%2F%3F@127.0.0.1:{}/2?prefix=p:&max_ttl=1s&timeout=5s",
        server.port
    );
    let parsed: RedisConfig = url.parse().unwrap();
    let typed = Locks::new(config.connect().await.unwrap());
    let parsed = Locks::new(parsed.connect().await.unwrap());
    let too_long = typed.lock("x").ttl(LONG).try_acquire().await;
    advises(&too_long.unwrap_err(), ErrorKind::InvalidConfig, "max_ttl");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (ttl, wait) = (Duration::from_secs(1), LONG);
    let held = typed.lock("x").ttl(ttl).wait(wait).acquire().await.unwrap();
    let refused = parsed.lock("x").ttl(ttl).try_acquire().await;
    assert!(refused.unwrap().is_none());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_names_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis socket").display().to_string();
    let _server = RedisServer::with(&["--unixsocket", &socket, "--requirepass", "secret"]);
    let config = RedisConfig::socket(&socket).login("", "secret").database(3);
    let url = format!("redis+unix://:secret@{}?db=3", socket.replace(' ', "%20"));
    let typed = Locks::new(config.connect().await.unwrap());
    assert_eq!(typed.location(), format!("redis+unix:{socket}"));
    let parsed = Locks::connect(url).await.unwrap();
    share_a_lock(&typed, &parsed).await;

    let error = RedisConfig::socket(&socket).connect().await.unwrap_err();
    advises(&error, ErrorKind::Denied, "");
    let missing = RedisConfig::socket("/no/such/socket").connect().await;
    let missing = missing.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unreachable, "{missing}");
    let tls = RedisConfig::socket(&socket).tls(TlsCertificates {
        client_tls: None,
        root_cert: None,
    });
    advises(
        &tls.connect().await.unwrap_err(),
        ErrorKind::InvalidConfig,
        "host",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_that_cannot_work_is_refused() {
    let server = RedisServer::with(&["--requirepass", "secret"]);
    let config = || RedisConfig::new("127.0.0.1", server.port);
    let error = config().login("", "wrong").connect().await.unwrap_err();
    advises(&error, ErrorKind::Denied, "check");
    let error = config().timeout(Duration::ZERO).connect().await;
    advises(&error.unwrap_err(), ErrorKind::InvalidConfig, "1ms");
    for bad in ["redlock://a,b", "redis://a?colour=red", "redis://a,b", "a"] {
        let error = bad.parse::<RedisConfig>().unwrap_err();
        advises(&error, ErrorKind::InvalidConfig, "");
        assert!(error.advice().is_some(), "{bad}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_ones_own_are_used_for_tls() {
    let folder = certificates();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let port = free_port();
    let server = RedisServer::with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server-key.pem"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let trusting = |root: &str| TlsCertificates {
        client_tls: None,
        root_cert: Some(read(root)),
    };
    let connect = async |certificates| {
        let config = RedisConfig::new("127.0.0.1", port).tls(certificates);
        config.connect().await
    };
    let typed = Locks::new(connect(trusting("ca.pem")).await.unwrap());
    let url = format!("rediss://127.0.0.1:{port}?protocol=resp3");
    let own = Client::build_with_tls(url, trusting("ca.pem")).unwrap();
    let own = RedisConfig::default().connect_with(own).await.unwrap();
    share_a_lock(&typed, &Locks::new(own)).await;
    let plain = Locks::connect(server.url()).await.unwrap();
    share_a_lock(&plain, &typed).await;

    let error = connect(trusting("other-ca.pem")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("rediss://"), "{error}");
    let nothing = TlsCertificates {
        client_tls: None,
        root_cert: Some(b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----".to_vec()),
    };
    let error = connect(nothing).await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "PEM");
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_with_own_clients_shares_its_locks() {
    let nodes = Deployment::start(3);
    nodes.has_stood_a_while();
    let max_ttl = Ttl::new(Duration::from_secs(24 * 60 * 60)).unwrap();
    let config = || {
        let ports = nodes.nodes.iter().map(|node| ("127.0.0.1", node.port));
        let config = RedlockConfig::new(ports).max_ttl(max_ttl);
        config.node_timeout(Duration::from_secs(1))
    };
    let clients = |rest: &'static str| nodes.nodes.iter().map(move |node| client(node, rest));
    let own = config().connect_with(clients("?protocol=resp3")).await;
    let own = Locks::new(own.unwrap());
    let typed = Locks::new(config().connect().await.unwrap());
    let by_url = Locks::connect(nodes.url()).await.unwrap();
    share_a_lock(&own, &typed).await;
    share_a_lock(&typed, &by_url).await;

    let error = config().connect_with(clients("")).await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "protocol=resp3");
    let twice = clients("?protocol=resp3").chain(clients("?protocol=resp3"));
    let error = config().connect_with(twice).await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "once");
    let error = config().connect_with([]).await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "once");
    let error = config().quorum(1).connect().await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "2 to 3");
    let error = config().drift(f64::NAN).connect().await.unwrap_err();
    advises(&error, ErrorKind::InvalidConfig, "50%");
}
