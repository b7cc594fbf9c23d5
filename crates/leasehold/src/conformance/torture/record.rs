//! What the killed have reported, put together.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::conformance::child::Report;
use crate::torture::history::{Event, History, Wait, gaps, nanos};

/// All that a process said, and when it was killed: it lived at least until then.
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
    overwrites: Vec<(String, Moment)>,
    kills: usize,
    killed_inside: usize,
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
                Report::Overwritten { by, at } => {
                    self.overwrites.push((by, Moment::from_origin(at)));
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
        let gaps = self.waits.values().flat_map(|waits| gaps(waits));
        let lengths = gaps.map(|gap| gap.until.since(gap.from));
        lengths.max().unwrap_or_default()
    }

    /// Panics unless there was no overlap, tokens rose, and no lock stood still for longer than this
    /// while someone waited.
    pub(super) fn check(self, longest: Duration) {
        let gap = self.longest_gap();
        for (by, at) in &self.overwrites {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Moment {
        Moment::from_origin(Duration::from_secs(count))
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

    fn overwritten_at(at: u64) -> Record {
        let mut overwritten: Vec<_> = entered("b", 2, 5, 9).into();
        overwritten.push(Report::Overwritten {
            by: "a".to_owned(),
            at: second(at).since_origin(),
        });
        recorded([(entered("a", 1, 1, 7).into(), 2), (overwritten, 9)])
    }

    #[test]
    fn a_mark_left_too_late_is_excused() {
        overwritten_at(8).check(LONG);
    }

    #[test]
    #[should_panic(expected = "left its mark")]
    fn a_mark_left_beside_another_is_noticed() {
        overwritten_at(6).check(LONG);
    }
}
