//! rslock.

use std::time::Duration;

use ::rslock::{Lock, LockManager};

use super::client;

pub(crate) struct Rslock {
    manager: LockManager,
    name: String,
    ttl: Duration,
    held: Option<Lock>,
}

impl Rslock {
    pub(crate) fn new(ports: &[u16], name: &str, ttl: Duration) -> Self {
        let servers = ports.iter().map(|port| format!("redis://127.0.0.1:{port}"));
        let mut manager = LockManager::new(servers.collect());
        manager.set_retry(1, Duration::from_millis(10));
        Self {
            manager,
            name: name.to_owned(),
            ttl,
            held: None,
        }
    }
}

impl client::Lock for Rslock {
    async fn try_acquire(&mut self) -> bool {
        match self.manager.lock(self.name.as_str(), self.ttl).await {
            Ok(lock) => {
                self.held = Some(lock);
                true
            }
            Err(::rslock::LockError::Unavailable) => false,
            Err(error) => panic!("{error}"),
        }
    }

    async fn acquire(&mut self) {
        while !self.try_acquire().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn release(&mut self) {
        self.held.take().expect("held").release().await;
    }
}
