//! Records within one process.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;

use super::record::{Content, Key, LONGEST, Record, Stamp, Version};
use super::store::{AtomicStore, Decide};
use crate::clock::{Clock, Moment};
use crate::error::Result;
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct MemoryStore(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    all: HashMap<Key, Kept>,
    /// Those that end, the first first.
    ends: BTreeSet<(Moment, Key)>,
    /// The highest version of all: a record may be written here more often than the clock ticks.
    highest: u64,
}

#[derive(Debug)]
struct Kept {
    value: Option<Vec<u8>>,
    stamp: Stamp,
    ends: Option<Moment>,
}

impl MemoryStore {
    /// Works on what has not ended.
    fn with<T>(&self, work: impl FnOnce(&mut Records) -> T) -> T {
        let mut records = self.0.lock();
        let now = Clock::machine().now();
        while records.ends.first().is_some_and(|(ends, _)| *ends <= now) {
            if let Some((_, key)) = records.ends.pop_first() {
                records.all.remove(&key);
            }
        }
        work(&mut records)
    }
}

impl Records {
    fn first_version(&self) -> Version {
        Version::first().max(Version::new(self.highest + 1))
    }

    fn put(&mut self, key: &Key, content: Content<'_>, stamp: Stamp) -> Version {
        let version = stamp.version;
        self.highest = self.highest.max(version.get());
        if let Some(Kept {
            ends: Some(ends), ..
        }) = self.all.remove(key)
        {
            self.ends.remove(&(ends, key.clone()));
        }
        if content.is_nothing() {
            return version;
        }
        let ends = content
            .lifetime
            .map(|time| Clock::machine().now() + time.min(LONGEST));
        self.ends.extend(ends.map(|ends| (ends, key.clone())));
        let value = content.value.map(<[u8]>::to_vec);
        self.all.insert(key.clone(), Kept { value, stamp, ends });
        version
    }
}

#[async_trait]
impl AtomicStore for MemoryStore {
    async fn load(&self, key: &Key) -> Result<Option<Record>> {
        Ok(self.with(|records| {
            let Kept { value, stamp, .. } = records.all.get(key)?;
            stamp.clone().with(value.clone())
        }))
    }

    async fn write<T: Send + 'static>(
        &self,
        key: &Key,
        content: Content<'_>,
        decide: Decide<T>,
    ) -> Result<Result<Version, T>> {
        self.with(|records| {
            let old = records.all.get(key).map(|kept| &kept.stamp);
            let stamp = decide(old, &content, records.first_version())?;
            Ok(stamp.map(|stamp| records.put(key, content, stamp)))
        })
    }
}

#[cfg(test)]
impl MemoryStore {
    /// How many are kept, deleted ones included.
    pub(crate) fn len(&self) -> usize {
        self.with(|records| records.all.len())
    }
}
