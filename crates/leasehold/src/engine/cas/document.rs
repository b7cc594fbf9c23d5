//! A lock as one document: who holds it, who waits, and the greatest token.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::claim::{Claim, ClaimId, Mode};
use crate::engine::meta::Meta;
use crate::error::{Error, ErrorKind, Result};

/// The layout that this version writes. A document of a later one is refused, not guessed at.
const FORMAT: u8 = 1;

/// What the signatures of other programs begin with.
const FOREIGN: &str = "another program: ";

/// What is kept of a claim id: who reads it can do nothing with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Signature(String);

impl Signature {
    pub(crate) fn of(id: &ClaimId) -> Self {
        let digest = Sha256::digest(id.as_bytes());
        let half: Vec<_> = digest[..16].iter().map(|b| format!("{b:02x}")).collect();
        Self(half.concat())
    }

    /// That of a holder that is another program's: no claim has it.
    pub(crate) fn foreign(owner: &str) -> Self {
        Self(format!("{FOREIGN}{owner}"))
    }

    fn is_foreign(&self) -> bool {
        self.0.starts_with(FOREIGN)
    }

    /// As it is kept.
    pub(crate) fn read(kept: String) -> Self {
        Self(kept)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The state of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Document {
    format: u8,
    pub(crate) name: String,
    /// Another one with each write: it tells a write whose answer was lost from those of others, and makes each content unique where a store
    /// knows contents by their hash.
    pub(crate) version: String,
    /// The greatest that was given.
    pub(crate) token: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) holders: Vec<Holder>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue: Vec<Waiter>,
}

/// A claim that holds the lock, or has been offered it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) claim: Signature,
    mode: i64,
    pub(crate) token: u64,
    /// In milliseconds.
    pub(crate) ttl: u64,
    pub(crate) life: Life,
    /// By the clock of whoever granted it, in milliseconds since 1970: for people.
    pub(crate) since: u64,
    /// It was handed the lock, and has not taken it yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) offered: bool,
    /// It stays for the rest of `hold_at_least`: nobody relies on it any more, so it ends by the wall clock too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) unattended: bool,
    pub(crate) who: Meta,
}

/// A claim in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) claim: Signature,
    mode: i64,
    /// For how long others keep its place without a sign of life, in milliseconds.
    pub(crate) ttl: u64,
    pub(crate) life: Life,
    /// It looks at least as often as this, in milliseconds.
    pub(crate) pace: u64,
    /// As of a holder.
    pub(crate) since: u64,
    pub(crate) who: Meta,
}

/// A sign of life: the claim's process has written another one with each renewal. Others count from when they first saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    /// Random, so that no two are the same.
    pub(crate) beat: u64,
    /// By the clock of whoever wrote it, in milliseconds since 1970: for people, and for those who trust clocks.
    pub(crate) at: u64,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Document {
    /// Of a lock that nobody has held.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            version: String::new(),
            token: 0,
            holders: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// As a store has kept it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        /// What every version of the layout begins with.
        #[derive(Deserialize)]
        struct Any {
            format: u8,
        }
        let unfit = |what: String| {
            Error::new(ErrorKind::EngineUnfit, what)
                .advise("use another table, bucket or prefix for locks, or move it aside")
        };
        match serde_json::from_slice::<Any>(bytes) {
            Ok(Any { format: FORMAT }) => {}
            Ok(Any { format }) => {
                return Err(unfit(format!(
                    "the document of the lock has layout {format}, and this version knows {FORMAT}"
                )));
            }
            Err(_) => {
                return Err(unfit(
                    "what is kept under the lock's name is not a lock".to_owned(),
                ));
            }
        }
        serde_json::from_slice(bytes).map_err(|cause| {
            unfit("the document of the lock is damaged".to_owned()).caused_by(cause)
        })
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Nobody holds it or waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    /// Another program holds it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.holders.iter().any(|holder| holder.claim.is_foreign())
    }

    pub(crate) fn holder(&self, claim: &Signature) -> Option<usize> {
        self.holders
            .iter()
            .position(|holder| holder.claim == *claim)
    }

    pub(crate) fn position(&self, claim: &Signature) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.claim == *claim)
    }

    /// All signs of life in it.
    pub(crate) fn beats(&self) -> impl Iterator<Item = u64> {
        let holders = self.holders.iter().map(|holder| holder.life.beat);
        holders.chain(self.queue.iter().map(|waiter| waiter.life.beat))
    }
}

impl Holder {
    pub(crate) fn new(claim: &Claim, token: u64, life: Life) -> Self {
        Self {
            claim: Signature::of(&claim.id),
            mode: claim.mode.to_number(),
            token,
            ttl: millis(claim.ttl.get()),
            life,
            since: life.at,
            offered: false,
            unattended: false,
            who: Meta::of(claim),
        }
    }

    /// A waiter that is handed the lock.
    pub(crate) fn offer(waiter: Waiter, token: u64, ttl: u64, life: Life) -> Self {
        Self {
            claim: waiter.claim,
            mode: waiter.mode,
            token,
            ttl,
            life,
            since: life.at,
            offered: true,
            unattended: false,
            who: waiter.who,
        }
    }

    /// A holder that is another program's.
    pub(crate) fn foreign(owner: &str, ttl: u64, life: Life, who: Meta) -> Self {
        Self {
            claim: Signature::foreign(owner),
            mode: Mode::Exclusive.to_number(),
            token: 0,
            ttl,
            life,
            since: life.at,
            offered: false,
            unattended: false,
            who,
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::from_number(self.mode)
    }
}

impl Waiter {
    pub(crate) fn new(claim: &Claim, ttl: u64, pace: u64, life: Life) -> Self {
        Self {
            claim: Signature::of(&claim.id),
            mode: claim.mode.to_number(),
            ttl,
            life,
            pace,
            since: life.at,
            who: Meta::of(claim),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        Mode::from_number(self.mode)
    }

    pub(crate) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode.to_number();
    }
}

/// Rounded up, so that nothing ends too soon.
pub(crate) fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_is_read_back_without_claim_ids() {
        let claim = Claim::example(7);
        let life = Life {
            beat: u64::MAX,
            at: 1,
        };
        let mut document = Document::new("x");
        document.holders.push(Holder::new(&claim, 5, life));
        document
            .queue
            .push(Waiter::new(&Claim::example(8), 1000, 200, life));
        let json = document.to_json();
        assert_eq!(Document::read(json.as_bytes()).unwrap(), document);
        assert!(!json.contains(&claim.id.reveal()));
    }

    #[test]
    fn what_is_no_lock_is_refused_with_advice() {
        for (bytes, says) in [
            ("", "not a lock"),
            ("hello", "not a lock"),
            ("{}", "not a lock"),
            ("{\"format\":2}", "layout 2"),
            ("{\"format\":1,\"name\":7}", "damaged"),
        ] {
            let error = Document::read(bytes.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::EngineUnfit);
            assert!(error.what().contains(says), "{error}");
            assert!(error.advice().is_some());
        }
    }
}
