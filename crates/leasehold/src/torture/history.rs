//! What was done under the locks: who entered and left when, with which token.
//!
//! Moments are those of the machine's clock, the same for all its processes, so the histories of
//! several processes can be put together. A visit is recorded from the inside (entered after the grant,
//! left before the release), so two that overlap here did overlap.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::claim::{ClaimId, Mode};
use crate::clock::Moment;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// Something that happened, as one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Someone holds the lock now.
    Enter {
        /// Which visit; unique over all processes.
        visit: String,
        /// The lock.
        lock: String,
        /// How it is held.
        #[serde(with = "ModeAsData")]
        mode: Mode,
        /// With which fencing token.
        token: u64,
        /// When, in nanoseconds on the machine's clock.
        at: u64,
    },
    /// The visit is over. One that was cut short by a kill has no such event.
    Leave {
        /// Which visit.
        visit: String,
        /// When, in nanoseconds on the machine's clock.
        at: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Mode", rename_all = "snake_case")]
enum ModeAsData {
    Exclusive,
    Shared,
    Permit { of: u32 },
}

/// Records what one process does.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    /// Notes that a lock is held, and returns the visit's id.
    #[allow(clippy::expect_used)]
    pub fn enter(&self, lock: &str, mode: Mode, token: FencingToken, at: Moment) -> String {
        let visit = ClaimId::random().expect("random bits").reveal();
        self.note(Event::Enter {
            visit: visit.clone(),
            lock: lock.to_owned(),
            mode,
            token: token.get(),
            at: nanos(at),
        });
        visit
    }

    /// Notes that the visit is over: to be called before the release.
    pub fn leave(&self, visit: String, at: Moment) {
        let at = nanos(at);
        self.note(Event::Leave { visit, at });
    }

    fn note(&self, event: Event) {
        let mut events = self.events.lock();
        events.push(event);
    }

    /// What was recorded so far.
    pub fn events(&self) -> Vec<Event> {
        let events = self.events.lock();
        events.clone()
    }
}

pub(crate) fn nanos(at: Moment) -> u64 {
    at.since_origin().as_nanos() as u64
}

/// One stay inside a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visit {
    /// How it was held.
    pub mode: Mode,
    /// With which token.
    pub token: u64,
    /// From when.
    pub entered: Moment,
    /// Until when, if that is known.
    pub left: Option<Moment>,
}

/// All visits, by lock.
#[derive(Debug, Default)]
pub struct History {
    locks: BTreeMap<String, Vec<Visit>>,
}

/// What must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Someone entered who did not fit beside those inside.
    Overlap {
        /// The lock.
        lock: String,
        /// Who entered.
        entered: Visit,
        /// Who was inside.
        inside: Vec<Visit>,
    },
    /// A later visit had a token that is not greater.
    TokenFell {
        /// The lock.
        lock: String,
        /// The earlier visit.
        earlier: Visit,
        /// The later one.
        later: Visit,
    },
}

impl History {
    /// Puts together what several recorders have seen, in any order.
    pub fn of(events: impl IntoIterator<Item = Event>) -> Self {
        let mut visits = HashMap::new();
        let mut ends = HashMap::new();
        for event in events {
            match event {
                Event::Enter {
                    visit,
                    lock,
                    mode,
                    token,
                    at,
                } => {
                    let entered = Moment::from_origin(Duration::from_nanos(at));
                    let began = Visit {
                        mode,
                        token,
                        entered,
                        left: None,
                    };
                    visits.insert(visit, (lock, began));
                }
                Event::Leave { visit, at } => {
                    ends.insert(visit, Moment::from_origin(Duration::from_nanos(at)));
                }
            }
        }
        let mut history = Self::default();
        for (id, (lock, mut visit)) in visits {
            visit.left = ends.get(&id).copied();
            history.locks.entry(lock).or_default().push(visit);
        }
        for visits in history.locks.values_mut() {
            visits.sort_by_key(|visit| (visit.entered, visit.token));
        }
        history
    }

