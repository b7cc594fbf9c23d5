//! Other people's ZooKeeper locks on the same path, at the same time: exclusion holds both ways, and nobody is stranded.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::fleets::other::{NAME, OUR_TTL, Other, each_side_is_refused, nothing_is_lost};
use crate::fleets::recipe::Recipe;
use crate::fleets::script;
use crate::support::zookeeper_cluster::ZooKeeperCluster;
use leasehold::Locks;

const PATH: &str = "/leasehold/the-lock";

struct Fleet {
    servers: ZooKeeperCluster,
    kind: &'static str,
    locks: Locks,
}

impl Fleet {
    async fn start(kind: &'static str, layout: &str) -> Self {
        let servers = ZooKeeperCluster::start(1);
        let url = format!("{}?session_timeout=4s&layout={layout}", servers.url());
        let locks = Locks::connect(url).await.unwrap();
        // Makes the node above the lock's.
        let first = locks.lock("first").acquire().await.unwrap();
        first.release().await.unwrap();
        Self {
            servers,
            kind,
            locks,
        }
    }

    async fn other(&self) -> Other {
        self.other_kind(self.kind).await
    }

    async fn other_kind(&self, kind: &str) -> Other {
        if kind == "recipe" {
            return Other::task(Recipe::new(&self.servers.hosts(), PATH).await);
        }
        let mut program = script::python("kazoo_fleet.py");
        program.args([&self.servers.hosts(), kind, PATH]);
        let mut kazoo = Other::process(program);
        assert!(kazoo.ask("ping").await);
        kazoo
    }

    async fn until_waiting(&self, count: usize) {
        let waiting = async {
            while self.locks.inspect(NAME).await.unwrap().waiters.len() != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waiting = tokio::time::timeout(Duration::from_secs(20), waiting).await;
        waiting.expect("they wait");
    }

    async fn each_side_lets_the_other_in(&self) {
        let waits = || tokio::spawn(self.locks.lock(NAME).ttl(OUR_TTL).wait_forever().acquire());
        let mut other = self.other().await;
        assert!(other.ask("try").await);
        let waiting = waits();
        self.until_waiting(1).await;
        assert!(other.ask("release").await);
        let ours = waiting.await.unwrap().unwrap();

        other.tell("wait").await;
        self.until_waiting(1).await;
        ours.release().await.unwrap();
        assert!(other.answer().await);

        // They die with the lock.
        let waiting = waits();
        self.until_waiting(1).await;
        other.kill().await;
        waiting.await.unwrap().unwrap().release().await.unwrap();

        // We fall silent with the lock.
        let short = self.locks.lock(NAME).ttl(Duration::from_millis(500));
        short.acquire().await.unwrap().detach();
        let mut other = self.other().await;
        assert!(other.ask("wait").await);
        assert!(other.ask("release").await);
    }
}

async fn share_a_lock(kind: &'static str, layout: &str) {
    let fleet = Fleet::start(kind, layout).await;
    each_side_is_refused(&fleet.locks, fleet.other().await).await;
    fleet.each_side_lets_the_other_in().await;
    let others = [fleet.other().await, fleet.other().await];
    nothing_is_lost(kind, &fleet.locks, others).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo_lock() {
    share_a_lock("lock", "kazoo").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo_write_lock() {
    share_a_lock("write", "kazoo").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_clients_recipe() {
    share_a_lock("recipe", "curator").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo_readers_and_ours() {
    let fleet = Fleet::start("read", "kazoo").await;
    let (mut reader, mut writer) = (fleet.other().await, fleet.other_kind("write").await);
    let shared = || fleet.locks.lock(NAME).shared().try_acquire();
    let exclusive = || fleet.locks.lock(NAME).try_acquire();

    assert!(reader.ask("try").await);
    let ours = shared().await.unwrap().expect("readers share");
    assert!(exclusive().await.unwrap().is_none());
    assert!(!writer.ask("try").await);
    assert!(reader.ask("release").await);
    assert!(!writer.ask("try").await, "our reader is there");
    ours.release().await.unwrap();

    assert!(writer.ask("try").await);
    assert!(shared().await.unwrap().is_none());
    assert!(writer.ask("release").await);

    let ours = exclusive().await.unwrap().expect("free");
    assert!(!reader.ask("try").await);
    ours.release().await.unwrap();
    assert!(reader.ask("try").await);
    assert!(reader.ask("release").await);
}

/// Other programs know no permits: to them one is an exclusive lock.
#[tokio::test(flavor = "multi_thread")]
async fn permits_and_other_programs_exclude_each_other() {
    for (kind, layout) in [
        ("lock", "kazoo"),
        ("read", "kazoo"),
        ("write", "kazoo"),
        ("recipe", "curator"),
    ] {
        let fleet = Fleet::start(kind, layout).await;
        let mut other = fleet.other().await;
        let permit = || fleet.locks.lock(NAME).permits(2).try_acquire();
        let (first, second) = (permit().await.unwrap(), permit().await.unwrap());
        assert!(!other.ask("try").await, "{kind}");
        first.unwrap().release().await.unwrap();
        assert!(!other.ask("try").await, "{kind}");
        second.unwrap().release().await.unwrap();
        assert!(other.ask("try").await, "{kind}");
        assert!(permit().await.unwrap().is_none(), "{kind}");
        assert!(other.ask("release").await);
    }
}

/// A lock that knows no readers takes ours for writers.
#[tokio::test(flavor = "multi_thread")]
async fn readers_exclude_a_recipe_that_knows_none() {
    let fleet = Fleet::start("recipe", "curator").await;
    let mut other = fleet.other().await;
    let shared = || fleet.locks.lock(NAME).shared().try_acquire();
    let (first, second) = (shared().await.unwrap(), shared().await.unwrap());
    assert!(!other.ask("try").await);
    drop((first.unwrap(), second.unwrap()));
    fleet.locks.flush().await;
    assert!(other.ask("try").await);
    assert!(shared().await.unwrap().is_none());
}
