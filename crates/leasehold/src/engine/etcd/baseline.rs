//! The baseline: a key that is created under a lease and deleted, and etcd's own lock service.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::client::{Client, Haste, Reply};
use super::config::EtcdConfig;
use super::proto::*;
use super::protocol;
use crate::engine::baseline::{Baseline, BaselineLock};
use crate::error::Result;

/// Longer than any run.
const LEASE_SECONDS: i64 = 600;

#[derive(Debug)]
pub(super) struct EtcdBaseline(pub(super) EtcdConfig);

impl EtcdBaseline {
    /// A connection and a lease of its own. It waits for a lock as long as it takes.
    async fn open(&self) -> Result<(Arc<Client>, i64)> {
        let as_long_as_it_takes = Duration::from_secs(600);
        let config = self.0.clone();
        let config = config
            .timeout(as_long_as_it_takes)
            .attempt_timeout(as_long_as_it_takes);
        let client = Arc::new(Client::new(&config, config.members()?));
        client.log_in().await?;
        let lease = client.grant(LEASE_SECONDS).await?.message.id;
        Ok((client, lease))
    }

    fn key(&self, kind: &str, name: &str) -> Vec<u8> {
        format!("{}\u{1}{kind}\u{1}{name}", self.0.prefix).into_bytes()
    }
}

#[async_trait]
impl Baseline for EtcdBaseline {
    fn cycle_is(&self) -> &'static str {
        "a transaction that creates a key under a lease, and its deletion"
    }

    async fn cycle(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let (client, lease) = self.open().await?;
        let key = self.key("baseline", name);
        Ok(Box::new(BaselineCycle { client, lease, key }))
    }

    fn handoff_is(&self) -> &'static str {
        "etcd's own lock service (Lock and Unlock)"
    }

    async fn handoff(&self, name: &str) -> Result<Box<dyn BaselineLock>> {
        let (client, lease) = self.open().await?;
        let name = self.key("baseline-lock", name);
        Ok(Box::new(ServiceLock {
            client,
            lease,
            name,
            key: Vec::new(),
        }))
    }
}

struct BaselineCycle {
    client: Arc<Client>,
    lease: i64,
    key: Vec<u8>,
}

#[async_trait]
impl BaselineLock for BaselineCycle {
    async fn acquire(&mut self) -> Result<()> {
        let put = PutRequest {
            key: self.key.clone(),
            lease: self.lease,
            ..PutRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![protocol::absent(&self.key)],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        self.client.txn(txn, Haste::Patient).await?;
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        self.client.delete(protocol::delete(&self.key)).await?;
        Ok(())
    }
}

struct ServiceLock {
    client: Arc<Client>,
    lease: i64,
    name: Vec<u8>,
    key: Vec<u8>,
}

#[async_trait]
impl BaselineLock for ServiceLock {
    async fn acquire(&mut self) -> Result<()> {
        let ask = LockRequest {
            name: self.name.clone(),
            lease: self.lease,
        };
        let reply: Reply<LockResponse> = self
            .client
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
            .client
            .ask("/v3lockpb.Lock/Unlock", ask, Haste::Urgent)
            .await?;
        Ok(())
    }
}
