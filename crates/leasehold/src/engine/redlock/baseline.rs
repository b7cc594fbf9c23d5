//! The baselines: the bare commands to all nodes at once, and BLPOP with RPUSH on the first.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::config::RedlockConfig;
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::engine::redis::baseline::{BaselineCycle, Baton, connect, processor_time};
use crate::error::Result;

#[derive(Debug)]
pub(super) struct RedlockBaseline(pub(super) RedlockConfig);

#[async_trait]
impl Baseline for RedlockBaseline {
    fn cycle_is(&self) -> &'static str {
        "SET NX PX and EVALSHA of a compare-and-delete, on all nodes at once"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let mut locks = self.cycles(&[name.to_owned()]).await?;
        Ok(locks.swap_remove(0))
    }

    async fn cycles(&self, names: &[String]) -> Result<Vec<Box<dyn BaselineLock>>> {
        let clients = self.0.clients()?;
        let connections = try_join_all(clients.iter().map(|(_, client)| connect(client))).await?;
        let on_all = |name: &String| {
            let nodes = connections.iter().cloned();
            let nodes = nodes.map(|node| BaselineCycle::on(node, &self.0.prefix, name));
            Box::new(OnAll(nodes.collect())) as Box<_>
        };
        Ok(names.iter().map(on_all).collect())
    }

    async fn processor_time(&self) -> Result<Option<Duration>> {
        let clients = self.0.clients()?;
        let times = clients.iter().map(|(_, client)| processor_time(client));
        Ok(try_join_all(times).await?.into_iter().sum())
    }

    fn handoff_is(&self) -> &'static str {
        "BLPOP and RPUSH on one node"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let (_, first) = &self.0.clients()?[0];
        let baton = Baton::open(first, &self.0.prefix, name);
        Ok(Box::new(baton.await?))
    }
}

struct OnAll(Vec<BaselineCycle>);

#[async_trait]
impl BaselineLock for OnAll {
    async fn acquire(&mut self) -> Result<()> {
        try_join_all(self.0.iter_mut().map(BaselineLock::acquire))
            .await
            .map(|_| ())
    }

    async fn release(&mut self) -> Result<()> {
        try_join_all(self.0.iter_mut().map(BaselineLock::release))
            .await
            .map(|_| ())
    }
}
