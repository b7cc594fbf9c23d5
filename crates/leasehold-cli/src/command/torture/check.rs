//! What must hold in every run, as checks of the record. They know nothing of processes and engines.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use leasehold::Mode;
use leasehold::torture::history::{Event, History, Violation as InHistory, Visit, gaps};

use super::record::{Did, Hold, Record, Set, Waited, Written, moment, nanos, since_origin};
use crate::output::age::age;

/// How much later than another a client must have asked to be surely behind it in the queue.
const SURELY_LATER: Duration = Duration::from_millis(1500);

/// How long a lock may stand still for no reason that is known here: connections are made anew, the machine is loaded.
const LOADED: Duration = Duration::from_secs(3);

/// What the engine promises.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) ttl: Duration,
    /// Whether the lock is granted in the order of arrival.
    pub(super) fifo: bool,
    /// For how long at most the claim of a dead client stands.
    pub(super) claim_ends: Duration,
}

/// The last update in each set, when all clients had ended. 0 if there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Finals {
    pub(super) unguarded: u64,
    pub(super) guarded: u64,
}

/// Something that must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) kind: Kind,
    pub(super) what: String,
    /// Who took part.
    pub(super) clients: Vec<u32>,
    /// When.
    pub(super) from: u64,
    pub(super) until: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Overlap,
    TokenFell,
    Gone,
    LostUpdate,
    OutOfOrder,
    StoodStill,
    NothingShown,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Kind::Overlap => "overlap",
            Kind::TokenFell => "token_fell",
            Kind::Gone => "lock_gone",
            Kind::LostUpdate => "lost_update",
            Kind::OutOfOrder => "out_of_order",
            Kind::StoodStill => "stood_still",
            Kind::NothingShown => "nothing_shown",
        }
    }
}

/// What became of the updates of one set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Updates {
    pub(super) acknowledged: usize,
    pub(super) lost: Vec<u64>,
    pub(super) refused: usize,
    pub(super) late: usize,
}

/// The result of all checks.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) violations: Vec<Violation>,
    pub(super) unguarded: Updates,
    pub(super) guarded: Updates,
    pub(super) longest_gap: Duration,
    pub(super) holds: Vec<Hold>,
}

pub(super) fn check(record: &Record, rules: Rules, finals: Finals) -> Findings {
    let holds = record.holds();
    let waits = record.waits();
    let unguarded = Chain::of(record, Set::Unguarded);
    let guarded = Chain::of(record, Set::Guarded);
    let (gap_violations, longest_gap) = standing_still(record, &waits, rules);
    let mut violations = in_history(&holds);
    violations.extend(gone(record, &holds));
    violations.extend(guarded.lost_updates(finals.guarded));
    if rules.fifo {
        violations.extend(out_of_order(record, &waits));
    }
    violations.extend(gap_violations);
    if holds.is_empty() {
        violations.push(Violation {
            kind: Kind::NothingShown,
            what: "no client ever held the lock".to_owned(),
            clients: record.ends.keys().copied().collect(),
            from: record.began,
            until: record.ended,
        });
    }
    violations.sort_by_key(|violation| violation.from);
    Findings {
        violations,
        unguarded: unguarded.updates(finals.unguarded),
        guarded: guarded.updates(finals.guarded),
        longest_gap,
        holds,
    }
}

