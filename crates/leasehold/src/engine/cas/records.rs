//! Guarded records: a value each, with a version, the end of its lifetime and the id of its write before it, written on condition of what the store
//! calls its state.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::claim::fill_with_random;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::guard::by_version::{CompareAndSet, Loaded, Sealed, Swap};
use crate::guard::{Key, Version};
use crate::token::wall_clock_micros;

/// Bytes under keys.
#[async_trait]
pub(crate) trait Blobs: Debug + Send + Sync + 'static {
    /// The bytes, and the tag of this state.
    async fn get(&self, key: &Key) -> Result<Option<(Vec<u8>, String)>>;

    /// Whether they were written: in the place of what has this tag; for `None`, where nothing is. The store may delete them some time after
    /// `ends`, in seconds since 1970.
    async fn put(
        &self,
        key: &Key,
        bytes: &[u8],
        tag: Option<&str>,
        ends: Option<u64>,
    ) -> Result<bool>;

    /// Whether what has this tag was deleted; or, where deletes cannot have a condition, replaced by these bytes, which say that its
    /// lifetime is over.
    async fn remove(&self, key: &Key, tag: &str, over: &[u8]) -> Result<bool>;
}

/// Records on them.
#[derive(Debug)]
pub(crate) struct Records<B>(pub(crate) B);

#[derive(Debug, Clone)]
pub(crate) struct Mark {
    tag: String,
    version: u64,
}

struct Framed {
    version: u64,
    /// In microseconds since 1970.
    ends: Option<u64>,
    /// Of the write that it came with.
    write: String,
    bytes: Vec<u8>,
    tag: String,
}

impl Framed {
    /// From a line with the version, the end and the write, and what follows.
    fn read(key: &Key, (bytes, tag): (Vec<u8>, String)) -> Result<Self> {
        let parts = || {
            let end = bytes.iter().position(|byte| *byte == b'\n')?;
            let mut words = std::str::from_utf8(&bytes[..end]).ok()?.split(' ');
            let version = words.next()?.parse().ok()?;
            let ends = match words.next()? {
                "-" => None,
                ends => Some(ends.parse().ok()?),
            };
            let write = words.next()?.to_owned();
            words.next().is_none().then_some(())?;
            Some((version, ends, write, end + 1))
        };
        let Some((version, ends, write, from)) = parts() else {
            let what = format!("what is kept as the record {:?} is not one", key.as_str());
            return Err(Error::new(ErrorKind::EngineUnfit, what)
                .advise("use another table, bucket or prefix, or move it aside"));
        };
        Ok(Self {
            version,
            ends,
            write,
            bytes: bytes[from..].to_vec(),
            tag,
        })
    }

    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| ends <= wall_clock_micros())
    }
}

/// A random id for each write: two writers may write the same value in the place of the same version, and only one of them has.
fn write_id() -> Result<String> {
    let mut random = [0; 16];
    fill_with_random(&mut random)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}

impl<B: Blobs> Records<B> {
    async fn get(&self, key: &Key) -> Result<Option<Framed>> {
        let found = self.0.get(key).await?;
        found.map(|found| Framed::read(key, found)).transpose()
    }

    /// Returns the version that it has then.
    async fn put(
        &self,
        key: &Key,
        new: &Sealed,
        write: &str,
        there: Option<&Mark>,
    ) -> Result<Option<Version>> {
        let now = wall_clock_micros();
        // Rises though the record was forgotten, and though the clock has stepped.
        let version = now.max(there.map_or(0, |there| there.version + 1));
        let written = if new.lifetime == Some(Duration::ZERO) {
            let Some(there) = there else {
                return Ok(Some(Version::new(0)));
            };
            let over = format!("{version} 0 {write}\n");
            self.0.remove(key, &there.tag, over.as_bytes()).await?
        } else {
            let lifetime = new
                .lifetime
                .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
            let ends = lifetime.map(|time| now.saturating_add(time));
            let end = ends.map_or("-".to_owned(), |ends| ends.to_string());
            let mut bytes = format!("{version} {end} {write}\n").into_bytes();
            bytes.extend_from_slice(&new.bytes);
            let tag = there.map(|there| there.tag.as_str());
            let seconds = ends.map(|ends| ends / 1_000_000 + 1);
            self.0.put(key, &bytes, tag, seconds).await?
        };
        Ok(written.then(|| Version::new(version)))
    }
}

#[async_trait]
impl<B: Blobs> CompareAndSet for Records<B> {
    type Mark = Mark;

    async fn load(&self, key: &Key) -> Result<Option<Loaded<Mark>>> {
        let found = self.get(key).await?.filter(|found| !found.is_over());
        Ok(found.map(|found| Loaded {
            version: Version::new(found.version),
            mark: Mark {
                tag: found.tag,
                version: found.version,
            },
            bytes: found.bytes,
        }))
    }

