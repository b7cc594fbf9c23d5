//! What the killed have told, put together.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::conformance::child::Report;
use crate::conformance::history::{Event, History, nanos};

/// All that a process said, and when it was told to die: it lived at least until then.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) reports: Vec<Report>,
    pub(super) killed: Moment,
}

#[derive(Debug, Default)]
pub(super) struct Record {
    events: Vec<Event>,
    waits: BTreeMap<String, Vec<Wait>>,
    /// By visit.
    valid_until: HashMap<String, Moment>,
    disturbances: Vec<(String, Moment)>,
    kills: usize,
    killed_inside: usize,
}

#[derive(Debug)]
struct Wait {
    from: Moment,
    until: Moment,
    obtained: bool,
}

impl Record {
    pub(super) fn add(&mut self, life: Life) {
        let mut waiting = None;
        let mut valid_until = life.killed;
        let mut inside = None;
        for report in life.reports {
            match report {
                // Whoever obtained a lock too late asks again, and has waited all along.
                Report::Asks { lock, at } => {
                    waiting.get_or_insert((lock, Moment::from_origin(at)));
                }
                Report::Held {
                    valid_until: until, ..
                } => {
                    valid_until = Moment::from_origin(until);
                }
                Report::Disturbed { by, at } => {
                    self.disturbances.push((by, Moment::from_origin(at)));
                }
                Report::Happened(event) => {
                    inside = match &event {
                        Event::Enter { visit, at, .. } => {
                            let at = Moment::from_origin(Duration::from_nanos(*at));
                            self.waited(waiting.take(), at, true);
                            self.valid_until.insert(visit.clone(), valid_until);
                            Some(visit.clone())
                        }
                        Event::Leave { .. } => None,
                    };
                    self.events.push(event);
                }
                other => panic!("{other:?}"),
            }
        }
        self.kills += 1;
        self.waited(waiting, life.killed, false);
        if let Some(visit) = inside {
            self.killed_inside += 1;
            // The dead do nothing any more, and the late could not rely on it.
            let at = nanos(life.killed.min(valid_until));
            self.events.push(Event::Leave { visit, at });
        }
    }

    fn waited(&mut self, from: Option<(String, Moment)>, until: Moment, obtained: bool) {
        let Some((lock, from)) = from else { return };
        self.waits.entry(lock).or_default().push(Wait {
            from: from.min(until),
            until,
            obtained,
        });
    }

    pub(super) fn kills(&self) -> usize {
        self.kills
    }

    pub(super) fn killed_inside(&self) -> usize {
        self.killed_inside
    }

    fn longest_gap(&self) -> Duration {
        let gaps = self.waits.values().map(|waits| longest_gap(waits));
        gaps.max().unwrap_or_default()
    }

    /// Panics unless there was no overlap, tokens rose, and no lock stood still for longer than this
    /// while someone waited.
    pub(super) fn check(self, longest: Duration) {
        let gap = self.longest_gap();
        for (by, at) in &self.disturbances {
            // One that was kept from running until its lease was over may still write.
            let excused = self.valid_until.get(by).is_some_and(|until| until < at);
            assert!(excused, "{by} left its mark beside another");
        }
        let history = History::of(self.events);
        let wrong = history.violations();
        assert!(
            wrong.is_empty(),
            "{} violations, first: {}",
            wrong.len(),
            wrong[0]
        );
        assert!(gap < longest, "a lock stood still for {gap:?}");
        assert!(self.killed_inside > 0, "nobody was killed inside");
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.events.iter().filter_map(|event| match event {
            Event::Enter { token, .. } => Some(*token),
            Event::Leave { .. } => None,
        });
        let (rounds, tokens) = (tokens.clone().count(), (tokens.clone().min(), tokens.max()));
        write!(
            f,
            "{rounds} rounds, {} kills ({} inside), longest gap {:?}, tokens {} to {}",
            self.kills,
            self.killed_inside,
            self.longest_gap(),
            tokens.0.unwrap_or_default(),
            tokens.1.unwrap_or_default(),
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Comes,
    Enters,
    Goes,
}

/// How long at most someone waited for a lock while nobody entered.
fn longest_gap(waits: &[Wait]) -> Duration {
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
    let mut since = Moment::from_origin(Duration::ZERO);
    let mut waiting = 0;
    let mut longest = Duration::ZERO;
    for (at, step) in steps {
        if waiting > 0 {
            longest = longest.max(at.since(since));
        }
        match step {
            Step::Comes => {
                if waiting == 0 {
                    since = at;
                }
                waiting += 1;
            }
            Step::Enters => {
                waiting -= 1;
                since = at;
            }
            Step::Goes => waiting -= 1,
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(count))
    }

    fn gap(waits: &[(u64, u64, bool)]) -> u64 {
        let waits: Vec<_> = waits
            .iter()
            .map(|(from, until, obtained)| Wait {
                from: second(*from),
                until: second(*until),
                obtained: *obtained,
            })
            .collect();
        longest_gap(&waits).as_secs()
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

    fn entered(visit: &str, token: u64, at: u64, valid_until: u64) -> [Report; 3] {
        [
            Report::Asks {
                lock: "x".to_owned(),
                at: second(at).since_origin(),
            },
            Report::Held {
                token,
                valid_until: second(valid_until).since_origin(),
            },
            Report::Happened(Event::Enter {
                visit: visit.to_owned(),
                lock: "x".to_owned(),
                mode: crate::claim::Mode::Exclusive,
                token,
                at: nanos(second(at)),
            }),
        ]
    }

    fn recorded(lives: impl IntoIterator<Item = (Vec<Report>, u64)>) -> Record {
        let mut record = Record::default();
        for (reports, killed) in lives {
            let killed = second(killed);
            record.add(Life { reports, killed });
        }
        record
    }

    fn two(killed: u64, valid_until: u64, next: u64) -> Record {
        recorded([
            (entered("a", 1, 1, valid_until).into(), killed),
            (entered("b", 2, next, 99).into(), 99),
        ])
    }

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn the_dead_and_the_late_are_not_inside() {
        two(3, 9, 3).check(LONG);
        two(9, 3, 3).check(LONG);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn the_living_are_inside() {
        two(9, 9, 3).check(LONG);
    }

    #[test]
    #[should_panic(expected = "stood still")]
    fn a_lock_that_stands_still_is_noticed() {
        let mut waits: Vec<_> = entered("a", 1, 1, 2).into();
        waits.push(Report::Happened(Event::Leave {
            visit: "a".to_owned(),
            at: nanos(second(2)),
        }));
        waits.push(Report::Asks {
            lock: "x".to_owned(),
            at: second(2).since_origin(),
        });
        recorded([(waits, 9)]).check(Duration::from_secs(5));
    }

    fn disturbed_at(at: u64) -> Record {
        let mut disturbed: Vec<_> = entered("b", 2, 5, 9).into();
        disturbed.push(Report::Disturbed {
            by: "a".to_owned(),
            at: second(at).since_origin(),
        });
        recorded([(entered("a", 1, 1, 7).into(), 2), (disturbed, 9)])
    }

    #[test]
    fn a_mark_left_too_late_is_excused() {
        disturbed_at(8).check(LONG);
    }

    #[test]
    #[should_panic(expected = "left its mark")]
    fn a_mark_left_beside_another_is_noticed() {
        disturbed_at(6).check(LONG);
    }
}
