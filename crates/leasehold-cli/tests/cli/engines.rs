//! The engines that the recipes are tried on: a line for each.

use std::time::Duration;

use super::sandbox::Sandbox;
use super::support::deployment::Deployment;
use super::support::etcd_cluster::EtcdCluster;
use super::support::postgres_server::PostgresServer;
use super::support::redis_server::RedisServer;
use super::support::zookeeper_cluster::ZooKeeperCluster;

/// A folder, the engine's URL, and what it has.
pub(crate) struct On {
    pub(crate) sandbox: Sandbox,
    pub(crate) url: String,
    /// Guarded records.
    pub(crate) store: bool,
    /// A clock that ends locks.
    pub(crate) clock: bool,
}

impl On {
    fn new(url: String) -> Self {
        Self {
            sandbox: Sandbox::new(),
            store: !url.starts_with("redlock"),
            clock: !url.starts_with("zookeeper"),
            url,
        }
    }

    /// Lets a job of `--once-per` run again now, as an operator would.
    pub(crate) fn let_run_again(&self, name: &str) {
        let args = ["break", name, "--once-per"];
        let done = self.sandbox.on(&self.url, &args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert_eq!(done.stdout, b"forgotten\n", "{done:?}");
    }
}

/// Does the same on each engine.
pub(crate) fn on_each(work: impl Fn(&On)) {
    let sqlite = Sandbox::new();
    work(&On::new(sqlite.url()));
    let redis = RedisServer::start();
    work(&On::new(redis.url()));
    let redlock = Deployment::with(5, Duration::from_secs(24 * 60 * 60), "node_timeout=1s");
    redlock.has_stood_a_while();
    work(&On::new(redlock.url()));
    drop(redlock);
    let postgres = PostgresServer::start();
    work(&On::new(postgres.url()));
    let etcd = EtcdCluster::start(1);
    work(&On::new(etcd.url()));
    let zookeeper = ZooKeeperCluster::start(1);
    let url = zookeeper.url();
    work(&On::new(format!("{url}?session_timeout=3s&timeout=10s")));
}
