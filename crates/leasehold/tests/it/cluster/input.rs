//! Clusters and URLs that cannot serve: each says what, where and what to do, and no password is shown.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use leasehold::{ErrorKind, Locks};

use super::common::{X, on, start};
use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::failover::{blocking, until_waiting};
use crate::support::free_port;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

fn at(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn one(port: u16, rest: &str) -> String {
    format!("redis+cluster://{}{rest}", at(port))
}

#[tokio::test]
async fn cluster_url_to_a_single_server_is_refused() {
    let server = RedisServer::start();
    let error = refused(&one(server.port, "")).await;
    check(
        &error,
        ErrorKind::EngineUnfit,
        "not in cluster mode",
        &at(server.port),
    );
    assert!(error.advice().unwrap().contains("redis://"), "{error}");
}

#[tokio::test]
async fn redis_url_to_a_node_names_the_other_scheme() {
    let server = RedisServer::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &free_port().to_string(),
    ]);
    for url in [server.url(), format!("redlock://{}", at(server.port))] {
        let error = refused(&url).await;
        check(
            &error,
            ErrorKind::EngineUnfit,
            "cluster mode",
            &at(server.port),
        );
        assert!(
            error.advice().unwrap().contains("redis+cluster://"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn cluster_with_uncovered_slots_is_refused() {
    let cluster = blocking(|| RedisCluster::apart(1, &[])).await;
    let port = cluster.nodes[0].port;
    let error = refused(&one(port, "")).await;
    check(&error, ErrorKind::EngineUnfit, "slots 0-16383", &at(port));
    let _: () = cluster.tell(0, &["CLUSTER", "ADDSLOTSRANGE", "0", "9", "11", "16000"]);
    let error = refused(&one(port, "")).await;
    check(
        &error,
        ErrorKind::EngineUnfit,
        "slots 10, 16001-16383",
        &at(port),
    );
}

/// It was covered when we connected.
#[tokio::test]
async fn lock_in_a_slot_that_nobody_has_says_so() {
    let cluster = start().await;
    let locks = Locks::connect(cluster.url_with("?timeout=300ms"))
        .await
        .unwrap();
    let slot = on(&cluster, |cluster| {
        let slot = cluster.slot(X);
        for node in 0..6 {
            let _: () = cluster.tell(node, &["CLUSTER", "DELSLOTS", &slot.to_string()]);
        }
        slot
    })
    .await;
    let error = locks.lock("x").acquire().await.unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        &slot.to_string(),
        "redis+cluster://",
    );
    assert!(
        error.advice().unwrap().contains("--cluster check"),
        "{error}"
    );
}

#[tokio::test]
async fn passwords() {
    let cluster = blocking(|| RedisCluster::of_one_with(&["--requirepass", PASSWORD])).await;
    let port = cluster.nodes[0].port;
    let none = refused(&one(port, "")).await;
    check(&none, ErrorKind::Denied, "password", &at(port));
    let wrong = refused(&format!("redis+cluster://:wrong@{}", at(port))).await;
    check(&wrong, ErrorKind::Denied, "password", &at(port));
    let url = format!("redis+cluster://:{PASSWORD}@{}", at(port));
    let locks = Locks::connect(url).await.unwrap();
    assert!(!locks.location().contains(PASSWORD), "{}", locks.location());
    assert!(!format!("{locks:?}").contains(PASSWORD));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn nodes_that_do_not_answer_are_named() {
    let ports = [free_port(), free_port()];
    let error = refused(&format!(
        "redis+cluster://{},{}",
        at(ports[0]),
        at(ports[1])
    ))
    .await;
    check(&error, ErrorKind::Unreachable, "no node", &at(ports[0]));
    assert!(error.what().contains(&at(ports[1])), "{error}");
}

#[tokio::test]
async fn hash_tags_in_prefixes() {
    let cluster = start().await;
    for half in ["{app:", "{}"] {
        let error = refused(&cluster.url_with(&format!("?prefix={half}"))).await;
        check(&error, ErrorKind::InvalidConfig, "hash tag", "");
    }
    let locks = Locks::connect(cluster.url_with("?prefix={app}:"))
        .await
        .unwrap();
    let warned = locks
        .warnings()
        .iter()
        .any(|warning| warning.contains("one slot"));
    assert!(warned, "{:?}", locks.warnings());
    for name in ["a", "b{c}", "d}{"] {
        let lease = locks.lock(name).try_acquire().await.unwrap();
        lease.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    let table = [
        ("redis+cluster:", "names its servers"),
        ("redis+cluster://", "names its servers"),
        ("redis+cluster://a,b,a", "twice"),
        ("redis+cluster://a:x", "not a port"),
        ("redis+cluster://a/2", "no databases"),
        ("redis+cluster://a?db=2", "db"),
        ("redis+cluster://a?max_ttl=60s", "failover"),
        ("redis+cluster://a?wait_replicas=x", "wait_replicas=x"),
        ("rediss+cluster://a?colour=red", "colour"),
    ];
    for (url, says) in table {
        let error = refused(url).await;
        check(&error, ErrorKind::InvalidConfig, says, "");
    }
}

/// The rights that the documentation names are enough.
#[tokio::test]
async fn user_with_just_the_rights_it_needs() {
    let cluster = blocking(RedisCluster::of_one).await;
    let rights = "~leasehold:* &leasehold:* +@read +@write +@connection +@pubsub +@scripting +info +time +cluster|slots";
    let made = cluster.nodes[0].command(&format!("ACL SETUSER app on >{PASSWORD} {rights}"));
    assert!(made.contains("OK"), "{made}");
    let url = format!(
        "redis+cluster://app:{PASSWORD}@{}",
        at(cluster.nodes[0].port)
    );
    let locks = Locks::connect(url).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").wait_forever().acquire());
    until_waiting(&locks, "a", 1).await;
    lease.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert!(locks.list("").await.unwrap().is_empty());
}
