//! rslock, as in its README: `acquire` tries until it has the lock.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use crate::Lock;

pub(crate) struct Rslock {
    manager: LockManager,
    name: String,
    held: Option<LockGuard>,
}

impl Rslock {
    pub(crate) fn new(urls: &str, name: &str) -> Self {
        Self {
            manager: LockManager::new(urls.split(',').map(str::to_owned).collect()),
            name: name.to_owned(),
            held: None,
        }
    }
}

impl Lock for Rslock {
    async fn acquire(&mut self) {
        let ttl = Duration::from_secs(30);
        let acquired = self.manager.acquire(self.name.as_str(), ttl).await;
        self.held = Some(acquired.expect("rslock acquires"));
    }

    async fn release(&mut self) {
        self.held.take().expect("held").release().await;
    }
}
