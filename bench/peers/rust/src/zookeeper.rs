//! The lock of zookeeper-client, as in its documentation. Dropping it deletes its node in the background: a cycle does not wait for that.

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::Lock;

pub(crate) struct Recipe {
    client: Client,
    path: String,
    held: Option<OwnedLockClient>,
}

impl Recipe {
    pub(crate) async fn new(hosts: &str, name: &str) -> Self {
        Self {
            client: Client::connect(hosts).await.expect("a session"),
            path: format!("/{name}"),
            held: None,
        }
    }
}

impl Lock for Recipe {
    async fn acquire(&mut self) {
        let anyone = Acls::anyone_all();
        let options = LockOptions::new(anyone);
        let options = options.with_ancestor_options(CreateMode::Container.with_acls(anyone));
        let prefix = LockPrefix::new_curator(&self.path, "lock-").expect("a prefix");
        let lock = self
            .client
            .lock(prefix, b"", options.expect("options"))
            .await;
        self.held = Some(lock.expect("zookeeper-client acquires").into_owned());
    }

    async fn release(&mut self) {
        self.held = None;
    }
}
