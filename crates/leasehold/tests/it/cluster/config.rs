//! Clusters by their typed configuration, and over TLS.

use std::time::Duration;

use leasehold::engine::redis::cluster::ClusterConfig;
use leasehold::{ErrorKind, Locks};
use redis::TlsCertificates;

use super::common::start;
use crate::support::authority::certificates;
use crate::support::bad_input::check;
use crate::support::failover::blocking;
use crate::support::free_port;
use crate::support::redis_cluster::RedisCluster;

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_that_cannot_work_is_refused() {
    let none: [(&str, u16); 0] = [];
    let error = ClusterConfig::new(none).connect().await.unwrap_err();
    check(&error, ErrorKind::InvalidConfig, "no nodes", "");
    let zero = ClusterConfig::new([("a", 1)]).timeout(Duration::ZERO);
    check(
        &zero.connect().await.unwrap_err(),
        ErrorKind::InvalidConfig,
        "timeout",
        "",
    );
    for bad in ["redis://a", "redis+cluster://a/1", "a"] {
        let error = bad.parse::<ClusterConfig>().unwrap_err();
        check(&error, ErrorKind::InvalidConfig, "", "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_configuration_says_what_a_url_says() {
    let cluster = start().await;
    let typed = ClusterConfig::new([("127.0.0.1", cluster.nodes[4].port)])
        .prefix("p:")
        .wait_replicas(1)
        .timeout(Duration::from_secs(5))
        .connect_timeout(Duration::from_secs(5));
    let typed = Locks::new(typed.connect().await.unwrap());
    let parsed: ClusterConfig = cluster.url_with("?prefix=p:").parse().unwrap();
    let parsed = Locks::new(parsed.connect().await.unwrap());
    let held = typed.lock("x").acquire().await.unwrap();
    assert!(parsed.lock("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert!(parsed.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_ones_own_are_used_for_tls() {
    let folder = certificates();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let port = free_port();
    let arguments = [
        "--tls-port".to_owned(),
        port.to_string(),
        "--tls-cluster".to_owned(),
        "yes".to_owned(),
        "--tls-cert-file".to_owned(),
        path("server.pem"),
        "--tls-key-file".to_owned(),
        path("server-key.pem"),
        "--tls-ca-cert-file".to_owned(),
        path("ca.pem"),
        "--tls-auth-clients".to_owned(),
        "no".to_owned(),
    ];
    let _cluster = blocking(move || {
        let arguments = arguments.each_ref().map(String::as_str);
        RedisCluster::of_one_with(&arguments)
    })
    .await;
    let trusting = |root: &str| TlsCertificates {
        client_tls: None,
        root_cert: Some(std::fs::read(folder.path().join(root)).unwrap()),
    };
    let config = || ClusterConfig::new([("127.0.0.1", port)]);
    let locks = config().tls(trusting("ca.pem")).connect().await.unwrap();
    let locks = Locks::new(locks);
    assert!(locks.location().starts_with("rediss+cluster://"));
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
    let error = config().tls(trusting("other-ca.pem")).connect().await;
    let error = error.unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        "no node",
        "rediss+cluster://",
    );
}
