//! Guarded records broken on purpose, over records that work.

use std::sync::Arc;

use async_trait::async_trait;

use super::saboteur::Saboteur as Is;
use crate::error::Result;
use crate::guard::{Checked, Fenced, GuardedStore, Key, Pass, Record, Version};
use crate::token::FencingToken;

#[derive(Debug)]
pub(super) struct BrokenRecords {
    inner: Arc<dyn GuardedStore>,
    how: Is,
}

impl BrokenRecords {
    pub(super) fn new(inner: Arc<dyn GuardedStore>, how: Is) -> Self {
        Self { inner, how }
    }

    fn key(&self, key: &Key) -> Key {
        match self.how {
            Is::RecordsMixUpKeys => Key::new(key.as_str().to_lowercase()).unwrap(),
            _ => key.clone(),
        }
    }

    fn value<'a>(&self, value: &'a [u8]) -> &'a [u8] {
        match self.how {
            Is::RecordsAreCut => value.split_last().map_or(value, |(_, rest)| rest),
            _ => value,
        }
    }

    fn version(&self, version: Version) -> Version {
        match self.how {
            Is::VersionsStandStill => Version::new(1),
            _ => version,
        }
    }

    /// Writes whatever is there, and leaves it with a token low enough for anyone.
    async fn write_over(&self, key: &Key, value: &[u8], token: FencingToken) -> Result<Version> {
        let there = self.inner.read(key).await?;
        let version = there.as_ref().map(|record| record.version);
        let pass = token.into();
        if let Fenced::Written { version } = self.inner.write_fenced(key, value, &pass).await? {
            return Ok(version);
        }
        match self.inner.write_if(key, value, version).await? {
            Checked::Written { version } => Ok(version),
            Checked::Changed { .. } => Ok(Version::new(1)),
        }
    }
}

#[async_trait]
impl GuardedStore for BrokenRecords {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let read = self.inner.read(&self.key(key)).await?;
        if self.how == Is::RecordsAppear && read.is_none() {
            return Ok(Some(Record {
                value: Vec::new(),
                version: Version::new(1),
                token: FencingToken::NONE,
                lock: None,
            }));
        }
        Ok(read.map(|record| Record {
            version: self.version(record.version),
            ..record
        }))
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        let (key, value) = (&self.key(key), self.value(value));
        let there = self.inner.read(key).await?;
        let version = match (self.how, there) {
            (Is::RecordsVanish, _) if pass.token.get() > 3 => Version::new(1),
            (Is::RecordsIgnoreTokens, _) => self.write_over(key, value, pass.token).await?,
            (Is::RecordsRefuseEqualTokens, Some(record)) if record.token == pass.token => {
                let highest = record.token;
                return Ok(Fenced::Refused { highest });
            }
            (Is::RecordsIgnoreLocks, _) => {
                let pass = pass.token.into();
                return self.inner.write_fenced(key, value, &pass).await;
            }
            _ => match self.inner.write_fenced(key, value, pass).await? {
                Fenced::Written { version } => version,
                refused => return Ok(refused),
            },
        };
        Ok(Fenced::Written {
            version: self.version(version),
        })
    }

    async fn write_if(&self, key: &Key, value: &[u8], version: Option<Version>) -> Result<Checked> {
        let (key, value) = (&self.key(key), self.value(value));
        // Others may come in between even where nothing has to be waited for.
        tokio::task::yield_now().await;
        let there = self.inner.read(key).await?.map(|record| record.version);
        let expected = match self.how {
            Is::RecordsIgnoreVersions => there,
            Is::VersionsStandStill if version == Some(Version::new(1)) => there,
            _ => version,
        };
        Ok(match self.inner.write_if(key, value, expected).await? {
            Checked::Written { version } => Checked::Written {
                version: self.version(version),
            },
            changed => changed,
        })
    }
}
