//! The raw limits: an ephemeral sequential node made and deleted, and the client library's own lock.

use async_trait::async_trait;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use super::failure;
use super::session::connect;
use super::settings::Settings;
use crate::engine::raw::{RawLimit, RawLock};
use crate::error::Result;

const ANYONE: Acls<'static> = Acls::anyone_all();

#[derive(Debug)]
pub(super) struct Raw {
    settings: Settings,
}

impl Raw {
    pub(super) fn on(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
        }
    }

    async fn connect(&self, name: &str) -> Result<(Client, String)> {
        let (_, client) = connect(&self.settings).await?;
        let name = name.replace('/', "-");
        let folder = format!("/leasehold-raw-{name}");
        let options = CreateMode::Container.with_acls(ANYONE);
        let made = client.mkdir(&folder, &options).await;
        made.map_err(failure::of_request)?;
        Ok((client, folder))
    }
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "create and delete of an ephemeral sequential node"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let (client, folder) = self.connect(name).await?;
        Ok(Box::new(RawCycle {
            client,
            prefix: format!("{folder}/x-"),
            made: None,
        }))
    }

    fn handoff_is(&self) -> &'static str {
        "zookeeper-client's own lock"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let (client, folder) = self.connect(name).await?;
        Ok(Box::new(RawRecipe {
            client,
            folder,
            held: None,
        }))
    }
}

struct RawCycle {
    client: Client,
    prefix: String,
    made: Option<String>,
}

#[async_trait]
impl RawLock for RawCycle {
    async fn acquire(&mut self) -> Result<()> {
        let options = CreateMode::EphemeralSequential.with_acls(ANYONE);
        let made = self.client.create(&self.prefix, b"0123456789", &options);
        let (_, sequence) = made.await.map_err(failure::of_request)?;
        self.made = Some(format!("{}{sequence}", self.prefix));
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let Some(made) = self.made.take() else {
            return Ok(());
        };
        let deleted = self.client.delete(&made, None).await;
        deleted.map_err(failure::of_request)
    }
}

struct RawRecipe {
    client: Client,
    folder: String,
    held: Option<String>,
}

#[async_trait]
impl RawLock for RawRecipe {
    async fn acquire(&mut self) -> Result<()> {
        let prefix = LockPrefix::new_curator(&self.folder, "lock-").map_err(failure::of_request)?;
        let options = LockOptions::new(ANYONE);
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
