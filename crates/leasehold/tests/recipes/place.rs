//! Where the recipes are tested: a line for each engine.

use std::sync::Arc;

use leasehold::{ErrorKind, Locks, Result};

use super::support::deployment::Deployment;
use super::support::etcd_cluster::EtcdCluster;
use super::support::mariadb_server::MariadbServer;
use super::support::postgres_server::PostgresServer;
use super::support::redis_server::RedisServer;
use super::support::zookeeper_cluster::ZooKeeperCluster;

pub(crate) struct Place {
    url: String,
    /// Only within this process: all share it.
    shared: Option<Locks>,
    /// Ends with the place.
    _server: Box<dyn std::any::Any + Send + Sync>,
}

/// A new engine is a line here.
pub(crate) async fn all() -> Vec<Arc<Place>> {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let redis = RedisServer::start();
    let redlock = Deployment::start(5);
    redlock.has_stood_a_while();
    let etcd = EtcdCluster::start(1);
    let zookeeper = ZooKeeperCluster::start(1);
    let zookeeper_url = format!("{}?session_timeout=3s&timeout=10s", zookeeper.url());
    let postgres = PostgresServer::start();
    let postgres_url = format!("{}?pool=4&timeout=20s&connect_timeout=20s", postgres.url());
    let mariadb = MariadbServer::start();
    let mariadb_url = format!("{}?pool=4&timeout=20s&connect_timeout=20s", mariadb.url());
    vec![
        Place::of("memory:".to_owned(), ()).await,
        Place::of(file, folder).await,
        Place::of(redis.url(), redis).await,
        Place::of(redlock.url(), redlock).await,
        Place::of(etcd.url(), etcd).await,
        Place::of(zookeeper_url, zookeeper).await,
        Place::of(postgres_url, postgres).await,
        Place::of(mariadb_url, mariadb).await,
    ]
}

impl Place {
    async fn of(url: String, server: impl Send + Sync + 'static) -> Arc<Self> {
        let shared = match url.as_str() {
            "memory:" => Some(Locks::connect(&url).await.unwrap()),
            _ => None,
        };
        Arc::new(Self {
            url,
            shared,
            _server: Box::new(server),
        })
    }

    pub(crate) fn scheme(&self) -> &str {
        self.url.split(':').next().unwrap()
    }

    /// What leads other processes here, if anything does.
    pub(crate) fn address(&self) -> Option<String> {
        self.shared.is_none().then(|| self.url.clone())
    }

    /// A client of its own.
    pub(crate) async fn connect(&self) -> Locks {
        match &self.shared {
            Some(locks) => locks.clone(),
            None => Locks::connect(&self.url).await.unwrap(),
        }
    }

    /// What a recipe gave, if the engine has what it needs; if not, this checks that it says so.
    pub(crate) fn with_store<T: std::fmt::Debug>(locks: &Locks, made: Result<T>) -> Option<T> {
        if locks.capabilities().store {
            return Some(made.unwrap());
        }
        let error = made.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("guarded records"), "{error}");
        None
    }
}
