//! zookeeper-client's own lock, named as Curator names its.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::client::Lock;

pub(crate) struct Recipe {
    client: Client,
    path: String,
    held: Option<OwnedLockClient>,
}

impl Recipe {
    pub(crate) async fn new(hosts: &str, path: &str) -> Self {
        let connector = Client::connector().with_session_timeout(Duration::from_secs(4));
        Self {
            client: connector.connect(hosts).await.unwrap(),
            path: path.to_owned(),
            held: None,
        }
    }
}

impl Lock for Recipe {
    /// It has no attempt that does not wait.
    async fn try_acquire(&mut self) -> bool {
        let a_while = Duration::from_millis(500);
        let acquired = tokio::time::timeout(a_while, self.acquire()).await;
        acquired.is_ok()
    }

    async fn acquire(&mut self) {
        let anyone = Acls::anyone_all();
        let options = LockOptions::new(anyone);
        let options = options.with_ancestor_options(CreateMode::Container.with_acls(anyone));
        let prefix = LockPrefix::new_curator(&self.path, "lock-").unwrap();
        let lock = self.client.lock(prefix, b"", options.unwrap()).await;
        self.held = Some(lock.unwrap().into_owned());
    }

    /// It deletes its node in the background; nobody hears when.
    async fn release(&mut self) {
        let Some(held) = self.held.take() else { return };
        let path = held.lock_path().to_owned();
        drop(held);
        while self.client.check_stat(&path).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
