//! The raw limits: the bare commands to all nodes at once, and BLPOP with RPUSH on the first.

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::settings::Settings;
use crate::engine::raw::{RawLimit, RawLock};
use crate::engine::redis::raw::{RawBaton, RawCycle};
use crate::error::Result;

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
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "SET NX PX and EVALSHA of a compare-and-delete, on all nodes at once"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let Settings { nodes, prefix, .. } = &self.settings;
        let nodes = nodes
            .iter()
            .map(|(_, server)| RawCycle::open(server, prefix, name));
        Ok(Box::new(OnAll(try_join_all(nodes).await?)))
    }

    fn handoff_is(&self) -> &'static str {
        "BLPOP and RPUSH on one node"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let (_, first) = &self.settings.nodes[0];
        Ok(Box::new(
            RawBaton::open(first, &self.settings.prefix, name).await?,
        ))
    }
}

struct OnAll(Vec<RawCycle>);

#[async_trait]
impl RawLock for OnAll {
    async fn acquire(&mut self) -> Result<()> {
        try_join_all(self.0.iter_mut().map(RawLock::acquire))
            .await
            .map(|_| ())
    }

    async fn release(&mut self) -> Result<()> {
        try_join_all(self.0.iter_mut().map(RawLock::release))
            .await
            .map(|_| ())
    }
}