/// Overlaps and falling tokens.
fn in_history(holds: &[Hold]) -> Vec<Violation> {
    let events = holds.iter().enumerate().flat_map(|(nth, hold)| {
        let visit = nth.to_string();
        [
            Event::Enter {
                visit: visit.clone(),
                lock: String::new(),
                mode: Mode::Exclusive,
                token: hold.token,
                at: hold.entered,
            },
            Event::Leave {
                visit,
                at: hold.left,
            },
        ]
    });
    let client_of = |visit: &Visit| {
        let at = since_origin(visit.entered);
        let same = |hold: &&Hold| (hold.token, hold.entered) == (visit.token, at);
        holds.iter().find(same).map_or(0, |hold| hold.client)
    };
    let violations = History::of(events).violations().into_iter();
    violations
        .map(|violation| match violation {
            InHistory::Overlap {
                entered, inside, ..
            } => {
                let newcomer = client_of(&entered);
                let others: Vec<_> = inside.iter().map(client_of).collect();
                let names: Vec<_> = others.iter().map(|who| format!("client {who}")).collect();
                let from = inside.iter().map(|visit| visit.entered).min();
                Violation {
                    kind: Kind::Overlap,
                    what: format!(
                        "two held the lock at once: client {newcomer} entered while {} was inside",
                        names.join(", ")
                    ),
                    clients: others.into_iter().chain([newcomer]).collect(),
                    from: since_origin(from.unwrap_or(entered.entered)),
                    until: since_origin(entered.left.unwrap_or(entered.entered)),
                }
            }
            InHistory::TokenFell { earlier, later, .. } => Violation {
                kind: Kind::TokenFell,
                what: format!(
                    "a later holder got no greater token: first {}, then {}",
                    earlier.token, later.token
                ),
                clients: vec![client_of(&earlier), client_of(&later)],
                from: since_origin(earlier.entered),
                until: since_origin(later.entered),
            },
        })
        .collect()
}

/// Locks that the engine lost while they could be relied on.
fn gone<'a>(record: &'a Record, holds: &'a [Hold]) -> impl Iterator<Item = Violation> + 'a {
    record.lines.iter().filter_map(|(client, line)| {
        let Did::Gone { valid_until } = line.did else {
            return None;
        };
        let mut before = holds
            .iter()
            .rev()
            .filter(|hold| hold.client == *client && hold.entered <= line.at);
        let early = moment(valid_until).since(moment(line.at));
        Some(Violation {
            kind: Kind::Gone,
            what: format!(
                "the engine lost the lock of client {client}, which could be relied on for another {}",
                age(early)
            ),
            clients: vec![*client],
            from: before.next().map_or(line.at, |hold| hold.entered),
            until: line.at,
        })
    })
}

/// The updates of one set. Each names the update that its client had read, so the last one of all stands for the whole set.
#[derive(Debug)]
struct Chain {
    set: Set,
    /// Each update with whose it is, when it was written, and the one before it.
    written: HashMap<u64, (u32, u64, u64)>,
    acknowledged: Vec<u64>,
    refused: usize,
    late: usize,
}

impl Chain {
    fn of(record: &Record, set: Set) -> Self {
        let mut chain = Self {
            set,
            written: HashMap::new(),
            acknowledged: Vec::new(),
            refused: 0,
            late: 0,
        };
        for (client, line) in &record.lines {
            match line.did {
                Did::Write {
                    set: of,
                    update,
                    previous,
                } if of == set => {
                    chain.written.insert(update, (*client, line.at, previous));
                }
                Did::Wrote {
                    set: of,
                    update,
                    written,
                } if of == set => match written {
                    Written::Acknowledged => chain.acknowledged.push(update),
                    Written::Refused => chain.refused += 1,
                    Written::Late => chain.late += 1,
                    Written::Failed => {}
                },
                _ => {}
            }
        }
        chain
    }

    /// The updates that are in the set, from the last to the first.
    fn kept(&self, last: u64) -> Vec<u64> {
        let mut kept = Vec::new();
        let mut next = last;
        while let Some((_, _, previous)) = self.written.get(&next) {
            kept.push(next);
            next = *previous;
        }
        kept
    }

    fn updates(&self, last: u64) -> Updates {
        let kept: HashSet<_> = self.kept(last).into_iter().collect();
        let lost = self.acknowledged.iter().copied();
        Updates {
            acknowledged: self.acknowledged.len(),
            lost: lost.filter(|update| !kept.contains(update)).collect(),
            refused: self.refused,
            late: self.late,
        }
    }

