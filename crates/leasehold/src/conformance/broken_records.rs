//! Guarded records broken on purpose, over records that work.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::saboteur::Saboteur as Is;
use crate::error::Result;
use crate::guard::{Checked, Content, Fenced, GuardedStore, Key, Pass, Record, Version};
use crate::sync::Mutex;
use crate::token::FencingToken;

#[derive(Debug)]
pub(super) struct BrokenRecords {
    inner: Arc<dyn GuardedStore>,
    how: Is,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// How much less than they are versions are said to be.
    begins: HashMap<Key, u64>,
    lifetimes: HashMap<Key, Duration>,
}

/// What stands in a record that was deleted for ever.
const GONE: &[u8] = b"\0gone";

impl BrokenRecords {
    pub(super) fn new(inner: Arc<dyn GuardedStore>, how: Is) -> Self {
        let memory = Mutex::default();
        Self { inner, how, memory }
    }

    fn key(&self, key: &Key) -> Key {
        match self.how {
            Is::RecordsMixUpKeys => Key::new(key.as_str().to_lowercase()).unwrap(),
            Is::RecordsAreReachable => {
                let plain = key.as_str().replace("\u{1f}fence", "");
                Key::new(plain.replace('\u{1f}', "#")).unwrap()
            }
            _ => key.clone(),
        }
    }

    fn content<'a>(&self, key: &Key, content: Content<'a>) -> Content<'a> {
        let mut bent = content;
        match (self.how, content.value) {
            (Is::RecordsAreCut, Some(value)) => {
                bent.value = Some(value.split_last().map_or(value, |(_, rest)| rest));
            }
            (Is::DeletionsForgetTokens, None) => bent.lifetime = Some(Duration::ZERO),
            (Is::DeletionsAreForEver, None) => bent = Content::value(GONE),
            (Is::LifetimesNeverEnd, _) => bent.lifetime = None,
            (Is::LifetimesStick, _) => match content.lifetime {
                Some(lifetime) => {
                    self.memory.lock().lifetimes.insert(key.clone(), lifetime);
                }
                None => bent.lifetime = self.memory.lock().lifetimes.get(key).copied(),
            },
            (Is::VersionsComeBack, None) => {
                self.memory.lock().begins.remove(key);
                bent.lifetime = Some(Duration::ZERO);
            }
            _ => {}
        }
        bent
    }

    /// The version as it is returned.
    fn version(&self, key: &Key, version: Version) -> Version {
        match self.how {
            Is::VersionsStandStill => Version::new(1),
            Is::VersionsComeBack => {
                let mut memory = self.memory.lock();
                let before = memory.begins.entry(key.clone());
                Version::new(version.get() - *before.or_insert(version.get() - 1))
            }
            _ => version,
        }
    }

    /// Writes whatever is there, and leaves it with a token low enough for anyone.
    async fn write_over(
        &self,
        key: &Key,
        content: Content<'_>,
        token: FencingToken,
    ) -> Result<Version> {
        let there = self.inner.read(key).await?;
        let version = there.as_ref().map(|record| record.version);
        let pass = token.into();
        if let Fenced::Written { version } = self.inner.write_fenced(key, content, &pass).await? {
            return Ok(version);
        }
        match self.inner.write_if(key, content, version).await? {
            Checked::Written { version } => Ok(version),
            Checked::Changed { .. } => Ok(Version::new(1)),
        }
    }
}

#[async_trait]
impl GuardedStore for BrokenRecords {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let key = &self.key(key);
        let read = self.inner.read(key).await?;
        if self.how == Is::RecordsAppear && read.is_none() {
            return Ok(Some(Record {
                value: Vec::new(),
                version: Version::new(1),
                token: FencingToken::NONE,
                lock: None,
            }));
        }
        let read = read.filter(|record| record.value != GONE);
        Ok(read.map(|record| Record {
            version: self.version(key, record.version),
            ..record
        }))
    }

    async fn write_fenced(&self, key: &Key, content: Content<'_>, pass: &Pass) -> Result<Fenced> {
        let key = &self.key(key);
        let deletes = content.value.is_none();
        let content = self.content(key, content);
        let there = self.inner.read(key).await?;
        let version = match (self.how, there) {
            (Is::RecordsVanish, _) if pass.token.get() > 3 => Version::new(1),
            (Is::DeletionsDoNothing, _) if deletes => Version::new(1),
            (Is::RecordsIgnoreTokens, _) => self.write_over(key, content, pass.token).await?,
            (Is::RecordsRefuseEqualTokens, Some(record)) if record.token == pass.token => {
                let highest = record.token;
                return Ok(Fenced::Refused { highest });
            }
            (Is::RecordsIgnoreLocks, _) => {
                let pass = pass.token.into();
                return self.inner.write_fenced(key, content, &pass).await;
            }
            _ => match self.inner.write_fenced(key, content, pass).await? {
                Fenced::Written { version } => version,
                refused => return Ok(refused),
            },
        };
        Ok(Fenced::Written {
            version: self.version(key, version),
        })
    }

    async fn write_if(
        &self,
        key: &Key,
        content: Content<'_>,
        version: Option<Version>,
    ) -> Result<Checked> {
        let key = &self.key(key);
        // Others may come in between even where nothing has to be waited for.
        tokio::task::yield_now().await;
        let there = self.inner.read(key).await?.map(|record| record.version);
        let returned = there.map(|there| self.version(key, there));
        let expected = match self.how {
            Is::RecordsIgnoreVersions => there,
            Is::VersionsStandStill | Is::VersionsComeBack if version == returned => there,
            _ => version,
        };
        if self.how == Is::DeletionsDoNothing && content.value.is_none() {
            let version = Version::new(1);
            return Ok(Checked::Written { version });
        }
        let content = self.content(key, content);
        Ok(match self.inner.write_if(key, content, expected).await? {
            Checked::Written { version } => Checked::Written {
                version: self.version(key, version),
            },
            changed => changed,
        })
    }
}
