//! Guarded records: a key each, written on condition of its last revision.

use std::sync::Arc;

use async_trait::async_trait;

use super::cluster::{Cluster, Haste};
use super::keys::Keys;
use super::line::{absent, unchanged};
use super::proto::{PutRequest, RangeRequest, Request, TxnRequest};
use crate::error::Result;
use crate::guard::by_version::{CompareAndSet, Loaded, Swap};
use crate::guard::{Key, Version};

#[derive(Debug)]
pub(super) struct Records {
    cluster: Arc<Cluster>,
    keys: Keys,
}

impl Records {
    pub(super) fn on(cluster: Arc<Cluster>, keys: Keys) -> Self {
        Self { cluster, keys }
    }
}

#[async_trait]
impl CompareAndSet for Records {
    type Mark = i64;

    async fn load(&self, key: &Key) -> Result<Option<Loaded<i64>>> {
        let range = RangeRequest {
            key: self.keys.record(key),
            ..RangeRequest::default()
        };
        let found = self.cluster.range(range).await?.message.kvs;
        Ok(found.into_iter().next().map(|found| Loaded {
            bytes: found.value,
            version: Version::new(found.mod_revision.unsigned_abs()),
            mark: found.mod_revision,
        }))
    }

    async fn swap(&self, key: &Key, bytes: Vec<u8>, expected: Option<i64>) -> Result<Swap> {
        let key = self.keys.record(key);
        let condition = match expected {
            Some(revision) => unchanged(&key, revision),
            None => absent(&key),
        };
        let put = PutRequest {
            key,
            value: bytes,
            ..PutRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![condition],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        let reply = self.cluster.txn(txn, Haste::Once).await?;
        Ok(match reply.message.succeeded {
            true => {
                let revision = reply.message.header.map_or(0, |header| header.revision);
                Swap::Done(Version::new(revision.unsigned_abs()))
            }
            false if reply.in_doubt => Swap::InDoubt,
            false => Swap::Changed,
        })
    }
}
