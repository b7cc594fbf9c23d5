//! Guarded records.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::{nonsense, token};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Checked, Content, Fenced, Key, Pass, Record, Version};
use crate::name::{BESIDE, LockName, RUN};
use crate::token::FencingToken;

/// A call of the guarded records.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordMessage {
    key: String,
    /// What to do with it.
    pub call: RecordCall,
}

/// What to do with a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordCall {
    /// See [`GuardedStore::read`](crate::guard::GuardedStore::read).
    Read,
    /// See [`GuardedStore::write_fenced`](crate::guard::GuardedStore::write_fenced).
    Fenced {
        /// What is written.
        content: ContentMessage,
        /// The token.
        token: u64,
        /// Its lock.
        lock: Option<String>,
    },
    /// See [`GuardedStore::write_if`](crate::guard::GuardedStore::write_if).
    If {
        /// What is written.
        content: ContentMessage,
        /// The version that must be there.
        version: Option<u64>,
    },
}

/// A [`Content`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContentMessage {
    value_base64: Option<String>,
    lifetime_us: Option<u64>,
}

impl From<&Content<'_>> for ContentMessage {
    fn from(content: &Content<'_>) -> Self {
        // Rounded up, so that only nothing is zero.
        let micros = |time: Duration| time.as_nanos().div_ceil(1000).min(u64::MAX.into()) as u64;
        Self {
            value_base64: content.value.map(|value| BASE64.encode(value)),
            lifetime_us: content.lifetime.map(micros),
        }
    }
}

impl ContentMessage {
    /// The value and the lifetime.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the value is not Base64.
    pub fn into_parts(self) -> Result<(Option<Vec<u8>>, Option<Duration>)> {
        let value = self.value_base64.map(|value| decode_base64(&value));
        Ok((
            value.transpose()?,
            self.lifetime_us.map(Duration::from_micros),
        ))
    }
}

/// Base64 of a value.
pub fn encode_base64(value: &[u8]) -> String {
    BASE64.encode(value)
}

/// The value that is so encoded.
///
/// # Errors
///
/// `InvalidConfig` if it is not Base64.
pub fn decode_base64(text: &str) -> Result<Vec<u8>> {
    BASE64.decode(text).map_err(|cause| {
        Error::new(ErrorKind::InvalidConfig, "the value is not Base64")
            .advise("encode it as in RFC 4648, with padding")
            .caused_by(cause)
    })
}

impl RecordMessage {
    /// A call.
    pub fn new(key: &Key, call: RecordCall) -> Self {
        Self {
            key: key.as_str().to_owned(),
            call,
        }
    }

    /// The key, which may be one of the crate's own.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` or `InvalidName` if it cannot be used.
    pub fn key(&self) -> Result<Key> {
        Key::received(&self.key)
    }

    /// The lock whose run this forgets, as [`Locks::forget_run`](crate::Locks::forget_run) does where runs are kept as records: it deletes the
    /// record, or replaces it without a fencing token, as no holder does.
    pub fn forgets_run_of(&self) -> Option<LockName> {
        let forgets = match &self.call {
            RecordCall::Read => false,
            RecordCall::Fenced { content, .. } => content.value_base64.is_none(),
            RecordCall::If { .. } => true,
        };
        self.run_of().filter(|_| forgets)
    }

    /// Whether a holder records a run so, where runs are kept as records. It does so only if no run that still counts is recorded.
    pub fn records_run(&self) -> bool {
        let records = match &self.call {
            RecordCall::Fenced { content, .. } => content.value_base64.is_some(),
            RecordCall::Read | RecordCall::If { .. } => false,
        };
        records && self.run_of().is_some()
    }

    /// The lock whose run the record is.
    fn run_of(&self) -> Option<LockName> {
        let (lock, what) = self.key.split_once(BESIDE)?;
        (what == RUN).then(|| LockName::new(lock).ok())?
    }
}

