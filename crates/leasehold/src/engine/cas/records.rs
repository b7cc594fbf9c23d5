//! Guarded records: a value each, with a version and the end of its lifetime before it, written on condition of what the store calls its state.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

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

    /// Whether it was deleted: what has this tag.
    async fn remove(&self, key: &Key, tag: &str) -> Result<bool>;
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
    bytes: Vec<u8>,
    tag: String,
}

impl Framed {
    /// From a line with the version and the end, and what follows.
    fn read(key: &Key, (bytes, tag): (Vec<u8>, String)) -> Result<Self> {
        let parts = || {
            let end = bytes.iter().position(|byte| *byte == b'\n')?;
            let (version, ends) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
            let ends = match ends {
                "-" => None,
                ends => Some(ends.parse().ok()?),
            };
            Some((version.parse().ok()?, ends, end + 1))
        };
        let Some((version, ends, from)) = parts() else {
            let what = format!("what is kept as the record {:?} is not one", key.as_str());
            return Err(Error::new(ErrorKind::EngineUnfit, what)
                .advise("use another table, bucket or prefix, or move it aside"));
        };
        Ok(Self {
            version,
            ends,
            bytes: bytes[from..].to_vec(),
            tag,
        })
    }

    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| ends <= wall_clock_micros())
    }
}

impl<B: Blobs> Records<B> {
    async fn get(&self, key: &Key) -> Result<Option<Framed>> {
        let found = self.0.get(key).await?;
        found.map(|found| Framed::read(key, found)).transpose()
    }

    /// Returns the version that it has then.
    async fn put(&self, key: &Key, new: &Sealed, there: Option<&Mark>) -> Result<Option<Version>> {
        if new.lifetime == Some(Duration::ZERO) {
            let Some(there) = there else {
                return Ok(Some(Version::new(0)));
            };
            let removed = self.0.remove(key, &there.tag).await?;
            return Ok(removed.then(|| Version::new(there.version + 1)));
        }
        let now = wall_clock_micros();
        // Rises though the record was forgotten, and though the clock has stepped.
        let version = now.max(there.map_or(0, |there| there.version + 1));
        let lifetime = new
            .lifetime
            .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let ends = lifetime.map(|time| now.saturating_add(time));
        let end = ends.map_or("-".to_owned(), |ends| ends.to_string());
        let mut bytes = format!("{version} {end}\n").into_bytes();
        bytes.extend_from_slice(&new.bytes);
        let tag = there.map(|there| there.tag.as_str());
        let seconds = ends.map(|ends| ends / 1_000_000 + 1);
        let written = self.0.put(key, &bytes, tag, seconds).await?;
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
        let version = match self.put(key, &new, expected.as_ref()).await {
            Err(failure) if failure.effect() == Effect::Unknown => {
                return self.look_for(key, &new, expected, failure).await;
            }
            put => put?,
        };
        if let Some(version) = version {
            return Ok(Swap::Done(version));
        }
        // In the place of one whose lifetime is over.
        let over = match expected {
            Some(_) => None,
            None => self.get(key).await?.filter(Framed::is_over),
        };
        let Some(Framed { tag, version, .. }) = over else {
            return Ok(Swap::Changed);
        };
        let written = self.put(key, &new, Some(&Mark { tag, version })).await?;
        Ok(written.map_or(Swap::Changed, Swap::Done))
    }
}

impl<B: Blobs> Records<B> {
    /// A write was not answered: is what is there what it wrote?
    async fn look_for(
        &self,
        key: &Key,
        new: &Sealed,
        expected: Option<Mark>,
        failure: Error,
    ) -> Result<Swap> {
        let Ok(found) = self.get(key).await else {
            return Err(failure);
        };
        let before = expected.map(|mark| mark.tag);
        match found {
            found if found.as_ref().map(|found| &found.tag) == before.as_ref() => Err(failure),
            // Another could have written the same with the same token: then nothing is lost either.
            Some(found) if found.bytes == new.bytes && !found.is_over() => {
                Ok(Swap::Done(Version::new(found.version)))
            }
            _ => Ok(Swap::MaybeApplied),
        }
    }
}
