//! The suite on `zookeeper:`, on a real cluster of three servers.

// A test that cannot go on should panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::conformance::{self, Fixture};
use leasehold::engine::Engine;
use leasehold::engine::zookeeper::ZooKeeper;
use leasehold::url::EngineUrl;
use support::zookeeper_cluster::ZooKeeperCluster;

struct Cluster {
    servers: ZooKeeperCluster,
    clients: Mutex<Vec<Weak<ZooKeeper>>>,
}

impl Cluster {
    async fn start() -> Self {
        Self {
            servers: ZooKeeperCluster::start(3),
            clients: Mutex::default(),
        }
    }
}

#[async_trait]
impl Fixture for Cluster {
    fn scheme(&self) -> &'static str {
        "zookeeper"
    }

    /// Nobody kills these, so their session may outlast a busy machine.
    async fn connect(&self) -> Arc<dyn Engine> {
        let url = format!("{}?session_timeout=3s&timeout=10s", self.servers.url());
        let client = ZooKeeper::connect(&EngineUrl::parse(&url).unwrap()).await;
        let client = Arc::new(client.unwrap());
        let mut clients = self.clients.lock().unwrap();
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&client));
        client
    }

    /// Other processes may be killed: their locks are to be free soon.
    fn address(&self) -> Option<String> {
        let url = self.servers.url();
        Some(format!("{url}?session_timeout=900ms&timeout=10s"))
    }

    /// A lock ends with a session, and so does the place of each dead waiter before the next; while they are waited for,
    /// more die.
    fn slack(&self) -> Duration {
        Duration::from_millis(6500)
    }

    async fn restart(&self) {
        self.servers.restart();
    }

    async fn sever(&self, engine: &Arc<dyn Engine>) -> bool {
        let clients = self.clients.lock().unwrap().clone();
        let same = |client: &Arc<ZooKeeper>| std::ptr::addr_eq(&**client, &**engine);
        let client = clients.iter().filter_map(Weak::upgrade).find(same);
        client.unwrap().end_session().await;
        true
    }
}

fn main() -> ExitCode {
    conformance::main(Cluster::start)
}
