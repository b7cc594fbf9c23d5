//! Holds that have ended: the last ones, in memory or in a file.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::problem::Problem;
use crate::shapes::{ModeShape, Who};
use crate::time::rfc3339;

/// How many are kept.
const KEPT: usize = 10_000;

/// A hold that has ended.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PastHold {
    #[serde(skip)]
    pub(crate) number: u64,
    pub(crate) lock: String,
    #[serde(flatten)]
    pub(crate) who: Who,
    #[serde(flatten)]
    pub(crate) mode: ModeShape,
    pub(crate) reason: Option<String>,
    pub(crate) token: u64,
    #[serde(serialize_with = "as_text")]
    pub(crate) acquired_at: SystemTime,
    #[serde(serialize_with = "as_text")]
    pub(crate) ended_at: SystemTime,
    pub(crate) held_ms: u64,
    pub(crate) waited_ms: Option<u64>,
    pub(crate) end: &'static str,
    pub(crate) by: Option<String>,
    pub(crate) here: bool,
}

fn as_text<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*time))
}

/// Which holds are asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filter {
    pub(crate) lock: Option<String>,
    pub(crate) prefix: String,
    /// A part of the label or the host.
    pub(crate) holder: Option<String>,
    pub(crate) end: Option<String>,
    /// Older than this one.
    pub(crate) before: Option<u64>,
}

impl Filter {
    fn admits(&self, hold: &PastHold) -> bool {
        let has = |text: &str| hold.who.label.contains(text) || hold.who.host.contains(text);
        self.lock.as_ref().is_none_or(|lock| hold.lock == *lock)
            && hold.lock.starts_with(&self.prefix)
            && self.holder.as_deref().is_none_or(has)
            && self.end.as_deref().is_none_or(|end| hold.end == end)
            && self.before.is_none_or(|before| hold.number < before)
    }
}

/// A hold that was asked for.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Found {
    #[serde(skip)]
    pub(crate) number: u64,
    #[serde(flatten)]
    shown: Shown,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
enum Shown {
    Kept(Arc<PastHold>),
    #[cfg(feature = "history")]
    Read(serde_json::Value),
}

/// The last holds that have ended.
#[derive(Debug)]
pub(crate) enum History {
    Memory(Mutex<Kept>),
    #[cfg(feature = "history")]
    File(super::history_file::HistoryFile),
}

impl Default for History {
    fn default() -> Self {
        Self::Memory(Mutex::default())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Kept {
    last: u64,
    holds: VecDeque<Arc<PastHold>>,
}

impl History {
    pub(crate) fn add(&self, mut hold: PastHold) {
        let kept = match self {
            Self::Memory(kept) => kept,
            #[cfg(feature = "history")]
            Self::File(file) => return file.add(hold),
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.last += 1;
        hold.number = kept.last;
        if kept.holds.len() >= KEPT {
            kept.holds.pop_front();
        }
        kept.holds.push_back(Arc::new(hold));
    }

    /// The newest first.
    pub(crate) async fn find(
        &self,
        filter: Filter,
        limit: usize,
        may_see: impl Fn(&str) -> bool + Send + 'static,
    ) -> Result<Vec<Found>, Problem> {
        let kept = match self {
            Self::Memory(kept) => kept,
            #[cfg(feature = "history")]
            Self::File(file) => {
                let found = file.find(filter, limit, may_see).await?;
                let found = found.into_iter().map(|(number, hold)| Found {
                    number,
                    shown: Shown::Read(hold),
                });
                return Ok(found.collect());
            }
        };
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = kept.holds.iter().rev();
        let asked = asked.filter(|hold| filter.admits(hold) && may_see(&hold.lock));
        let found = asked.take(limit).map(|hold| Found {
            number: hold.number,
            shown: Shown::Kept(Arc::clone(hold)),
        });
        Ok(found.collect())
    }

    /// Where they are kept.
    pub(crate) fn kept_in(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            #[cfg(feature = "history")]
            Self::File(_) => "file",
        }
    }

    /// Returns when all that was added so far is written.
    pub(crate) async fn flush(&self) {
        match self {
            Self::Memory(_) => {}
            #[cfg(feature = "history")]
            Self::File(file) => file.flush().await,
        }
    }
}
