//! Guarded records on a store that knows nothing but "write this if that is still there": read, decide, and write on condition.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use super::optimistic::{TRIES, unlucky};
use super::record::{Checked, Content, Fenced, Key, Pass, Record, Stamp, Version};
use super::store::GuardedStore;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// A store that can write on condition.
#[async_trait]
pub(crate) trait CompareAndSet: Debug + Send + Sync + 'static {
    /// What the store itself calls a state of a record.
    type Mark: Clone + Send + Sync;

    /// What is there, unless its lifetime is over.
    async fn load(&self, key: &Key) -> Result<Option<Loaded<Self::Mark>>>;

    /// Writes if this is still there; for `None`, if nothing is.
    async fn swap(&self, key: &Key, new: Sealed, expected: Option<Self::Mark>) -> Result<Swap>;
}

/// What is to be there.
pub(crate) struct Sealed {
    pub(crate) bytes: Vec<u8>,
    /// For how long; for zero, nothing is to be left.
    pub(crate) lifetime: Option<Duration>,
}

/// A record as the store has it.
pub(crate) struct Loaded<M> {
    pub(crate) bytes: Vec<u8>,
    /// Greater with each write, and never the same again.
    pub(crate) version: Version,
    pub(crate) mark: M,
}

/// What a conditional write came to.
pub(crate) enum Swap {
    Done(Version),
    /// Something else is there.
    Changed,
    /// Something else is there, but it may be what an earlier try of ours has written, whose answer was lost.
    MaybeApplied,
}

/// Guarded records on such a store.
#[derive(Debug)]
pub(crate) struct ByVersion<S>(pub(crate) S);

#[async_trait]
impl<S: CompareAndSet> GuardedStore for ByVersion<S> {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let Some(loaded) = self.0.load(key).await? else {
            return Ok(None);
        };
        let (stamp, value) = unseal(&loaded)?;
        let value = (!stamp.deleted).then(|| value.to_vec());
        Ok(stamp.with(value))
    }

    async fn write_fenced(&self, key: &Key, content: Content<'_>, pass: &Pass) -> Result<Fenced> {
        for _ in 0..TRIES {
            let loaded = self.0.load(key).await?;
            let old = stamp_of(&loaded)?;
            let new = match Stamp::fenced(old.as_ref(), pass, &content, OF_THE_STORE)? {
                Ok(new) => new,
                Err(highest) => return Ok(Fenced::Refused { highest }),
            };
            let mark = loaded.map(|loaded| loaded.mark);
            // If an earlier try has been carried out after all, the same holder writes the same again.
            if let Swap::Done(version) = self.0.swap(key, seal(&new, &content), mark).await? {
                return Ok(Fenced::Written { version });
            }
        }
        Err(unlucky(key))
    }

    async fn write_if(
        &self,
        key: &Key,
        content: Content<'_>,
        expected: Option<Version>,
    ) -> Result<Checked> {
        let loaded = self.0.load(key).await?;
        let old = stamp_of(&loaded)?;
        let new = match Stamp::checked(old.as_ref(), expected, &content, OF_THE_STORE) {
            Ok(new) => new,
            Err(version) => return Ok(Checked::Changed { version }),
        };
        let mark = loaded.map(|loaded| loaded.mark);
        match self.0.swap(key, seal(&new, &content), mark).await? {
            Swap::Done(version) => Ok(Checked::Written { version }),
            Swap::Changed => {
                let version = self.read(key).await?.map(|record| record.version);
                Ok(Checked::Changed { version })
            }
            Swap::MaybeApplied => Err(maybe_applied(key)),
        }
    }
}

/// Such a store gives the versions itself.
const OF_THE_STORE: Version = Version::new(0);

/// What marks a deleted record.
const DELETED: &str = "deleted";

/// Token, lock, whether it was deleted, and value as one: three lines, and the value as it is.
fn seal(stamp: &Stamp, content: &Content<'_>) -> Sealed {
    let lock = stamp.lock.as_ref().map_or("", LockName::as_str);
    let deleted = if stamp.deleted { DELETED } else { "" };
    let mut bytes = format!("{}\n{lock}\n{deleted}\n", stamp.token).into_bytes();
    bytes.extend_from_slice(content.value.unwrap_or_default());
    Sealed {
        bytes,
        lifetime: content.lifetime,
    }
}

fn stamp_of<M>(loaded: &Option<Loaded<M>>) -> Result<Option<Stamp>> {
    let unsealed = loaded.as_ref().map(unseal).transpose()?;
    Ok(unsealed.map(|(stamp, _)| stamp))
}

fn unseal<M>(loaded: &Loaded<M>) -> Result<(Stamp, &[u8])> {
    let read = || {
        let mut parts = loaded.bytes.splitn(4, |byte| *byte == b'\n');
        let mut line = || std::str::from_utf8(parts.next()?).ok();
        let token = FencingToken::new(line()?.parse().ok()?)?;
        let lock = match line()? {
            "" => None,
            name => Some(LockName::new(name).ok()?),
        };
        let deleted = match line()? {
            "" => false,
            DELETED => true,
            _ => return None,
        };
        let stamp = Stamp {
            version: loaded.version,
            token,
            lock,
            deleted,
        };
        Some((stamp, parts.next()?))
    };
    read().ok_or_else(no_record)
}

pub(crate) fn no_record() -> Error {
    Error::new(
        ErrorKind::EngineUnfit,
        "what is stored there is no guarded record",
    )
    .advise("use another prefix, or remove what another program has written there")
}

fn maybe_applied(key: &Key) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "nobody knows whether the record {:?} was written: the first answer was lost",
            key.as_str()
        ),
    )
    .advise("read it again, and decide anew")
    .of_unknown_effect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_unsealed_and_nonsense_is_said() {
        let stamp = Stamp {
            version: Version::new(7),
            token: FencingToken::MAX,
            lock: Some(LockName::new("a b").unwrap()),
            deleted: false,
        };
        let loaded = |bytes| Loaded {
            bytes,
            version: stamp.version,
            mark: (),
        };
        for value in [&b""[..], b"\n\n", b"x\ny\0"] {
            let sealed = loaded(seal(&stamp, &Content::value(value)).bytes);
            assert_eq!(unseal(&sealed).unwrap(), (stamp.clone(), value));
        }
        let deleted = Stamp {
            deleted: true,
            ..stamp.clone()
        };
        let sealed = seal(&deleted, &Content::deleted(Duration::ZERO)).bytes;
        assert_eq!(unseal(&loaded(sealed)).unwrap(), (deleted, &b""[..]));
        for nonsense in [
            &b""[..],
            b"7",
            b"x\n\n\n",
            b"7\n",
            b"7\n\nvalue",
            b"7\n\nwhat\nvalue",
            b"7\na\tb\n\nvalue",
            b"9007199254740992\n\n\n",
        ] {
            let error = unseal(&loaded(nonsense.to_vec())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::EngineUnfit);
        }
    }
}
