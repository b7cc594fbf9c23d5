//! A guarded record, and the rule by which it refuses stale writes: pure, the same on every store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::claim::check_text;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{BESIDE, LockName};
use crate::token::{FencingToken, wall_clock_micros};

/// Names a record: 1 to 255 bytes of UTF-8 without control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<str>);

impl Key {
    /// Checks the key.
    pub fn new(key: impl AsRef<str>) -> Result<Self> {
        check_text("key", key.as_ref(), 255)?;
        Ok(Self(key.as_ref().into()))
    }

    /// The key of a record of the crate's own that belongs to this lock. [`Key::new`] makes no such key, so no user's record can
    /// be in its way. It is up to 32 bytes longer than a user's.
    pub(crate) fn beside(lock: &LockName, what: &str) -> Self {
        debug_assert!(what.len() < 32);
        Self(format!("{}{BESIDE}{what}", lock.as_str()).into())
    }

    /// A key as another process of the crate has sent it: a user's, or one [beside](Self::beside) a lock.
    #[allow(dead_code)] // which features send keys depends on the build
    pub(crate) fn received(key: &str) -> Result<Self> {
        match key.split_once(BESIDE) {
            Some((lock, what)) => {
                LockName::new(lock)?;
                check_text("key", what, 31)?;
                Ok(Self(key.into()))
            }
            None => Self::new(key),
        }
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

/// Which state of a record: it changes with every write, and never comes back, not even after the record was deleted and all that
/// was known of it is forgotten. So it does not begin with 1, but with a number that the store has not reached before.
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

    /// That of a record of which nothing is known: the time in microseconds. No record is written so often that its versions
    /// would overtake the clock.
    #[allow(dead_code)] // stores on a server use the server's clock
    pub(crate) fn first() -> Self {
        Self(wall_clock_micros())
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
#[non_exhaustive]
pub struct Pass {
    /// The token.
    pub token: FencingToken,
    /// The lock. Tokens of different locks cannot be compared, so a record that was written under one lock refuses those
    /// of another.
    pub lock: Option<LockName>,
}

impl Pass {
    /// The token of a holder of this lock. [`From`] makes one of a lease, or of a token whose lock is not known.
    pub const fn new(token: FencingToken, lock: LockName) -> Self {
        Self {
            token,
            lock: Some(lock),
        }
    }
}

impl From<FencingToken> for Pass {
    fn from(token: FencingToken) -> Self {
        Self { token, lock: None }
    }
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
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

impl Record {
    /// A record that was written with this token, of a lock that is not known.
    pub const fn new(value: Vec<u8>, version: Version, token: FencingToken) -> Self {
        Self {
            value,
            version,
            token,
            lock: None,
        }
    }
}

/// What a write leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Content<'a> {
    /// The value; `None` for a deleted record. That reads as absent, and may be written anew, but it keeps its token and its lock and
    /// goes on with its versions for as long as its lifetime.
    pub value: Option<&'a [u8]>,
    /// For how long all of it is kept, token and version included, counted from this write on; `None` for ever. With a lifetime of
    /// zero nothing is left behind.
    pub lifetime: Option<Duration>,
}

impl<'a> Content<'a> {
    /// A value, for ever.
    pub fn value(value: &'a [u8]) -> Self {
        Self {
            value: Some(value),
            lifetime: None,
        }
    }

    /// A value, for so long.
    pub fn passing(value: &'a [u8], lifetime: Duration) -> Self {
        Self {
            value: Some(value),
            lifetime: Some(lifetime),
        }
    }

    /// No value: the record is deleted, and its token is remembered for so long.
    pub fn deleted(lifetime: Duration) -> Self {
        Self {
            value: None,
            lifetime: Some(lifetime),
        }
    }

    /// Whether nothing is left behind.
    pub fn is_nothing(&self) -> bool {
        self.lifetime == Some(Duration::ZERO)
    }

    /// The lifetime in microseconds, if it has one.
    #[allow(dead_code)] // not every store counts so
    pub(crate) fn lifetime_micros(&self) -> Option<u64> {
        self.lifetime.map(micros)
    }
}

/// Rounded up, so that only nothing is zero.
fn micros(lifetime: Duration) -> u64 {
    let micros = lifetime.min(LONGEST).as_nanos().div_ceil(1000);
    u64::try_from(micros).unwrap_or(u64::MAX)
}

/// When what is written now ends by the wall clock, in microseconds since 1970.
#[allow(dead_code)] // not every store counts so
pub(crate) fn ends_at(lifetime: Duration) -> u64 {
    wall_clock_micros().saturating_add(micros(lifetime))
}

/// A century: what is longer is cut, since no store counts for ever.
pub(crate) const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

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

#[allow(dead_code)] // stores that decide in a language of their own do not use it
impl Fenced {
    /// The version that was written, or the token that forbade it.
    pub(crate) fn of(written: std::result::Result<Version, FencingToken>) -> Self {
        match written {
            Ok(version) => Self::Written { version },
            Err(highest) => Self::Refused { highest },
        }
    }
}

#[allow(dead_code)] // as above
impl Checked {
    /// The version that was written, or that is there.
    pub(crate) fn of(written: std::result::Result<Version, Option<Version>>) -> Self {
        match written {
            Ok(version) => Self::Written { version },
            Err(version) => Self::Changed { version },
        }
    }
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
    /// There is no value: only token, lock and version are remembered.
    pub(crate) deleted: bool,
}

#[allow(dead_code)] // stores that decide in a language of their own do not use it
impl Stamp {
    /// The record after a fenced write; or the token that forbids it. Equal tokens may write again: it is the same holder. Where
    /// nothing is known of it, its versions begin with `first`.
    pub(crate) fn fenced(
        old: Option<&Self>,
        pass: &Pass,
        content: &Content<'_>,
        first: Version,
    ) -> Result<Result<Self, FencingToken>> {
        let deleted = content.value.is_none();
        let Some(old) = old else {
            return Ok(Ok(Self {
                version: first,
                token: pass.token,
                lock: pass.lock.clone(),
                deleted,
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
            deleted,
        }))
    }

    /// The record after a write that is based on a version (`None`: on there being no record); or the version that is
    /// there. The highest token stays, also that of a deleted record.
    pub(crate) fn checked(
        old: Option<&Self>,
        version: Option<Version>,
        content: &Content<'_>,
        first: Version,
    ) -> Result<Self, Option<Version>> {
        let there = old.filter(|old| !old.deleted).map(|old| old.version);
        if there != version {
            return Err(there);
        }
        Ok(Self {
            version: old.map_or(first, |old| Version(old.version.0 + 1)),
            token: old.map_or(FencingToken::NONE, |old| old.token),
            lock: old.and_then(|old| old.lock.clone()),
            deleted: content.value.is_none(),
        })
    }

    /// The record, if the value is there.
    pub(crate) fn with(self, value: Option<Vec<u8>>) -> Option<Record> {
        Some(Record {
            value: value?,
            version: self.version,
            token: self.token,
            lock: self.lock,
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

    fn op() -> impl Strategy<Value = (Op, bool)> {
        let op = prop_oneof![
            (0u64..20).prop_map(Op::Fenced),
            prop::option::of(0u64..30).prop_map(Op::Checked),
        ];
        (op, any::<bool>())
    }

    const FIRST: Version = Version(1);

    proptest! {
        #[test]
        fn no_sequence_lets_a_lower_token_win(ops in prop::collection::vec(op(), 0..60)) {
            let mut record: Option<Stamp> = None;
            for (op, deletes) in ops {
                let before = record.clone();
                let content = match deletes {
                    true => Content::deleted(Duration::from_secs(1)),
                    false => Content::value(b""),
                };
                match op {
                    Op::Fenced(token) => {
                        let token = FencingToken::new(token).unwrap();
                        let highest = before.as_ref().map(|stamp| stamp.token);
                        match Stamp::fenced(before.as_ref(), &token.into(), &content, FIRST).unwrap() {
                            Ok(after) => {
                                prop_assert!(highest.is_none_or(|highest| token >= highest));
                                record = Some(after);
                            }
                            Err(returned) => prop_assert!(Some(returned) == highest && token < returned),
                        }
                    }
                    Op::Checked(version) => {
                        let version = version.map(Version::new);
                        let there = before.as_ref().filter(|stamp| !stamp.deleted);
                        let there = there.map(|stamp| stamp.version);
                        match Stamp::checked(before.as_ref(), version, &content, FIRST) {
                            Ok(after) => {
                                prop_assert_eq!(there, version);
                                record = Some(after);
                            }
                            Err(returned) => prop_assert!(returned == there && there != version),
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
        let fenced = |old, lock| Stamp::fenced(old, &pass(lock), &Content::value(b""), FIRST);
        let Ok(record) = fenced(None, Some("a")).unwrap() else {
            panic!("a first write is never stale");
        };
        let error = fenced(Some(&record), Some("b")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let unnamed = fenced(Some(&record), None).unwrap().unwrap();
        assert_eq!(unnamed.lock, record.lock, "the lock is not forgotten");
    }
}
