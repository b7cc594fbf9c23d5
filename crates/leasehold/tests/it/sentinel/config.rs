//! Sentinels by their typed configuration, and over TLS.

use std::time::Duration;

use leasehold::engine::redis::sentinel::SentinelConfig;
use leasehold::{ErrorKind, Locks};
use redis::TlsCertificates;

use crate::support::authority::certificates;
use crate::support::bad_input::{PASSWORD, check};
use crate::support::free_port;
use crate::support::redis_sentinels::{SERVICE, sentinel};
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_says_what_a_url_says() {
    let server = RedisServer::with(&["--requirepass", PASSWORD]);
    let lines = [
        format!("requirepass {PASSWORD}-too"),
        format!("sentinel auth-pass {SERVICE} {PASSWORD}"),
    ];
    let sentinel = sentinel(server.port, &lines.each_ref().map(String::as_str));
    let typed = SentinelConfig::new([("127.0.0.1", sentinel.port)], SERVICE)
        .login("", PASSWORD)
        .sentinel_login("", &format!("{PASSWORD}-too"))
        .database(2)
        .prefix("p:")
        .wait_replicas(0)
        .timeout(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(5));
    assert!(!format!("{typed:?}").contains(PASSWORD), "{typed:?}");
    let url = format!(
        "redis+sentinel://:{PASSWORD}@127.0.0.1:{}/{SERVICE}?sentinel_password={PASSWORD}-too&db=2&prefix=p:&wait_replicas=0",
        sentinel.port
    );
    let parsed: SentinelConfig = url.parse().unwrap();
    assert!(!format!("{parsed:?}").contains(PASSWORD), "{parsed:?}");
    let typed = Locks::new(typed.connect().await.unwrap());
    let parsed = Locks::new(parsed.connect().await.unwrap());
    let held = typed.lock("x").acquire().await.unwrap();
    assert!(parsed.lock("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert!(parsed.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_that_cannot_work_is_refused() {
    let none: [(&str, u16); 0] = [];
    let error = SentinelConfig::new(none, SERVICE).connect().await;
    check(
        &error.unwrap_err(),
        ErrorKind::InvalidConfig,
        "no sentinels",
        "",
    );
    let error = SentinelConfig::new([("a", 1)], "").connect().await;
    check(
        &error.unwrap_err(),
        ErrorKind::InvalidConfig,
        "not the name",
        "",
    );
    let zero = SentinelConfig::new([("a", 1)], SERVICE).timeout(Duration::ZERO);
    check(
        &zero.connect().await.unwrap_err(),
        ErrorKind::InvalidConfig,
        "timeout",
        "",
    );
    for bad in ["redis://a", "redis+sentinel://a/x?colour=red", "a"] {
        let error = bad.parse::<SentinelConfig>().unwrap_err();
        check(&error, ErrorKind::InvalidConfig, "", "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_ones_own_are_used_for_tls() {
    let folder = certificates();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let files = [
        ("tls-cert-file", path("server.pem")),
        ("tls-key-file", path("server-key.pem")),
        ("tls-ca-cert-file", path("ca.pem")),
        ("tls-auth-clients", "no".to_owned()),
    ];
    let (primary, watcher) = (free_port(), free_port());
    let mut arguments = vec!["--tls-port".to_owned(), primary.to_string()];
    for (name, value) in &files {
        arguments.extend([format!("--{name}"), value.clone()]);
    }
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let _server = RedisServer::with(&arguments);
    let mut lines = vec![
        format!("tls-port {watcher}"),
        "tls-replication yes".to_owned(),
    ];
    lines.extend(files.iter().map(|(name, value)| format!("{name} {value}")));
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let _sentinel = sentinel(primary, &lines);
    let trusting = |root: &str| TlsCertificates {
        client_tls: None,
        root_cert: Some(std::fs::read(folder.path().join(root)).unwrap()),
    };
    let config = || SentinelConfig::new([("127.0.0.1", watcher)], SERVICE).wait_replicas(0);
    let locks = config().tls(trusting("ca.pem")).connect().await.unwrap();
    let locks = Locks::new(locks);
    assert!(locks.location().starts_with("rediss+sentinel://"));
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
    let error = config().tls(trusting("other-ca.pem")).connect().await;
    check(
        &error.unwrap_err(),
        ErrorKind::Unreachable,
        "no sentinel",
        "rediss+sentinel://",
    );
}
