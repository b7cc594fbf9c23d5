//! A lock as an object.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::client::{Client, If};
use super::doctor;
use super::keys::Keys;
use super::records::Blobs;
use crate::engine::cas::document::Document;
use crate::engine::cas::records::Records;
use crate::engine::cas::store::{CasStore, Found, Stored, Written};
use crate::engine::doctor::Finding;
use crate::engine::queue_rules;
use crate::engine::{Capabilities, TokenSource};
use crate::error::{ErrorKind, Result};
use crate::guard::GuardedStore;
use crate::guard::by_version::ByVersion;
use crate::name::LockName;

/// As many objects are read at a time.
const AT_A_TIME: usize = 16;

/// The locks of a bucket.
#[derive(Debug)]
pub(super) struct Objects {
    client: Arc<Client>,
    keys: Keys,
    location: String,
}

impl Objects {
    pub(super) fn new(client: Client, keys: Keys, location: String) -> Self {
        Self {
            client: Arc::new(client),
            keys,
            location,
        }
    }

    async fn write(
        &self,
        name: &LockName,
        document: &Document,
        condition: If<'_>,
    ) -> Result<Written> {
        let body = document.to_json().into_bytes();
        let written = self
            .client
            .put(&self.keys.lock(name), body, condition)
            .await?;
        Ok(written.map_or(Written::Changed(Found::Untold), Written::Done))
    }
}

#[async_trait]
impl CasStore for Objects {
    fn scheme(&self) -> &'static str {
        "s3"
    }

    fn location(&self) -> String {
        self.location.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tokens: TokenSource::HybridClock,
            ..queue_rules::CAPABILITIES
        }
    }

    async fn findings(&self) -> Vec<Finding> {
        doctor::findings(&self.client, &self.keys).await
    }

    async fn read(&self, name: &LockName) -> Result<Option<Stored>> {
        let Some((body, tag)) = self.client.get(&self.keys.lock(name)).await? else {
            return Ok(None);
        };
        let document = Document::read(&body)?;
        Ok(Some(Stored { document, tag }))
    }

    async fn create(&self, name: &LockName, document: &Document) -> Result<Written> {
        self.write(name, document, If::Absent).await
    }

    async fn replace(&self, name: &LockName, document: &Document, tag: &str) -> Result<Written> {
        self.write(name, document, If::Tagged(tag)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<(LockName, Document)>> {
        let keys = self.client.list(&self.keys.beginning(prefix)).await?;
        let names: Vec<_> = keys
            .iter()
            .filter_map(|key| self.keys.name_of(key))
            .collect();
        let mut found = Vec::new();
        for some in names.chunks(AT_A_TIME) {
            let reads = join_all(some.iter().map(|name| self.read(name))).await;
            for (name, read) in some.iter().zip(reads) {
                match read {
                    Ok(Some(stored)) => found.push((name.clone(), stored.document)),
                    Ok(None) => {}
                    // One that is no lock does not hide the rest.
                    Err(error) if error.kind() == ErrorKind::EngineUnfit => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }

    fn records(&self) -> Option<Arc<dyn GuardedStore>> {
        let blobs = Blobs {
            client: Arc::clone(&self.client),
            keys: self.keys.clone(),
        };
        Some(Arc::new(ByVersion(Records(blobs))))
    }

    fn requests(&self) -> u64 {
        self.client.requests()
    }
}