    async fn swap(&self, key: &Key, new: Sealed, expected: Option<Mark>) -> Result<Swap> {
        let write = write_id()?;
        let is_ours = |found: &&Framed| found.write == write;
        let mut there = expected;
        loop {
            let put = self.put(key, &new, &write, there.as_ref()).await;
            let failure = match put {
                Ok(Some(version)) => return Ok(Swap::Done(version)),
                Ok(None) => None,
                Err(failure) if failure.effect() == Effect::Unknown => Some(failure),
                Err(failure) => return Err(failure),
            };
            // It was not answered; or it was refused, perhaps because it had been carried out, and something on the way has sent it twice.
            let found = match (self.get(key).await, failure.as_ref()) {
                (Ok(found), _) => found,
                (Err(_), Some(failure)) => return Err(failure.clone()),
                (Err(unread), None) => return Err(unread.of_unknown_effect()),
            };
            if let Some(found) = found.as_ref().filter(is_ours) {
                return Ok(Swap::Done(Version::new(found.version)));
            }
            let tag = found.as_ref().map(|found| &found.tag);
            let may_come = tag == there.as_ref().map(|there| &there.tag);
            match (failure, found) {
                (Some(failure), _) if may_come => return Err(failure),
                (Some(_), _) => return Ok(Swap::MaybeApplied),
                // In the place of one whose lifetime is over.
                (None, Some(found)) if there.is_none() && found.is_over() => {
                    there = Some(Mark {
                        tag: found.tag,
                        version: found.version,
                    });
                }
                (None, _) => return Ok(Swap::Changed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::guard::by_version::ByVersion;
    use crate::guard::{Checked, Content, GuardedStore};
    use crate::sync::Mutex;

    /// In memory.
    #[derive(Clone, Default)]
    struct TestBlobs(Arc<Inner>);

    #[derive(Default)]
    struct Inner {
        blobs: Mutex<HashMap<Key, (Vec<u8>, String)>>,
        /// The next write is lost, and this happens before its sender learns that there is no answer.
        meanwhile: Mutex<Option<BoxFuture<'static, ()>>>,
        /// Something on the way sends the next write twice, and passes on the second answer.
        repeats: Mutex<bool>,
        tags: Mutex<u64>,
    }

    impl Debug for TestBlobs {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("TestBlobs")
        }
    }

    impl TestBlobs {
        fn swap(&self, key: &Key, bytes: &[u8], tag: Option<&str>) -> bool {
            let mut blobs = self.0.blobs.lock();
            let holds = blobs.get(key).map(|(_, tag)| tag.as_str()) == tag;
            if holds {
                let mut tags = self.0.tags.lock();
                *tags += 1;
                blobs.insert(key.clone(), (bytes.to_vec(), tags.to_string()));
            }
            holds
        }

        fn store(&self) -> ByVersion<Records<Self>> {
            ByVersion(Records(self.clone()))
        }
    }

    #[async_trait]
    impl Blobs for TestBlobs {
        async fn get(&self, key: &Key) -> Result<Option<(Vec<u8>, String)>> {
            Ok(self.0.blobs.lock().get(key).cloned())
        }

        async fn put(
            &self,
            key: &Key,
            bytes: &[u8],
            tag: Option<&str>,
            _ends: Option<u64>,
        ) -> Result<bool> {
            let meanwhile = self.0.meanwhile.lock().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile.await;
                return Err(Error::new(ErrorKind::Unreachable, "no answer").of_unknown_effect());
            }
            if std::mem::take(&mut *self.0.repeats.lock()) {
                self.swap(key, bytes, tag);
            }
            Ok(self.swap(key, bytes, tag))
        }

        async fn remove(&self, key: &Key, tag: &str, over: &[u8]) -> Result<bool> {
            self.put(key, over, Some(tag), None).await
        }
    }

    fn key() -> Key {
        Key::new("stock").unwrap()
    }

    async fn written(
        store: &impl GuardedStore,
        content: Content<'_>,
        expected: Option<Version>,
    ) -> Version {
        match store.write_if(&key(), content, expected).await.unwrap() {
            Checked::Written { version } => version,
            changed => panic!("{changed:?}"),
        }
    }

    #[tokio::test]
    async fn same_value_that_another_wrote_is_not_our_write() {
        let blobs = TestBlobs::default();
        let store = blobs.store();
        let first = written(&store, Content::value(b"5"), None).await;
        let rival = blobs.store();
        *blobs.0.meanwhile.lock() = Some(Box::pin(async move {
            written(&rival, Content::value(b"4"), Some(first)).await;
        }));
        let ours = store
            .write_if(&key(), Content::value(b"4"), Some(first))
            .await;
        assert_eq!(ours.unwrap_err().effect(), Effect::Unknown);
    }

    #[tokio::test]
    async fn write_that_is_sent_twice_counts_once() {
        let blobs = TestBlobs::default();
        let store = blobs.store();
        let mut last = None;
        let contents = [
            Content::passing(b"5", Duration::from_nanos(1)),
            Content::value(b"4"),
            Content::value(b"3"),
            Content::deleted(Duration::ZERO),
        ];
        for (nth, content) in contents.into_iter().enumerate() {
            *blobs.0.repeats.lock() = true;
            let version = written(&store, content, last).await;
            // The lifetime of the first is over when the second comes.
            last = (nth > 0).then_some(version);
        }
        assert_eq!(store.read(&key()).await.unwrap(), None);
    }
}
