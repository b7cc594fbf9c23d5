//! Guarded records on a store that knows nothing but "write this if that is still there": read, decide, and write on condition.

use std::fmt::Debug;

use async_trait::async_trait;

use super::record::{Checked, Fenced, Key, Pass, Record, Stamp, Version};
use super::store::GuardedStore;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// A store that can write on condition.
#[async_trait]
pub(crate) trait CompareAndSet: Debug + Send + Sync + 'static {
    /// What the store itself calls a state of a record.
    type Mark: Clone + Send + Sync;

    /// What is there.
    async fn load(&self, key: &Key) -> Result<Option<Loaded<Self::Mark>>>;

    /// Writes if this is still there; for `None`, if nothing is.
    async fn swap(&self, key: &Key, bytes: Vec<u8>, expected: Option<Self::Mark>) -> Result<Swap>;
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
    InDoubt,
}

/// Guarded records on such a store.
#[derive(Debug)]
pub(crate) struct ByVersion<S>(pub(crate) S);

/// Whoever collides so often with others has been unlucky for long enough.
const TRIES: usize = 100;

#[async_trait]
impl<S: CompareAndSet> GuardedStore for ByVersion<S> {
    async fn read(&self, key: &Key) -> Result<Option<Record>> {
        let Some(loaded) = self.0.load(key).await? else {
            return Ok(None);
        };
        let (stamp, value) = unseal(&loaded)?;
        Ok(Some(Record {
            value: value.to_vec(),
            version: stamp.version,
            token: stamp.token,
            lock: stamp.lock,
        }))
    }

    async fn write_fenced(&self, key: &Key, value: &[u8], pass: &Pass) -> Result<Fenced> {
        for _ in 0..TRIES {
            let loaded = self.0.load(key).await?;
            let old = loaded.as_ref().map(unseal).transpose()?;
            let new = match Stamp::fenced(old.as_ref().map(|(stamp, _)| stamp), pass)? {
                Ok(new) => new,
                Err(highest) => return Ok(Fenced::Refused { highest }),
            };
            let mark = loaded.map(|loaded| loaded.mark);
            // If an earlier try has been carried out after all, the same holder writes the same again.
            if let Swap::Done(version) = self.0.swap(key, seal(&new, value), mark).await? {
                return Ok(Fenced::Written { version });
            }
        }
        Err(unlucky(key))
    }

    async fn write_if(
        &self,
        key: &Key,
        value: &[u8],
        expected: Option<Version>,
    ) -> Result<Checked> {
        let loaded = self.0.load(key).await?;
        let version = loaded.as_ref().map(|loaded| loaded.version);
        if version != expected {
            return Ok(Checked::Changed { version });
        }
        let old = loaded.as_ref().map(unseal).transpose()?;
        let new = match Stamp::checked(old.as_ref().map(|(stamp, _)| stamp), expected) {
            Ok(new) => new,
            Err(version) => return Ok(Checked::Changed { version }),
        };
        let mark = loaded.map(|loaded| loaded.mark);
        match self.0.swap(key, seal(&new, value), mark).await? {
            Swap::Done(version) => Ok(Checked::Written { version }),
            Swap::Changed => {
                let version = self.0.load(key).await?.map(|loaded| loaded.version);
                Ok(Checked::Changed { version })
            }
            Swap::InDoubt => Err(in_doubt(key)),
        }
    }
}

/// Token, lock and value as one: two lines, and the value as it is.
fn seal(stamp: &Stamp, value: &[u8]) -> Vec<u8> {
    let lock = stamp.lock.as_ref().map_or("", LockName::as_str);
    let mut sealed = format!("{}\n{lock}\n", stamp.token).into_bytes();
    sealed.extend_from_slice(value);
    sealed
}

fn unseal<M>(loaded: &Loaded<M>) -> Result<(Stamp, &[u8])> {
    let read = || {
        let mut parts = loaded.bytes.splitn(3, |byte| *byte == b'\n');
        let token = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let lock = match std::str::from_utf8(parts.next()?).ok()? {
            "" => None,
            name => Some(LockName::new(name).ok()?),
        };
        let stamp = Stamp {
            version: loaded.version,
            token: FencingToken::new(token)?,
            lock,
        };
        Some((stamp, parts.next()?))
    };
    read().ok_or_else(|| {
        Error::new(
            ErrorKind::EngineUnfit,
            "what is stored there is no guarded record",
        )
        .advise("use another prefix, or remove what another program has written there")
    })
}

fn in_doubt(key: &Key) -> Error {
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

fn unlucky(key: &Key) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!(
            "the record {:?} was not written: in each of {TRIES} tries someone else wrote first",
            key.as_str()
        ),
    )
    .advise("let those who write it take turns with one lock")
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
        };
        let loaded = |bytes| Loaded {
            bytes,
            version: stamp.version,
            mark: (),
        };
        for value in [&b""[..], b"\n\n", b"x\ny\0"] {
            let sealed = loaded(seal(&stamp, value));
            assert_eq!(unseal(&sealed).unwrap(), (stamp.clone(), value));
        }
        for nonsense in [
            &b""[..],
            b"7",
            b"x\n\n",
            b"7\n",
            b"7\na\tb\nvalue",
            b"9007199254740992\n\n",
        ] {
            let error = unseal(&loaded(nonsense.to_vec())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::EngineUnfit);
        }
    }
}