    /// One violation for each update that overwrote others.
    fn lost_updates(&self, last: u64) -> Vec<Violation> {
        let kept = self.kept(last);
        let next_of: HashMap<_, _> = kept
            .iter()
            .map(|update| (self.written[update].2, *update))
            .collect();
        let mut by_overwriter: BTreeMap<Option<u64>, Vec<u64>> = BTreeMap::new();
        for update in self.updates(last).lost {
            // Back to what both had read, the one that is lost and the one that overwrote it.
            let mut before = update;
            while let (None, Some(written)) = (next_of.get(&before), self.written.get(&before)) {
                before = written.2;
            }
            let over = next_of.get(&before).copied();
            by_overwriter.entry(over).or_default().push(update);
        }
        let violations = by_overwriter.into_iter();
        violations
            .filter_map(|(over, lost)| self.lost_update(over, &lost))
            .collect()
    }

    /// The last of those that were lost is nearest to what happened.
    fn lost_update(&self, over: Option<u64>, lost: &[u64]) -> Option<Violation> {
        let (update, (client, at, _)) = lost
            .iter()
            .filter_map(|update| Some((*update, *self.written.get(update)?)))
            .max_by_key(|(_, (_, at, _))| *at)?;
        let over = over.and_then(|over| self.written.get(&over));
        let others = match lost.len() - 1 {
            0 => String::new(),
            n => format!(", with {n} before it"),
        };
        let by = over.map_or_else(
            || "the set is empty".to_owned(),
            |(by, ..)| format!("client {by} overwrote it"),
        );
        let over_at = over.map_or(at, |(_, over_at, _)| *over_at);
        let mut clients = vec![client];
        clients.extend(over.map(|(by, ..)| *by).filter(|by| *by != client));
        Some(Violation {
            kind: Kind::LostUpdate,
            what: format!(
                "update {update:x} of client {client}, written {}, was acknowledged and is lost{others}: {by}",
                self.set
            ),
            clients,
            from: at.min(over_at),
            until: at.max(over_at),
        })
    }
}

/// Clients that came in before one that surely stood before them in the queue.
fn out_of_order(record: &Record, waits: &[Waited]) -> Vec<Violation> {
    let overtaken = |first: &Waited| {
        let surely = nanos(SURELY_LATER + record.stalled(first.from, first.until));
        let later = waits
            .iter()
            .filter(move |other| other.obtained && other.client != first.client)
            .find(|other| other.from > first.from + surely && other.until < first.until)?;
        Some((*first, *later))
    };
    waits
        .iter()
        .filter(|wait| wait.until - wait.from > nanos(SURELY_LATER))
        .filter(|wait| !record.is_touched(wait.client, wait.from, wait.until))
        .filter_map(overtaken)
        .map(|(first, later)| Violation {
            kind: Kind::OutOfOrder,
            what: format!(
                "client {} asked {} later than client {}, and got the lock before it",
                later.client,
                age(moment(later.from).since(moment(first.from))),
                first.client
            ),
            clients: vec![first.client, later.client],
            from: first.from,
            until: later.until,
        })
        .collect()
}

/// Times in which somebody waited and nobody came in, though all claims of the dead and of the stopped had ended; and the longest gap.
fn standing_still(record: &Record, waits: &[Waited], rules: Rules) -> (Vec<Violation>, Duration) {
    let sound = waits.iter().filter_map(|wait| {
        match record.is_touched(wait.client, wait.from, wait.until) {
            false => Some(wait.as_wait()),
            // Nobody is to blame for its wait, but it did come in.
            true if wait.obtained => Some(
                Waited {
                    from: wait.until,
                    ..*wait
                }
                .as_wait(),
            ),
            true => None,
        }
    });
    let sound: Vec<_> = sound.collect();
    let mut longest = Duration::ZERO;
    let mut found = Vec::new();
    for gap in gaps(&sound) {
        let (from, until) = (since_origin(gap.from), since_origin(gap.until));
        let length = gap.until.since(gap.from);
        longest = longest.max(length);
        let struck = record.touched(from.saturating_sub(nanos(rules.claim_ends)), until);
        let server = record.faults.iter().filter(|struck| {
            struck.client.is_none() && struck.from <= until && struck.until >= from
        });
        let server: Duration = server
            .map(|struck| Duration::from_nanos(struck.until - struck.from))
            .sum();
        let allowed = rules.ttl
            + LOADED
            + server
            + record.stalled(from, until)
            + rules.claim_ends * u32::try_from(struck).unwrap_or(u32::MAX);
        if length > allowed {
            let waiting = waits
                .iter()
                .filter(|wait| wait.from < until && wait.until > from);
            let mut clients: Vec<_> = waiting.map(|wait| wait.client).collect();
            clients.sort_unstable();
            clients.dedup();
            found.push(Violation {
                kind: Kind::StoodStill,
                what: format!(
                    "clients waited, but nobody got the lock for {}; at most {} would be right",
                    age(length),
                    age(allowed)
                ),
                clients,
                from,
                until,
            });
        }
    }
    (found, longest)
}

