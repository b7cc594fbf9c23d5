//! Records within one process.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::record::{Checked, Fenced, Key, Pass, Record, Stamp, Version};
use super::store::GuardedStore;
use crate::error::Result;

#[derive(Debug, Default)]
pub(crate) struct MemoryStore(Mutex<HashMap<Key, (Vec<u8>, Stamp)>>);

impl MemoryStore {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Key, (Vec<u8>, Stamp)>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl GuardedStore for MemoryStore {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        Ok(self.with(|records| {
            let (value, stamp) = records.get(key)?.clone();
            Some(Record {
                value,
                version: stamp.version,
                token: stamp.token,
                lock: stamp.lock,
            })
        }))
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        self.with(|records| {
            let old = records.get(key).map(|(_, stamp)| stamp);
            Ok(match Stamp::fenced(old, pass)? {
                Ok(stamp) => {
                    let version = stamp.version;
                    records.insert(key.clone(), (value.to_vec(), stamp));
                    Fenced::Written { version }
                }
                Err(highest) => Fenced::Refused { highest },
            })
        })
    }

    async fn write_if(&self, key: &Key, value: &[u8], version: Option<Version>) -> Result<Checked> {
        self.with(|records| {
            let old = records.get(key).map(|(_, stamp)| stamp);
            Ok(match Stamp::checked(old, version) {
                Ok(stamp) => {
                    let version = stamp.version;
                    records.insert(key.clone(), (value.to_vec(), stamp));
                    Checked::Written { version }
                }
                Err(version) => Checked::Changed { version },
            })
        })
    }
}
