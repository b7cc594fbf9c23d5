//! What names that are used once leave behind in the store: nothing that grows with their number.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::support::etcd_cluster::EtcdCluster;
use crate::support::mariadb_server::MariadbServer;
use crate::support::postgres_server::PostgresServer;
use crate::support::redis_server::RedisServer;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::guard::{Fencing, StoredFence};
use leasehold::{FencingToken, LockName, Locks};
use zookeeper_client::{Acls, Client, CreateMode};

/// How many names are used.
const NAMES: usize = 40;

/// What is kept for a while is kept for this long.
const BRIEF: Duration = Duration::from_millis(100);

const WAIT: Duration = Duration::from_secs(30);

async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !check().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

/// Uses many names for one thing each; `count` tells how many records there are.
async fn names_are_forgotten(url: &str, count: impl Fn() -> usize) {
    let locks = Locks::connect(url).await.unwrap();
    let store = locks.store().unwrap().remember_deleted(BRIEF);
    let fence = StoredFence::new(store.clone());
    for nth in 0..NAMES {
        let name = format!("n{nth}");
        let latch = locks.latch(&name, 1).unwrap().keep_for(BRIEF);
        latch.arrive("one").await.unwrap();
        let barrier = locks.barrier(&name, 1).unwrap().keep_for(BRIEF);
        barrier.pass(WAIT).await.unwrap();
        let lock = LockName::new(&name).unwrap();
        fence.check(&lock, token(7)).await.unwrap();
        store.write_fenced(&name, "v", token(7)).await.unwrap();
        store.delete(&name, token(7)).await.unwrap();
        let once = locks.lock(&name).once_per(Duration::from_secs(1));
        once.run(|_| async { Ok::<_, ()>(()) }).await.unwrap();
    }
    until("what has ended is cleared away", async || {
        // Whoever writes what ends clears away a little of what has ended.
        store.delete("last", token(7)).await.unwrap();
        count() <= 1
    })
    .await;
}

/// The same for requests to give a lock up, which go with the lease that they were for.
async fn requests_are_cleared(url: &str, count: impl Fn() -> usize) {
    let locks = Locks::connect(url).await.unwrap();
    let before = count();
    for nth in 0..NAMES {
        let name = format!("asked{nth}");
        let lease = locks.lock(&name).acquire().await.unwrap();
        locks.request_revoke(&name, "a deploy").await.unwrap();
        lease.revoke_requested().await.unwrap();
        lease.release().await.unwrap();
    }
    until("answered requests are cleared", async || count() <= before).await;
    // One that nobody heard is cleared by the next who listens.
    let lease = locks.lock("ignored").acquire().await.unwrap();
    locks.request_revoke("ignored", "a deploy").await.unwrap();
    assert_eq!(count(), before + 1);
    lease.release().await.unwrap();
    let next = locks.lock("ignored").acquire().await.unwrap();
    let listening = tokio::spawn({
        let next = next.view();
        async move { next.revoke_requested().await }
    });
    until("a stale request is cleared", async || count() <= before).await;
    listening.abort();
    next.release().await.unwrap();
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let url = format!("sqlite:{}", file.display());
    let records = folder.path().join("locks.db-records");
    let count = || match records.exists() {
        false => 0,
        true => {
            let records = rusqlite::Connection::open(&records).unwrap();
            records.busy_timeout(WAIT).unwrap();
            let count = "SELECT count(*) FROM records";
            let count: i64 = records.query_row(count, [], |row| row.get(0)).unwrap();
            count as usize
        }
    };
    requests_are_cleared(&url, count).await;
    names_are_forgotten(&url, count).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn on_redis() {
    let server = RedisServer::start();
    let count = || {
        let count = r#"EVAL "return #redis.call('KEYS', '*record*')" 0"#;
        let said = server.command(count);
        let number = said.strip_prefix(':').expect(&said);
        number.trim_end().parse().unwrap()
    };
    requests_are_cleared(&server.url(), count).await;
    names_are_forgotten(&server.url(), count).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn on_etcd() {
    let cluster = EtcdCluster::start(1);
    let count = || {
        let keys = cluster.keys("leasehold/");
        keys.iter().filter(|key| key.contains("record")).count()
    };
    requests_are_cleared(&cluster.url(), count).await;
    names_are_forgotten(&cluster.url(), count).await;
    // Of the leases that end records, those of one lifetime are shared.
    let leases = || cluster.etcdctl(&["lease", "list"]).lines().count();
    let before = leases();
    let locks = Locks::connect(cluster.url()).await.unwrap();
    let store = locks.store().unwrap();
    for nth in 0..NAMES {
        store.delete(format!("d{nth}"), token(7)).await.unwrap();
    }
    assert!(leases() <= before + 2, "{before} and then {}", leases());
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    let server = PostgresServer::start();
    let count = || {
        let count = server.sql("SELECT count(*) FROM leasehold.records");
        count.trim().parse().unwrap()
    };
    let url = format!("{}?pool=4", server.url());
    requests_are_cleared(&url, count).await;
    names_are_forgotten(&url, count).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn on_mysql() {
    let server = MariadbServer::start();
    let count = || {
        let count = server.sql("SELECT count(*) FROM leasehold_records");
        count.trim().parse().unwrap()
    };
    let url = format!("{}?pool=4", server.url());
    requests_are_cleared(&url, count).await;
    names_are_forgotten(&url, count).await;
}

#[cfg(feature = "zookeeper")]
/// There what has ended is gone for all who look, and cleared away up to ten minutes later: so this has ended long ago.
#[tokio::test(flavor = "multi_thread")]
async fn on_zookeeper() {
    let cluster = ZooKeeperCluster::start(1);
    let url = cluster.url();
    let locks = Locks::connect(&url).await.unwrap();
    let store = locks.store().unwrap();
    store.delete("first", token(1)).await.unwrap();
    let client = Client::connect(&cluster.hosts()).await.unwrap();
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let make = async |path: String, data: &[u8]| {
        client.create(&path, data, &options).await.unwrap();
    };
    make("/leasehold/~ends/1".to_owned(), b"").await;
    for nth in 0..NAMES {
        make(format!("/leasehold/~ends/1/old{nth}"), b"").await;
        // Some were written anew, and stay.
        let ends = if nth % 4 == 0 { "" } else { "1000000" };
        let incarnation = format!("{nth:032x}");
        let data = format!("{ends} {incarnation}\n5\n\n\nvalue");
        let record = format!("/leasehold/~records/old{nth}");
        make(record.clone(), data.as_bytes()).await;
        make(format!("{record}/{incarnation}"), b"").await;
    }
    let left = async |path: &str| client.list_children(path).await.unwrap();
    for _ in 0..NAMES / 8 {
        store.delete("first", token(1)).await.unwrap();
    }
    let kept = left("/leasehold/~records").await;
    assert_eq!(kept.len(), 1 + NAMES / 4, "{kept:?}");
    assert!(!left("/leasehold/~ends").await.contains(&"1".to_owned()));
    assert_eq!(store.read("old0").await.unwrap().unwrap().value, b"value");
    assert_eq!(store.read("old1").await.unwrap(), None);

    let count = || {
        tokio::task::block_in_place(|| {
            let runtime = tokio::runtime::Handle::current();
            runtime.block_on(left("/leasehold/~records")).len()
        })
    };
    requests_are_cleared(&url, count).await;
}