    /// How many visits there were.
    pub fn visits(&self) -> usize {
        self.locks.values().map(Vec::len).sum()
    }

    /// Everything that must not have happened.
    pub fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for (lock, visits) in &self.locks {
            let mut inside: Vec<&Visit> = Vec::new();
            let mut earlier = Earlier::default();
            for visit in visits {
                inside.retain(|other| other.left.is_some_and(|left| left > visit.entered));
                if !visit.mode.fits(inside.iter().map(|other| other.mode)) {
                    found.push(Violation::Overlap {
                        lock: lock.clone(),
                        entered: visit.clone(),
                        inside: inside.iter().map(|other| (*other).clone()).collect(),
                    });
                }
                if let Some(other) = earlier.with_too_high_a_token(visit) {
                    found.push(Violation::TokenFell {
                        lock: lock.clone(),
                        earlier: other.clone(),
                        later: visit.clone(),
                    });
                }
                inside.push(visit);
                earlier.add(visit);
            }
        }
        found
    }
}

/// Someone who waited for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// From when.
    pub from: Moment,
    /// Until when.
    pub until: Moment,
    /// Whether the wait ended with the lock.
    pub obtained: bool,
}

/// A time in which someone waited for a lock and nobody entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// From when.
    pub from: Moment,
    /// Until when.
    pub until: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Comes,
    Enters,
    Goes,
}

/// The times in which someone waited for one lock and nobody entered, in order. One ends whenever somebody enters, or nobody waits.
pub fn gaps(waits: &[Wait]) -> Vec<Gap> {
    let steps = waits.iter().flat_map(|wait| {
        let end = if wait.obtained {
            Step::Enters
        } else {
            Step::Goes
        };
        [(wait.from, Step::Comes), (wait.until, end)]
    });
    let mut steps: Vec<_> = steps.collect();
    steps.sort();
    let mut from = Moment::from_origin(Duration::ZERO);
    let mut waiting = 0;
    let mut found = Vec::new();
    for (at, step) in steps {
        match step {
            Step::Comes => {
                if waiting == 0 {
                    from = at;
                }
                waiting += 1;
            }
            Step::Enters | Step::Goes => {
                waiting -= 1;
                if step == Step::Enters || waiting == 0 {
                    found.push(Gap { from, until: at });
                    from = at;
                }
            }
        }
    }
    found
}

/// The visits before another, as far as their tokens matter to it.
///
/// Those that may hold a lock together are granted it in one order and may notice, and even be
/// done, in another; but no two have the same token.
#[derive(Default)]
struct Earlier<'a> {
    highest: Option<&'a Visit>,
    highest_exclusive: Option<&'a Visit>,
    by_token: HashMap<u64, &'a Visit>,
}

impl<'a> Earlier<'a> {
    fn add(&mut self, visit: &'a Visit) {
        let higher = |than: Option<&Visit>| than.is_none_or(|than| than.token < visit.token);
        if higher(self.highest) {
            self.highest = Some(visit);
        }
        if visit.mode == Mode::Exclusive && higher(self.highest_exclusive) {
            self.highest_exclusive = Some(visit);
        }
        self.by_token.insert(visit.token, visit);
    }

    fn with_too_high_a_token(&self, visit: &Visit) -> Option<&'a Visit> {
        let before = match visit.mode {
            Mode::Exclusive => self.highest,
            _ => self.highest_exclusive,
        };
        let same = self.by_token.get(&visit.token).copied();
        before.filter(|other| other.token >= visit.token).or(same)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Overlap {
                lock,
                entered,
                inside,
            } => write!(
                f,
                "overlap in {lock:?}: {entered:?} entered beside {inside:?}"
            ),
            Violation::TokenFell {
                lock,
                earlier,
                later,
            } => write!(
                f,
                "a token of {lock:?} fell: first {earlier:?}, then {later:?}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(visits: &[(Mode, u64, u64, u64)]) -> History {
        let recorder = Recorder::default();
        let at = |second| Moment::from_origin(Duration::from_secs(second));
        for (mode, token, from, until) in visits {
            let token = FencingToken::new(*token).unwrap();
            let visit = recorder.enter("x", *mode, token, at(*from));
            if *until > 0 {
                recorder.leave(visit, at(*until));
            }
        }
        let lines: Vec<_> = recorder.events().iter().map(json).collect();
        History::of(lines.iter().map(|line| serde_json::from_str(line).unwrap()))
    }

