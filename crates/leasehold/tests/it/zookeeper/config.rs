//! A configuration made without a URL.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use leasehold::engine::zookeeper::{Layout, ZookeeperConfig};
use leasehold::{ErrorKind, Locks};

use crate::support::bad_input::{PASSWORD, check};
use crate::support::free_port;
use crate::support::of_use::is_of_use;
use crate::support::times::{ms, secs};
use crate::support::zookeeper_cluster::ZooKeeperCluster;

fn config(cluster: &ZooKeeperCluster) -> ZookeeperConfig {
    let mut ports = cluster.nodes.iter().map(|node| node.port);
    let first = ZookeeperConfig::new("127.0.0.1", ports.next().unwrap());
    ports.fold(first, |config, port| config.server("127.0.0.1", port))
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_without_a_url_is_used() {
    let cluster = ZooKeeperCluster::start(3);
    let config = config(&cluster)
        .login("me", PASSWORD)
        .session_timeout(secs(4))
        .timeout(secs(10))
        .layout(Layout::Curator);
    assert!(!format!("{config:?}").contains(PASSWORD));
    let locks = Locks::new(config.connect().await.unwrap());
    let location = locks.location().to_owned();
    assert!(
        location.starts_with("zookeeper://me:***@127.0.0.1:"),
        "{location}"
    );
    assert!(location.ends_with("/leasehold"), "{location}");
    is_of_use(&locks, "x").await;
    // It is the same lock by URL; the node is another user's to those who do not log in.
    let held = locks.lock("x").ttl(secs(20)).acquire().await.unwrap();
    let url = location.replace("***", PASSWORD) + "?layout=curator&session_timeout=4s";
    let other = Locks::connect(&url).await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let parsed: ZookeeperConfig = url.parse().unwrap();
    let other = Locks::new(parsed.connect().await.unwrap());
    other
        .lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let nobody = Locks::new(self::config(&cluster).connect().await.unwrap());
    let error = nobody.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn configurations_that_cannot_be_used_are_refused() {
    let cluster = ZooKeeperCluster::start(1);
    let config = || config(&cluster);
    for (config, words) in [
        (config().timeout(Duration::ZERO), "timeout is zero"),
        (
            config().session_timeout(Duration::ZERO),
            "session_timeout is zero",
        ),
        (config().server("host/path", 2181), "is not a host"),
        (config().server("", 2181), "is not a host"),
        (config().path("locks"), "is not the path of a node"),
        (config().path("/a/../b"), "is not the path of a node"),
        (config().login("a:b", PASSWORD), "a user without a colon"),
        (config().login("", PASSWORD), "a user without a colon"),
    ] {
        let error = config.connect().await.unwrap_err();
        check(&error, ErrorKind::InvalidConfig, words, "");
    }
    let error = config().path("/nowhere").connect().await.unwrap_err();
    check(
        &error,
        ErrorKind::EngineUnfit,
        "there is no node",
        "/nowhere",
    );
    let nobody = ZookeeperConfig::new("127.0.0.1", free_port()).timeout(ms(300));
    let error = nobody.login("me", PASSWORD).connect().await.unwrap_err();
    check(&error, ErrorKind::Unreachable, "", "127.0.0.1");
    for url in [
        "etcd://127.0.0.1",
        "zookeeper://127.0.0.1?wrong=1",
        "zookeeper://a:b@127.0.0.1?timeout=0s",
    ] {
        let error = url.parse::<ZookeeperConfig>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
    }
}