#[cfg(test)]
mod tests {
    use super::super::faults::Fault;
    use super::super::record::{Line, Struck};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    const RULES: Rules = Rules {
        ttl: Duration::from_secs(1),
        fifo: true,
        claim_ends: Duration::from_secs(2),
    };

    /// A client that asks, enters, writes and leaves, in tenths of a second.
    fn hold(client: u32, token: u64, asks: u64, enters: u64, leaves: u64) -> Vec<(u32, Line)> {
        let valid_until = (enters + 10) * SECOND / 10;
        let line = |tenths: u64, did| {
            let at = tenths * SECOND / 10;
            (client, Line { at, did })
        };
        vec![
            line(asks, Did::Ask),
            line(enters, Did::Enter { token, valid_until }),
            line(
                leaves,
                Did::Leave {
                    until: leaves * SECOND / 10,
                },
            ),
        ]
    }

    fn update(client: u32, tenths: u64, update: u64, previous: u64) -> Vec<(u32, Line)> {
        let at = tenths * SECOND / 10;
        let set = Set::Guarded;
        let did = [
            Did::Write {
                set,
                update,
                previous,
            },
            Did::Wrote {
                set,
                update,
                written: Written::Acknowledged,
            },
        ];
        did.map(|did| (client, Line { at, did })).into()
    }

    fn record(lines: impl IntoIterator<Item = Vec<(u32, Line)>>) -> Record {
        Record {
            ended: 100 * SECOND,
            lines: lines.into_iter().flatten().collect(),
            ..Record::default()
        }
    }

    fn struck(fault: Fault, client: u32, from: u64, until: u64) -> Struck {
        Struck {
            fault,
            client: Some(client),
            from: from * SECOND / 10,
            until: until * SECOND / 10,
        }
    }

    fn kinds(record: &Record, guarded: u64) -> Vec<Kind> {
        let finals = Finals {
            unguarded: 0,
            guarded,
        };
        let found = check(record, RULES, finals).violations;
        found.iter().map(|violation| violation.kind).collect()
    }

    #[test]
    fn what_is_right_passes() {
        let right = record([
            hold(1, 1, 0, 1, 3),
            hold(2, 2, 0, 3, 5),
            update(1, 2, 10, 0),
            update(2, 4, 20, 10),
        ]);
        assert_eq!(kinds(&right, 20), []);
    }

    #[test]
    fn overlap_is_found() {
        let wrong = record([hold(1, 1, 0, 1, 4), hold(2, 2, 0, 3, 5)]);
        assert_eq!(kinds(&wrong, 0), [Kind::Overlap]);
        let findings = check(&wrong, RULES, Finals::default());
        assert_eq!(findings.violations[0].clients, [1, 2]);
    }

    #[test]
    fn the_dead_and_the_late_are_not_inside() {
        // Killed inside: its hold ends there.
        let mut killed = record([hold(1, 1, 0, 1, 9)[..2].to_vec(), hold(2, 2, 0, 5, 6)]);
        killed.ends.insert(1, 4 * SECOND / 10);
        assert_eq!(kinds(&killed, 0), []);
        // Lived on: its validity ends it.
        killed.ends.insert(1, 50 * SECOND);
        assert_eq!(kinds(&killed, 0), [Kind::Overlap]);
        let late = record([hold(1, 1, 0, 1, 9)[..2].to_vec(), hold(2, 2, 0, 11, 12)]);
        assert_eq!(kinds(&late, 0), []);
    }