/// A pass that was sent.
///
/// # Errors
///
/// `InvalidConfig` or `InvalidName` if there is no such token or lock.
pub fn pass(number: u64, lock: Option<String>) -> Result<Pass> {
    let token = FencingToken::new(number).ok_or_else(|| {
        Error::new(ErrorKind::InvalidConfig, "there is no such fencing token")
            .advise("give the token of a grant, which is below 2^53")
    })?;
    let lock = lock.map(LockName::stored).transpose()?;
    Ok(Pass { token, lock })
}

/// What became of a call of the guarded records.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordAnswer {
    /// There is no record.
    None,
    /// A record.
    Record {
        /// What was written.
        value_base64: String,
        /// Which state it is.
        version: u64,
        /// The highest token.
        token: u64,
        /// Its lock.
        lock: Option<String>,
    },
    /// It was written.
    Written {
        /// The version that it made.
        version: u64,
    },
    /// See [`Fenced::Refused`].
    Refused {
        /// The highest token.
        highest: u64,
    },
    /// See [`Checked::Changed`].
    Changed {
        /// The version that is there.
        version: Option<u64>,
    },
}

impl From<Option<Record>> for RecordAnswer {
    fn from(record: Option<Record>) -> Self {
        match record {
            None => Self::None,
            Some(record) => Self::Record {
                value_base64: encode_base64(&record.value),
                version: record.version.get(),
                token: record.token.get(),
                lock: record.lock.map(|lock| lock.as_str().to_owned()),
            },
        }
    }
}

impl From<Fenced> for RecordAnswer {
    fn from(fenced: Fenced) -> Self {
        match fenced {
            Fenced::Written { version } => Self::Written {
                version: version.get(),
            },
            Fenced::Refused { highest } => Self::Refused {
                highest: highest.get(),
            },
        }
    }
}

impl From<Checked> for RecordAnswer {
    fn from(checked: Checked) -> Self {
        match checked {
            Checked::Written { version } => Self::Written {
                version: version.get(),
            },
            Checked::Changed { version } => Self::Changed {
                version: version.map(Version::get),
            },
        }
    }
}

impl RecordAnswer {
    /// The answer to a read.
    ///
    /// # Errors
    ///
    /// `Unexpected` if it is none.
    pub fn into_record(self) -> Result<Option<Record>> {
        match self {
            Self::None => Ok(None),
            Self::Record {
                value_base64,
                version,
                token: number,
                lock,
            } => {
                let value = decode_base64(&value_base64).map_err(|_| nonsense("a value"))?;
                let lock = lock.map(LockName::stored).transpose();
                Ok(Some(Record {
                    lock: lock.map_err(|_| nonsense("a lock's name"))?,
                    ..Record::new(value, Version::new(version), token(number)?)
                }))
            }
            _ => Err(nonsense("a record")),
        }
    }

    /// The answer to a fenced write.
    ///
    /// # Errors
    ///
    /// `Unexpected` if it is none.
    pub fn into_fenced(self) -> Result<Fenced> {
        match self {
            Self::Written { version } => Ok(Fenced::Written {
                version: Version::new(version),
            }),
            Self::Refused { highest } => Ok(Fenced::Refused {
                highest: token(highest)?,
            }),
            _ => Err(nonsense("a fenced write")),
        }
    }

    /// The answer to an optimistic write.
    ///
    /// # Errors
    ///
    /// `Unexpected` if it is none.
    pub fn into_checked(self) -> Result<Checked> {
        match self {
            Self::Written { version } => Ok(Checked::Written {
                version: Version::new(version),
            }),
            Self::Changed { version } => Ok(Checked::Changed {
                version: version.map(Version::new),
            }),
            _ => Err(nonsense("an optimistic write")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,60}") {
            let _ = Key::received(&text);
            let _ = decode_base64(&text);
            let _ = serde_json::from_str::<RecordMessage>(&text);
        }
    }
}
