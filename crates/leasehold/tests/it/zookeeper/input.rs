//! Servers, users, URLs and nodes that cannot serve: each says what, where and what to do; no password is shown, and
//! nothing is left behind.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::support::bad_input::{PASSWORD, check, refused};
use crate::support::free_port;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::{ErrorKind, LeaseState, Locks, LossReason};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

async fn by_hand(cluster: &ZooKeeperCluster) -> Client {
    Client::connect(&cluster.hosts()).await.unwrap()
}

/// The nodes of all claims on a lock, the first first.
async fn claims(client: &Client, lock: &str) -> Vec<String> {
    let mut nodes = client.list_children(lock).await.unwrap_or_default();
    nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
    nodes.iter().map(|node| format!("{lock}/{node}")).collect()
}

#[tokio::test]
async fn nobody_listens() {
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("zookeeper://me:{PASSWORD}@{address}?timeout=500ms");
    let error = refused(&url).await;
    check(
        &error,
        ErrorKind::Unreachable,
        "no server can be reached",
        &address,
    );
    let error = refused("zookeeper://no-such-host.invalid?timeout=500ms").await;
    check(
        &error,
        ErrorKind::Unreachable,
        "addresses",
        "no-such-host.invalid",
    );
}

#[tokio::test]
async fn servers_that_never_answer_or_are_none() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = refused(&format!("zookeeper://{address}?timeout=500ms")).await;
    check(&error, ErrorKind::Unreachable, "", &address);
    assert!(started.elapsed() < Duration::from_secs(10));

    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = refused(&format!("zookeeper://{address}?timeout=500ms")).await;
    check(&error, ErrorKind::Unreachable, "", &address);
}

#[tokio::test]
async fn urls_that_cannot_be_meant() {
    for (url, says) in [
        ("zookeeper:", "names its servers"),
        ("zookeeper:///locks", "names its servers"),
        ("zookeeper://h:0", "is not a port"),
        ("zookeeper://h:port", "is not a port"),
        ("zookeeper://h//locks", "not the path of a node"),
        ("zookeeper://h/a/../b", "not the path of a node"),
        ("zookeeper://h/a%00b", "not the path of a node"),
        ("zookeeper://me@h", "a password"),
        ("zookeeper://h?layout=mine", "no layout"),
        ("zookeeper://h?session_timeout=0s", "out of range"),
        ("zookeeper://h?session_timeout=long", "not a time"),
        ("zookeeper://h?prefix=x", "no option"),
    ] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
        assert!(error.advice().is_some(), "{url}: {error}");
    }
}

