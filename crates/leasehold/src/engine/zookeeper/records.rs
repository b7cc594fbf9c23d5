//! Guarded records: a node each, written on condition of its version.

use std::sync::Arc;

use async_trait::async_trait;
use zookeeper_client::CreateMode;

use super::nodes::Nodes;
use super::{Locks, failure};
use crate::error::Result;
use crate::guard::by_version::{CompareAndSet, Loaded, Swap};
use crate::guard::{Key, Version};

/// As after a stop, when first the connection is found broken, and then the session ended.
const TRIES: usize = 3;

#[derive(Debug)]
pub(crate) struct Records(Arc<Locks>);

impl Records {
    pub(super) fn of(locks: Arc<Locks>) -> Self {
        Self(locks)
    }

    async fn nodes(&self) -> Result<Nodes<'_>> {
        Ok(Nodes {
            session: self.0.sessions.living().await?,
            settings: &self.0.settings,
        })
    }
}

/// A node's version starts over when it is deleted and made again; the transaction that wrote it never comes back.
fn version(mzxid: i64) -> Version {
    Version::new(mzxid.unsigned_abs())
}

#[async_trait]
impl CompareAndSet for Records {
    type Mark = i32;

    async fn load(&self, key: &Key) -> Result<Option<Loaded<i32>>> {
        for _ in 1..TRIES {
            match self.load_once(key).await {
                Err(error) if failure::was_interrupted(&error) => {}
                loaded => return loaded,
            }
        }
        self.load_once(key).await
    }

    async fn swap(&self, key: &Key, bytes: Vec<u8>, expected: Option<i32>) -> Result<Swap> {
        match self.swap_once(key, &bytes, expected).await {
            Err(error) if failure::was_interrupted(&error) => {}
            swapped => return swapped,
        }
        for nth in 1..TRIES {
            match self.swap_once(key, &bytes, expected).await {
                Err(error) if failure::was_interrupted(&error) && nth + 1 < TRIES => {}
                // Perhaps by us.
                Ok(Swap::Changed) => return Ok(Swap::InDoubt),
                swapped => return swapped,
            }
        }
        Ok(Swap::InDoubt)
    }
}

impl Records {
    async fn load_once(&self, key: &Key) -> Result<Option<Loaded<i32>>> {
        let nodes = self.nodes().await?;
        let path = self.0.settings.root.record(key);
        let session = &nodes.session;
        // Both travel together: what is read is no older than the question.
        let synced = nodes.catch_up();
        let sent = session.sending();
        let read = session.read(sent, session.client.get_data(&path));
        let (synced, read) = tokio::join!(synced, read);
        synced?;
        Ok(failure::unless_missing(read)?.map(|(bytes, stat)| Loaded {
            bytes,
            version: version(stat.mzxid),
            mark: stat.version,
        }))
    }

    async fn swap_once(&self, key: &Key, bytes: &[u8], expected: Option<i32>) -> Result<Swap> {
        let nodes = self.nodes().await?;
        let path = self.0.settings.root.record(key);
        let session = &nodes.session;
        let Some(expected) = expected else {
            return create(&nodes, &path, bytes).await;
        };
        let sent = session.sending();
        let set = session.client.set_data(&path, bytes, Some(expected));
        match session.write(sent, set).await {
            Ok(stat) => Ok(Swap::Done(version(stat.mzxid))),
            Err(error) if failure::is_other_version(&error) || failure::is_missing(&error) => {
                Ok(Swap::Changed)
            }
            Err(error) => Err(error),
        }
    }
}

async fn create(nodes: &Nodes<'_>, path: &str, bytes: &[u8]) -> Result<Swap> {
    let options = CreateMode::Persistent.with_acls(nodes.acls());
    loop {
        let session = &nodes.session;
        let sent = session.sending();
        let create = session.client.create(path, bytes, &options);
        match session.write(sent, create).await {
            Ok((stat, _)) => return Ok(Swap::Done(version(stat.mzxid))),
            Err(error) if failure::is_there(&error) => return Ok(Swap::Changed),
            Err(error) if failure::is_missing(&error) => nodes.make_records().await?,
            Err(error) => return Err(error),
        }
    }
}
