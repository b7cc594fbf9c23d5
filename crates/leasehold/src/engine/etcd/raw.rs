//! The raw limits: a key that is created under a lease and deleted, and etcd's own lock service.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::cluster::{Cluster, Haste, Reply};
use super::line;
use super::proto::*;
use super::settings::Settings;
use crate::engine::raw::{RawLimit, RawLock};
use crate::error::Result;

/// Longer than any run.
const LEASE_SECONDS: i64 = 600;

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

    /// A connection and a lease of its own. It waits for a lock as long as it takes.
    async fn open(&self) -> Result<(Arc<Cluster>, i64)> {
        let mut settings = self.settings.clone();
        settings.timeout = Duration::from_secs(600);
        settings.attempt_timeout = Duration::from_secs(600);
        let cluster = Arc::new(Cluster::new(&settings));
        cluster.log_in().await?;
        let lease = cluster.grant(LEASE_SECONDS).await?.message.id;
        Ok((cluster, lease))
    }

    fn key(&self, kind: &str, name: &str) -> Vec<u8> {
        format!("{}\u{1}{kind}\u{1}{name}", self.settings.prefix).into_bytes()
    }
}

#[async_trait]
impl RawLimit for Raw {
    fn cycle_is(&self) -> &'static str {
        "a transaction that creates a key under a lease, and its deletion"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let (cluster, lease) = self.open().await?;
        let key = self.key("raw", name);
        Ok(Box::new(RawCycle {
            cluster,
            lease,
            key,
        }))
    }

    fn handoff_is(&self) -> &'static str {
        "etcd's own lock service (Lock and Unlock)"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn RawLock>> {
        let (cluster, lease) = self.open().await?;
        let name = self.key("raw-lock", name);
        Ok(Box::new(RawService {
            cluster,
            lease,
            name,
            key: Vec::new(),
        }))
    }
}

struct RawCycle {
    cluster: Arc<Cluster>,
    lease: i64,
    key: Vec<u8>,
}

#[async_trait]
impl RawLock for RawCycle {
    async fn acquire(&mut self) -> Result<()> {
        let put = PutRequest {
            key: self.key.clone(),
            lease: self.lease,
            ..PutRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![line::absent(&self.key)],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        self.cluster.txn(txn, Haste::Patient).await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.cluster.delete(line::delete(&self.key)).await?;
        Ok(())
    }
}

struct RawService {
    cluster: Arc<Cluster>,
    lease: i64,
    name: Vec<u8>,
    key: Vec<u8>,
}

#[async_trait]
impl RawLock for RawService {
    async fn acquire(&mut self) -> Result<()> {
        let ask = LockRequest {
            name: self.name.clone(),
            lease: self.lease,
        };
        let reply: Reply<LockResponse> = self
            .cluster
            .ask("/v3lockpb.Lock/Lock", ask, Haste::Urgent)
            .await?;
        self.key = reply.message.key;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let ask = UnlockRequest {
            key: self.key.clone(),
        };
        let _: Reply<UnlockResponse> = self
            .cluster
            .ask("/v3lockpb.Lock/Unlock", ask, Haste::Urgent)
            .await?;
        Ok(())
    }
}