#[tokio::test]
async fn no_quorum() {
    let cluster = ZooKeeperCluster::start(3);
    let url = format!("{}?timeout=2s&session_timeout=2s", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let lease = locks.lock("held").acquire().await.unwrap();
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    let error = refused(&url).await;
    check(&error, ErrorKind::Unreachable, "quorum", &cluster.hosts());
    let error = locks.lock("a").acquire().await.unwrap_err();
    check(&error, ErrorKind::Unreachable, "", &cluster.hosts());
    let lost = tokio::time::timeout(Duration::from_secs(20), lease.lost()).await;
    assert_ne!(lost.unwrap(), LossReason::Released);
    assert!(matches!(lease.state(), LeaseState::Lost(_)));

    // With a quorum all is well again, and nothing has stayed.
    cluster.nodes[0].revive();
    cluster.nodes[1].revive();
    let again = async {
        while locks
            .lock("a")
            .wait(Duration::ZERO)
            .acquire()
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        while !locks.inspect("held").await.unwrap().holders.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(40), again).await;
    again.expect("it goes on with a quorum");
}

#[tokio::test]
async fn wrong_credentials() {
    let cluster = ZooKeeperCluster::start(1);
    let owner = by_hand(&cluster).await;
    let login = format!("me:{PASSWORD}");
    owner.auth("digest", login.as_bytes()).await.unwrap();
    let private = CreateMode::Persistent.with_acls(Acls::creator_all());
    owner.create("/private", b"", &private).await.unwrap();
    let hosts = cluster.hosts();
    for login in ["", "me:wrong@", &format!("other:{PASSWORD}@")] {
        let url = format!("zookeeper://{login}{hosts}/private");
        let locks = Locks::connect(&url).await.unwrap();
        for error in [
            locks.lock("a").acquire().await.unwrap_err(),
            locks.lock("a").try_acquire().await.unwrap_err(),
            locks.list("").await.unwrap_err(),
        ] {
            check(&error, ErrorKind::Denied, "may not", &hosts);
        }
    }
    assert_eq!(claims(&owner, "/private").await, [""; 0]);

    let url = format!("zookeeper://me:{PASSWORD}@{hosts}/private");
    let locks = Locks::connect(url).await.unwrap();
    assert!(!locks.location().contains(PASSWORD));
    assert!(!format!("{locks:?}").contains(PASSWORD));
    let lease = locks.lock("a").acquire().await.unwrap();
    // Nobody else can delete it.
    let stranger = by_hand(&cluster).await;
    let node = &claims(&owner, "/private/a").await[0];
    assert!(stranger.delete(node, None).await.is_err());
    lease.release().await.unwrap();
}

#[tokio::test]
async fn a_missing_node_above_the_locks() {
    let cluster = ZooKeeperCluster::start(1);
    let url = format!("{}/no/such/node", cluster.url());
    let error = refused(&url).await;
    check(&error, ErrorKind::EngineUnfit, "no node", &url);

    // It goes while we work.
    let client = by_hand(&cluster).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create("/locks", b"", &open).await.unwrap();
    let url = format!("{}/locks", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    client.delete("/locks", None).await.unwrap();
    let error = locks.lock("a").acquire().await.unwrap_err();
    check(&error, ErrorKind::EngineUnfit, "gone", &url);
    assert_eq!(locks.list("").await.unwrap(), []);
    client.create("/locks", b"", &open).await.unwrap();
    drop(locks.lock("a").acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_deleted_by_hand() {
    let cluster = ZooKeeperCluster::start(1);
    let url = format!("{}?session_timeout=3s", cluster.url());
    let locks = Locks::connect(&url).await.unwrap();
    let client = by_hand(&cluster).await;
    let lock = "/leasehold/x";
    let lease = locks.lock("x").acquire().await.unwrap();
    let wait = || tokio::spawn(locks.lock("x").wait_forever().acquire());
    let first = wait();
    while claims(&client, lock).await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = wait();
    while claims(&client, lock).await.len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The first waiter's: it comes in later, after the second.
    let nodes = claims(&client, lock).await;
    client.delete(&nodes[1], None).await.unwrap();
    // The holder's: it hears, and says why.
    client.delete(&nodes[0], None).await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(20), lease.lost()).await;
    assert_eq!(lost.unwrap(), LossReason::Gone);
    second.await.unwrap().unwrap().release().await.unwrap();
    first.await.unwrap().unwrap().release().await.unwrap();
    drop(lease);
    locks.flush().await;
    assert_eq!(claims(&client, lock).await, [""; 0]);
}

/// Another program's nodes are in nobody's way unless they stand in line.
#[tokio::test]
async fn strange_nodes_under_a_lock() {
    let cluster = ZooKeeperCluster::start(1);
    let locks = Locks::connect(cluster.url()).await.unwrap();
    locks
        .lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let client = by_hand(&cluster).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client
        .create("/leasehold/x/note", b"\xff", &open)
        .await
        .unwrap();
    client
        .create("/leasehold/not a lock", b"", &open)
        .await
        .unwrap();
    locks
        .lock("x")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(locks.list("").await.unwrap(), []);

    // A sequential one that nobody knows counts as exclusive.
    let open = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    client
        .create("/leasehold/x/who-", b"\xff", &open)
        .await
        .unwrap();
    assert!(
        locks
            .lock("x")
            .shared()
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    let shown = locks.inspect("x").await.unwrap();
    assert_eq!(shown.holders[0].claimant.label, "another program");
    locks.force_release("x").await.unwrap();
    assert!(locks.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_is_left_again() {
    let cluster = ZooKeeperCluster::start(1);
    let client = by_hand(&cluster).await;
    let open = Acls::anyone_all();
    let root = CreateMode::Persistent.with_acls(open);
    client.create("/leasehold", b"", &root).await.unwrap();
    let unreadable = [Acl::new(
        Permission::CREATE | Permission::DELETE,
        AuthId::anyone(),
    )];
    let unreadable = CreateMode::Persistent.with_acls((&unreadable[..]).into());
    client
        .create("/leasehold/x", b"", &unreadable)
        .await
        .unwrap();
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let error = locks.lock("x").wait_forever().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let stat = client.check_stat("/leasehold/x").await.unwrap().unwrap();
    assert_eq!(stat.num_children, 0, "its node stays in the queue");
}
