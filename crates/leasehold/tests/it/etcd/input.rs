//! Clusters, users and URLs that cannot serve: each says what, where and what to do; no password is shown, and nothing
//! is left behind.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::etcd_cluster::EtcdCluster;
use crate::support::free_port;
use crate::support::times::secs;
use leasehold::{Effect, ErrorKind, LeaseState, Locks, LossReason};

/// The keys of locks; sessions end with their leases.
fn keys_of_locks(cluster: &EtcdCluster) -> Vec<String> {
    let mut keys = cluster.keys("leasehold/");
    keys.retain(|key| !key.contains("session"));
    keys
}

#[tokio::test]
async fn nobody_listens() {
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("etcd://me:{PASSWORD}@{address}?timeout=300ms");
    let error = refused(&url).await;
    check(&error, ErrorKind::Unreachable, "reached", &address);
    assert_eq!(error.effect(), Effect::None, "{error}");
    let error = refused("etcd://no-such-host.invalid?timeout=300ms").await;
    check(&error, ErrorKind::Unreachable, "reached", "no-such-host");
}

#[tokio::test]
async fn a_server_that_never_answers_costs_the_time_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = refused(&format!(
        "etcd://{address}?timeout=400ms&attempt_timeout=100ms"
    ))
    .await;
    check(&error, ErrorKind::Unreachable, "in time", &address);
    assert!(started.elapsed() < secs(5));
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    for (url, says) in [
        ("etcd:", "names its servers"),
        ("etcd://", "names its servers"),
        ("etcd://a:2379/path", "no path"),
        ("etcd://a?prefx=x", "no option"),
        ("etcd://a?timeout=0s", "out of range"),
        ("etcd://a?timeout=soon", "not a time"),
        ("etcd://user@a:2379", "go together"),
        ("etcd://a?ca=/x", "for TLS"),
        ("etcds://a?cert=/no/such/file", "go together"),
        ("etcds://a?ca=/no/such/file", "cannot be read"),
        ("etcd://a b:2379", "is not a host"),
    ] {
        let error = refused(url).await;
        check(&error, ErrorKind::InvalidConfig, says, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_quorum() {
    let cluster = EtcdCluster::start(3);
    let url = format!("{}?timeout=1500ms", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let held = locks.lock("held").ttl(secs(4)).acquire().await.unwrap();
    cluster.kill(1);
    cluster.kill(2);
    let error = locks.lock("a").acquire().await.unwrap_err();
    check(
        &error,
        ErrorKind::Unreachable,
        "check that a majority",
        "etcd://",
    );
    let error = refused(&url).await;
    check(
        &error,
        ErrorKind::Unreachable,
        "check that a majority",
        "etcd://",
    );
    let lost = tokio::time::timeout(secs(20), held.lost()).await.unwrap();
    assert!(matches!(lost, LossReason::Expired { .. }), "{lost:?}");
    cluster.revive_in_background(1);
    cluster.revive_in_background(2);
    assert!(cluster.answers(1) && cluster.answers(2));
    let free = locks.lock("a").wait(secs(20)).acquire().await.unwrap();
    free.release().await.unwrap();
    locks.flush().await;
    drop(held);
    locks.flush().await;
    let end = Instant::now() + secs(20);
    while !keys_of_locks(&cluster).is_empty() {
        assert!(Instant::now() < end, "{:?}", keys_of_locks(&cluster).len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials() {
    let cluster = EtcdCluster::start(1);
    let root = format!("root:{PASSWORD}");
    cluster.etcdctl(&["user", "add", &root]);
    cluster.etcdctl(&["user", "grant-role", "root", "root"]);
    cluster.etcdctl(&["user", "add", &format!("worker:{PASSWORD}")]);
    cluster.etcdctl(&["user", "add", &format!("guest:{PASSWORD}")]);
    cluster.etcdctl(&["role", "add", "locks"]);
    let prefix = [
        "role",
        "grant-permission",
        "locks",
        "--prefix=true",
        "readwrite",
        "leasehold/",
    ];
    cluster.etcdctl(&prefix);
    cluster.etcdctl(&["user", "grant-role", "worker", "locks"]);
    let warned = Locks::connect(format!("etcd://worker:{PASSWORD}@{}", cluster.host(0))).await;
    assert_eq!(
        warned.unwrap().warnings().len(),
        1,
        "auth is not enabled yet"
    );
    cluster.etcdctl(&["auth", "enable"]);
    let host = cluster.host(0);

    let error = refused(&format!("etcd://worker:not-{PASSWORD}@{host}")).await;
    check(
        &error,
        ErrorKind::Denied,
        "refuses this user or password",
        &host,
    );
    let error = match Locks::connect(format!("etcd://{host}")).await {
        Ok(locks) => locks.lock("a").acquire().await.unwrap_err(),
        Err(error) => error,
    };
    check(
        &error,
        ErrorKind::Denied,
        "refuses this user or password",
        &host,
    );
    let guest = Locks::connect(format!("etcd://guest:{PASSWORD}@{host}"))
        .await
        .unwrap();
    let error = guest.lock("a").acquire().await.unwrap_err();
    check(&error, ErrorKind::Denied, "may not do that", &host);

    let worker = Locks::connect(format!("etcd://worker:{PASSWORD}@{host}"))
        .await
        .unwrap();
    assert!(!format!("{worker:?}").contains(PASSWORD));
    let lease = worker.lock("a").ttl(secs(30)).acquire().await.unwrap();
    let next = tokio::spawn(worker.lock("a").ttl(secs(3)).wait(secs(20)).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    lease.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    // Through a renewal.
    tokio::time::sleep(secs(2)).await;
    assert_eq!(next.state(), LeaseState::Held);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_deleted_by_hand() {
    let cluster = EtcdCluster::start(1);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let lease = locks.lock("a").ttl(secs(3)).acquire().await.unwrap();
    let other = locks.lock("b").ttl(secs(3)).acquire().await.unwrap();
    cluster.etcdctl(&["del", "--prefix", "leasehold/a/"]);
    let reason = tokio::time::timeout(secs(10), lease.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Gone);
    assert_eq!(other.state(), LeaseState::Held);
    let next = locks.lock("a").acquire().await.unwrap();
    assert!(next.token() > lease.token());
}

/// Not at a third of the TTL, which would be ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_revoked_by_hand_is_heard_of_at_once() {
    let cluster = EtcdCluster::start(3);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let lease = locks.lock("a").ttl(secs(60)).acquire().await.unwrap();
    let end = Instant::now() + secs(10);
    while cluster.keys("leasehold/").len() < 2 {
        assert!(Instant::now() < end, "no session");
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let listed = cluster.etcdctl(&["lease", "list"]);
    for id in listed.lines().skip(1).filter(|line| !line.is_empty()) {
        cluster.etcdctl(&["lease", "revoke", id]);
    }
    let revoked = Instant::now();
    tokio::time::timeout(secs(10), lease.lost()).await.unwrap();
    assert!(revoked.elapsed() < secs(5), "{:?}", revoked.elapsed());
    drop(locks.lock("a").ttl(secs(60)).acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_space_left() {
    let cluster = EtcdCluster::with(1, &["--quota-backend-bytes", "4194304"]);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let held = locks.lock("held").ttl(secs(30)).acquire().await.unwrap();
    fill(&cluster);
    let error = locks.lock("a").ttl(secs(30)).acquire().await.unwrap_err();
    check(
        &error,
        ErrorKind::EngineUnfit,
        "no space left",
        "alarm disarm",
    );
    let error = locks.lock("b").ttl(secs(7)).acquire().await.unwrap_err();
    check(
        &error,
        ErrorKind::EngineUnfit,
        "no space left",
        "alarm disarm",
    );
    // What was held before is kept, and given back.
    held.renew().await.unwrap();
    held.release().await.unwrap();
    locks.flush().await;
    assert_eq!(keys_of_locks(&cluster), Vec::<String>::new());
    cluster.etcdctl(&["del", "--prefix", "ballast"]);
    let status = cluster.etcdctl(&["endpoint", "status", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    cluster.etcdctl(&["compact", &revision]);
    cluster.etcdctl(&["defrag"]);
    cluster.etcdctl(&["alarm", "disarm"]);
    drop(locks.lock("a").ttl(secs(30)).acquire().await.unwrap());
}

/// Writes until the server says that there is no space left.
fn fill(cluster: &EtcdCluster) {
    for nth in 0..20 {
        let key = format!("ballast{nth}");
        let mut put = cluster.etcdctl_command(&cluster.host(0), &["put", &key]);
        let put = put
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut put = put.spawn().unwrap();
        put.stdin
            .take()
            .unwrap()
            .write_all(&vec![b'x'; 1 << 20])
            .unwrap();
        if !put.wait().unwrap().success() {
            return;
        }
    }
    panic!("it does not fill up");
}