    fn gap(waits: &[(u64, u64, bool)]) -> u64 {
        let second = |count| Moment::from_origin(Duration::from_secs(count));
        let waits: Vec<_> = waits
            .iter()
            .map(|(from, until, obtained)| Wait {
                from: second(*from),
                until: second(*until),
                obtained: *obtained,
            })
            .collect();
        let lengths = gaps(&waits)
            .into_iter()
            .map(|gap| gap.until.since(gap.from).as_secs());
        lengths.max().unwrap_or_default()
    }

    #[test]
    fn a_gap_is_where_someone_waits_and_nobody_enters() {
        assert_eq!(gap(&[]), 0);
        assert_eq!(gap(&[(1, 2, true), (9, 9, true)]), 1);
        assert_eq!(gap(&[(1, 6, true), (2, 8, true)]), 5);
        assert_eq!(gap(&[(1, 9, true), (2, 4, true), (2, 7, true)]), 3);
        // One after the other waits in vain.
        assert_eq!(gap(&[(1, 4, false), (3, 7, false), (6, 9, true)]), 8);
        assert_eq!(gap(&[(1, 4, false), (5, 9, true)]), 4);
        assert_eq!(gap(&[(1, 9, false)]), 8);
    }

    fn json(event: &Event) -> String {
        serde_json::to_string(event).unwrap()
    }

    #[test]
    fn what_is_right_passes() {
        use Mode::{Exclusive, Permit, Shared};
        for right in [
            &[(Exclusive, 1, 0, 2), (Exclusive, 2, 2, 4)][..],
            &[(Shared, 2, 0, 5), (Shared, 1, 1, 4), (Exclusive, 3, 5, 6)],
            &[(Permit { of: 2 }, 1, 0, 5), (Permit { of: 2 }, 2, 1, 4)],
            // Granted together, noticed one after the other.
            &[(Shared, 2, 0, 1), (Shared, 1, 1, 4)],
            // Cut short by a kill: nobody knows until when it went on.
            &[(Exclusive, 1, 0, 0), (Exclusive, 2, 2, 4)],
        ] {
            assert_eq!(history(right).violations(), [], "{right:?}");
            assert_eq!(history(right).visits(), right.len());
        }
    }

    #[test]
    fn what_is_wrong_is_found() {
        use Mode::{Exclusive, Permit, Shared};
        for (wrong, overlap) in [
            (&[(Exclusive, 1, 0, 3), (Exclusive, 2, 2, 4)][..], true),
            (&[(Shared, 1, 0, 5), (Exclusive, 2, 4, 6)], true),
            (&[(Exclusive, 1, 0, 9), (Exclusive, 2, 2, 3)], true),
            (
                &[(Permit { of: 1 }, 1, 0, 5), (Permit { of: 1 }, 2, 1, 4)],
                true,
            ),
            (&[(Exclusive, 2, 0, 2), (Exclusive, 1, 2, 4)], false),
            (&[(Exclusive, 1, 0, 2), (Exclusive, 1, 2, 4)], false),
            (&[(Exclusive, 2, 0, 0), (Exclusive, 1, 2, 4)], false),
            (&[(Shared, 1, 0, 5), (Shared, 1, 1, 4)], false),
            (&[(Shared, 2, 0, 1), (Exclusive, 1, 1, 4)], false),
        ] {
            let found = history(wrong).violations();
            assert_eq!(found.len(), 1, "{wrong:?}");
            let is_overlap = matches!(found[0], Violation::Overlap { .. });
            assert_eq!(is_overlap, overlap, "{wrong:?}");
        }
    }
}
