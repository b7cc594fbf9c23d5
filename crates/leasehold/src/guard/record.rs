//! A guarded record, and the rule by which it refuses stale writes: pure, the same on every store.

use std::fmt;
use std::str::FromStr;

use crate::claim::check_text;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Lease, LeaseView};
use crate::name::LockName;
use crate::token::FencingToken;

/// Names a record: 1 to 255 bytes of UTF-8 without control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

impl Key {
    /// Checks the key.
    pub fn new(key: impl AsRef<str>) -> Result<Self> {
        check_text("key", key.as_ref(), 255)?;
        Ok(Self(key.as_ref().into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which state of a record: it changes with every write, and never comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Version {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self).map_err(|_| {
            Error::new(
                ErrorKind::InvalidConfig,
                format!("the version {text:?} is not a number"),
            )
            .advise("give the version that the record was read with")
        })
    }
}

/// What a holder shows when it writes: its token, and the lock that the token is of, if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// The token.
    pub token: FencingToken,
    /// The lock. Tokens of different locks cannot be compared, so a record that was written under one lock refuses those
    /// of another.
    pub lock: Option<LockName>,
}

impl From<FencingToken> for Pass {
    fn from(token: FencingToken) -> Self {
        Self { token, lock: None }
    }
}

impl From<&LeaseView> for Pass {
    fn from(lease: &LeaseView) -> Self {
        Self {
            token: lease.token(),
            lock: Some(lease.name().clone()),
        }
    }
}

impl From<&Lease> for Pass {
    fn from(lease: &Lease) -> Self {
        Self::from(&**lease)
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What was written.
    pub value: Vec<u8>,
    /// Which state this is.
    pub version: Version,
    /// The highest token that has written; [`FencingToken::NONE`] if none has.
    pub token: FencingToken,
    /// The lock that the token is of, if that is known.
    pub lock: Option<LockName>,
}

/// What a fenced write came to. A stale one is a value, not a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// It was written.
    Written {
        /// The version that it made.
        version: Version,
    },
    /// A later holder has written already.
    Refused {
        /// The highest token seen.
        highest: FencingToken,
    },
}

/// What an optimistic write came to. One that came too late is a value, not a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// It was written.
    Written {
        /// The version that it made.
        version: Version,
    },
    /// Someone else has written in between.
    Changed {
        /// The version that is there now; `None` if there is no record.
        version: Option<Version>,
    },
}

/// A record without its value: all that decides whether a write is stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) version: Version,
    pub(crate) token: FencingToken,
    pub(crate) lock: Option<LockName>,
}

#[allow(dead_code)] // stores that decide in a language of their own do not use it
impl Stamp {
    /// The record after a fenced write; or the token that forbids it. Equal tokens may write again: it is the same holder.
    pub(crate) fn fenced(old: Option<&Self>, pass: &Pass) -> Result<Result<Self, FencingToken>> {
        let Some(old) = old else {
            return Ok(Ok(Self {
                version: Version(1),
                token: pass.token,
                lock: pass.lock.clone(),
            }));
        };
        if let (Some(there), Some(given)) = (&old.lock, &pass.lock)
            && there != given
        {
            return Err(other_lock(there.as_str(), given));
        }
        if pass.token < old.token {
            return Ok(Err(old.token));
        }
        Ok(Ok(Self {
            version: Version(old.version.0 + 1),
            token: pass.token,
            lock: pass.lock.clone().or_else(|| old.lock.clone()),
        }))
    }

    /// The record after a write that is based on a version (`None`: on there being no record); or the version that is
    /// there. The highest token stays.
    pub(crate) fn checked(
        old: Option<&Self>,
        version: Option<Version>,
    ) -> Result<Self, Option<Version>> {
        let there = old.map(|old| old.version);
        if there != version {
            return Err(there);
        }
        Ok(Self {
            version: Version(there.map_or(0, Version::get) + 1),
            token: old.map_or(FencingToken::NONE, |old| old.token),
            lock: old.and_then(|old| old.lock.clone()),
        })
    }
}

/// The error for a token of another lock than the record is guarded by.
pub(crate) fn other_lock(there: &str, given: &LockName) -> Error {
    Error::new(
        ErrorKind::InvalidConfig,
        format!(
            "the record is guarded by the lock {there:?}, but the token is of {:?}",
            given.as_str()
        ),
    )
    .advise("write it under the lock that guards it: tokens of different locks cannot be compared")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Fenced(u64),
        Checked(Option<u64>),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u64..20).prop_map(Op::Fenced),
            prop::option::of(0u64..30).prop_map(Op::Checked),
        ]
    }

    proptest! {
        #[test]
        fn no_sequence_lets_a_lower_token_win(ops in prop::collection::vec(op(), 0..60)) {
            let mut record: Option<Stamp> = None;
            for op in ops {
                let before = record.clone();
                match op {
                    Op::Fenced(token) => {
                        let token = FencingToken::new(token).unwrap();
                        let highest = before.as_ref().map(|stamp| stamp.token);
                        match Stamp::fenced(before.as_ref(), &token.into()).unwrap() {
                            Ok(after) => {
                                prop_assert!(highest.is_none_or(|highest| token >= highest));
                                record = Some(after);
                            }
                            Err(told) => prop_assert!(Some(told) == highest && token < told),
                        }
                    }
                    Op::Checked(version) => {
                        let version = version.map(Version::new);
                        let there = before.as_ref().map(|stamp| stamp.version);
                        match Stamp::checked(before.as_ref(), version) {
                            Ok(after) => {
                                prop_assert_eq!(there, version);
                                record = Some(after);
                            }
                            Err(told) => prop_assert!(told == there && there != version),
                        }
                    }
                }
                if let (Some(before), Some(after)) = (before, &record) {
                    prop_assert!(after.token >= before.token);
                    prop_assert!(after.version >= before.version);
                    prop_assert!(*after == before || after.version > before.version);
                }
            }
        }
    }

    #[test]
    fn a_token_of_another_lock_is_an_error() {
        let pass = |lock: Option<&str>| Pass {
            token: FencingToken::new(9).unwrap(),
            lock: lock.map(|name| LockName::new(name).unwrap()),
        };
        let Ok(record) = Stamp::fenced(None, &pass(Some("a"))).unwrap() else {
            panic!("a first write is never stale");
        };
        let error = Stamp::fenced(Some(&record), &pass(Some("b"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let unnamed = Stamp::fenced(Some(&record), &pass(None)).unwrap().unwrap();
        assert_eq!(unnamed.lock, record.lock, "the lock is not forgotten");
    }
}
