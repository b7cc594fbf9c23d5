//! Guarded records: an object each.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::{Client, If};
use super::keys::Keys;
use crate::engine::cas::records;
use crate::error::Result;
use crate::guard::Key;

#[derive(Debug)]
pub(super) struct Blobs {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
}

#[async_trait]
impl records::Blobs for Blobs {
    async fn get(&self, key: &Key) -> Result<Option<(Vec<u8>, String)>> {
        let found = self.client.get(&self.keys.record(key)).await?;
        Ok(found.map(|(bytes, tag)| (bytes.to_vec(), tag)))
    }

    /// Nothing here is deleted by time: a lifecycle rule of the bucket may do it.
    async fn put(
        &self,
        key: &Key,
        bytes: &[u8],
        tag: Option<&str>,
        _ends: Option<u64>,
    ) -> Result<bool> {
        let condition = tag.map_or(If::Absent, If::Tagged);
        let written = self
            .client
            .put(&self.keys.record(key), bytes.to_vec(), condition)
            .await?;
        Ok(written.is_some())
    }

    /// Not every store deletes on condition.
    async fn remove(&self, key: &Key, tag: &str, over: &[u8]) -> Result<bool> {
        self.put(key, over, Some(tag), None).await
    }
}
