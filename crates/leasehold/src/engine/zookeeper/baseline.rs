//! The baseline: an ephemeral sequential node made and deleted, and the client library's own lock.

use async_trait::async_trait;
use zookeeper_client::{Acls, Client, CreateMode, Error as Said, LockOptions, LockPrefix};

use super::client::connect;
use super::config::ZookeeperConfig;
use super::failure;
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::error::Result;

const ANYONE: Acls<'static> = Acls::anyone_all();

#[derive(Debug)]
pub(super) struct ZookeeperBaseline {
    config: ZookeeperConfig,
}

impl ZookeeperBaseline {
    pub(super) fn on(config: &ZookeeperConfig) -> Self {
        Self {
            config: config.clone(),
        }
    }

    async fn connect(&self, name: &str) -> Result<(Client, String)> {
        let (_, client) = connect(&self.config).await?;
        let name = name.replace('/', "-");
        let folder = format!("/leasehold-baseline-{name}");
        make(&client, &folder).await?;
        Ok((client, folder))
    }
}

/// The server removes it when it has been empty for a while.
async fn make(client: &Client, folder: &str) -> Result<()> {
    let options = CreateMode::Container.with_acls(ANYONE);
    let made = client.mkdir(folder, &options).await;
    made.map_err(failure::of_request)
}

#[async_trait]
impl Baseline for ZookeeperBaseline {
    fn cycle_is(&self) -> &'static str {
        "create and delete of an ephemeral sequential node"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let (client, folder) = self.connect(name).await?;
        Ok(Box::new(BaselineCycle {
            client,
            prefix: format!("{folder}/x-"),
            folder,
            made: None,
        }))
    }

    fn handoff_is(&self) -> &'static str {
        "zookeeper-client's own lock"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let (client, folder) = self.connect(name).await?;
        Ok(Box::new(RecipeLock {
            client,
            folder,
            held: None,
        }))
    }
}

struct BaselineCycle {
    client: Client,
    folder: String,
    prefix: String,
    made: Option<String>,
}

#[async_trait]
impl BaselineLock for BaselineCycle {
    async fn acquire(&mut self) -> Result<()> {
        let options = CreateMode::EphemeralSequential.with_acls(ANYONE);
        loop {
            let made = self.client.create(&self.prefix, b"0123456789", &options);
            match made.await {
                Ok((_, sequence)) => {
                    self.made = Some(format!("{}{sequence}", self.prefix));
                    return Ok(());
                }
                Err(Said::NoNode) => make(&self.client, &self.folder).await?,
                Err(cause) => return Err(failure::of_request(cause)),
            }
        }
    }

    async fn release(&mut self) -> Result<()> {
        let Some(made) = self.made.take() else {
            return Ok(());
        };
        let deleted = self.client.delete(&made, None).await;
        deleted.map_err(failure::of_request)
    }
}

struct RecipeLock {
    client: Client,
    folder: String,
    held: Option<String>,
}

#[async_trait]
impl BaselineLock for RecipeLock {
    async fn acquire(&mut self) -> Result<()> {
        let prefix = LockPrefix::new_curator(&self.folder, "lock-").map_err(failure::of_request)?;
        let above = CreateMode::Container.with_acls(ANYONE);
        let options = LockOptions::new(ANYONE).with_ancestor_options(above);
        let options = options.map_err(failure::of_request)?;
        let lock = self.client.lock(prefix, b"", options).await;
        let lock = lock.map_err(failure::of_request)?;
        self.held = Some(lock.lock_path().to_owned());
        // It would delete its node in the background, some time after; here the release is waited for.
        std::mem::forget(lock);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        let deleted = self.client.delete(&held, None).await;
        deleted.map_err(failure::of_request)
    }
}