    #[test]
    fn falling_token_is_found() {
        let wrong = record([hold(1, 2, 0, 1, 3), hold(2, 1, 0, 3, 5)]);
        assert_eq!(kinds(&wrong, 0), [Kind::TokenFell]);
        let same = record([hold(1, 2, 0, 1, 3), hold(2, 2, 0, 3, 5)]);
        assert_eq!(kinds(&same, 0), [Kind::TokenFell]);
    }

    #[test]
    fn lost_update_is_found_with_its_overwriter() {
        let wrong = record([
            hold(1, 1, 0, 1, 3),
            hold(2, 2, 0, 3, 5),
            update(1, 1, 10, 0),
            update(2, 4, 20, 10),
            update(2, 5, 21, 20),
            update(1, 6, 11, 10),
        ]);
        assert_eq!(kinds(&wrong, 11), [Kind::LostUpdate]);
        let finals = Finals {
            unguarded: 0,
            guarded: 11,
        };
        let findings = check(&wrong, RULES, finals);
        assert_eq!(findings.guarded.lost, [20, 21]);
        let what = &findings.violations[0].what;
        assert!(
            what.contains("update 15 of client 2") && what.contains("with 1 before it"),
            "{what}"
        );
        assert!(what.contains("client 1 overwrote it"), "{what}");
        assert_eq!(kinds(&wrong, 21), [Kind::LostUpdate]);
        // All of them, if the set was emptied.
        assert_eq!(kinds(&wrong, 0), [Kind::LostUpdate]);
    }

    #[test]
    fn only_acknowledged_updates_count() {
        let mut late = record([hold(1, 1, 0, 1, 3), update(1, 1, 10, 0)]);
        for (_, line) in &mut late.lines {
            if let Did::Wrote { written, .. } = &mut line.did {
                *written = Written::Late;
            }
        }
        assert_eq!(kinds(&late, 0), []);
    }

    #[test]
    fn lock_that_the_engine_lost_is_found() {
        let mut wrong = record([hold(1, 1, 0, 1, 3)]);
        let did = Did::Gone {
            valid_until: SECOND,
        };
        wrong.lines.push((
            1,
            Line {
                at: SECOND / 5,
                did,
            },
        ));
        assert_eq!(kinds(&wrong, 0), [Kind::Gone]);
    }

    #[test]
    fn overtaking_is_found_unless_a_fault_explains_it() {
        let others = (1..30).map(|nth| hold(3, nth, nth, nth, nth + 1));
        let lines = others.chain([hold(2, 40, 20, 31, 32), hold(1, 50, 1, 33, 34)]);
        let mut wrong = record(lines);
        assert_eq!(kinds(&wrong, 0), [Kind::OutOfOrder]);
        assert_eq!(
            check(
                &wrong,
                Rules {
                    fifo: false,
                    ..RULES
                },
                Finals::default()
            )
            .violations,
            []
        );
        wrong.faults = vec![struck(Fault::Cut, 1, 5, 6)];
        assert_eq!(kinds(&wrong, 0), []);
        wrong.faults = vec![struck(Fault::Cut, 2, 5, 6)];
        assert_eq!(kinds(&wrong, 0), [Kind::OutOfOrder]);
        // Not surely behind it.
        wrong.faults.clear();
        wrong.stalls = vec![(2 * SECOND, Duration::from_secs(2))];
        assert_eq!(kinds(&wrong, 0), []);
    }

    #[test]
    fn lock_that_stands_still_is_found_unless_faults_explain_it() {
        let mut wrong = record([hold(1, 1, 0, 1, 3), hold(2, 2, 1, 60, 61)]);
        assert_eq!(kinds(&wrong, 0), [Kind::StoodStill]);
        // The claim of the first may have stood for so long.
        wrong.faults = vec![struck(Fault::Kill, 1, 2, 2)];
        assert_eq!(kinds(&wrong, 0), []);
        wrong.faults = vec![struck(Fault::Pause, 2, 2, 59)];
        assert_eq!(kinds(&wrong, 0), []);
    }

    #[test]
    fn run_in_which_nobody_entered_shows_nothing() {
        assert_eq!(kinds(&record([]), 0), [Kind::NothingShown]);
    }
}
