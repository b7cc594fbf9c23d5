//! What a run has shown, as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::check::{Findings, Kind, Updates, Violation};
use super::faults::Fault;
use super::record::{Did, Record};
use crate::args::TortureArgs;
use crate::exit::Outcome;
use crate::output::{self, age::age, lock::millis};

/// How many events of a violation are shown.
const EVENTS: usize = 12;

/// How much before and after a violation belongs to it, in nanoseconds.
const AROUND: u64 = 50_000_000;

#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) engine: String,
    pub(super) seed: u64,
    pub(super) interrupted: bool,
    pub(super) args: &'a TortureArgs,
    /// Why connections could not be attacked.
    pub(super) not_available: Option<String>,
    pub(super) record: &'a Record,
    pub(super) findings: &'a Findings,
}

/// Something that happened, for people to read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: Duration,
    pub(super) who: String,
    pub(super) what: String,
}

/// Whether something belongs to the story of such a violation.
fn matters(kind: Kind, did: &Did) -> bool {
    match did {
        Did::Enter { .. } | Did::Leave { .. } | Did::Gone { .. } => true,
        Did::Wrote { .. } => kind == Kind::LostUpdate,
        Did::Ask | Did::GiveUp { .. } => {
            matches!(
                kind,
                Kind::OutOfOrder | Kind::StoodStill | Kind::NothingShown
            )
        }
        Did::Write { .. } => false,
    }
}

impl Report<'_> {
    pub(super) fn lasted(&self) -> Duration {
        Duration::from_nanos(self.record.ended.saturating_sub(self.record.began))
    }

    /// How often each fault struck.
    pub(super) fn faults(&self) -> BTreeMap<Fault, usize> {
        let mut counts = BTreeMap::new();
        for struck in &self.record.faults {
            *counts.entry(struck.fault).or_default() += 1;
        }
        counts
    }

    /// The few events that matter, in their order.
    pub(super) fn timeline(&self, violation: &Violation) -> Vec<Entry> {
        let (from, until) = (
            violation.from.saturating_sub(AROUND),
            violation.until + AROUND,
        );
        let since_start = |at: u64| Duration::from_nanos(at.saturating_sub(self.record.began));
        let lines = self.record.lines.iter().filter(|(client, line)| {
            violation.clients.contains(client)
                && (from..=until).contains(&line.at)
                && matters(violation.kind, &line.did)
        });
        let mut entries: Vec<_> = lines
            .map(|(client, line)| (line.at, format!("client {client}"), line.did.to_string()))
            .collect();
        for struck in &self.record.faults {
            let takes_part = struck
                .client
                .is_none_or(|it| violation.clients.contains(&it));
            if !takes_part || struck.from > until || struck.until < from {
                continue;
            }
            let who = struck
                .client
                .map_or_else(|| "server".to_owned(), |it| format!("client {it}"));
            let lasts = Duration::from_nanos(struck.until - struck.from);
            let what = match lasts.is_zero() {
                true => struck.fault.describe().to_owned(),
                false => format!("{} for {}", struck.fault.describe(), age(lasts)),
            };
            entries.push((struck.from, who, what));
        }
        entries.sort();
        let all = entries.len();
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|(at, who, what)| Entry {
                at: since_start(at),
                who,
                what,
            })
            .collect();
        if all > EVENTS {
            // The beginning and the end tell most.
            let left_out = all - EVENTS;
            let at = entries[EVENTS / 2].at;
            let what = format!("… {left_out} more events");
            let who = String::new();
            entries.splice(EVENTS / 2..EVENTS / 2 + left_out, [Entry { at, who, what }]);
        }
        entries
    }

    /// The first violation of each kind: they are shown in full.
    pub(super) fn shown(&self) -> Vec<&Violation> {
        let mut shown: Vec<&Violation> = Vec::new();
        for violation in &self.findings.violations {
            if shown.iter().all(|other| other.kind != violation.kind) {
                shown.push(violation);
            }
        }
        shown
    }

    /// How many are not shown.
    pub(super) fn not_shown(&self) -> usize {
        self.findings.violations.len() - self.shown().len()
    }

    pub(super) fn verdict(&self) -> String {
        match self.findings.violations.len() {
            0 => "nothing was violated".to_owned(),
            1 => "1 violation".to_owned(),
            n => format!("{n} violations"),
        }
    }

    /// What the report begins with: names and values.
    pub(super) fn summary(&self) -> Vec<(&'static str, String)> {
        let faults: Vec<_> = self
            .faults()
            .iter()
            .map(|(fault, count)| format!("{count} {}", fault.name()))
            .collect();
        let Updates {
            acknowledged, lost, ..
        } = &self.findings.unguarded;
        let guarded = &self.findings.guarded;
        let early = if self.interrupted {
            ", interrupted"
        } else {
            ""
        };
        let mut summary = vec![
            ("engine", self.engine.clone()),
            (
                "run",
                format!(
                    "{}{early}, {} clients, TTL {}, --seed {}",
                    age(self.lasted()),
                    self.args.clients,
                    age(self.args.ttl),
                    self.seed
                ),
            ),
            ("holds", self.findings.holds.len().to_string()),
            ("faults", faults.join(", ")),
        ];
        if let Some(why) = &self.not_available {
            summary.push(("not available", format!("cut, delay: {why}")));
        }
        summary.extend([
            (
                "without token",
                format!("{acknowledged} updates, {} lost", lost.len()),
            ),
            (
                "with token",
                format!(
                    "{} updates, {} lost; {} stale writes refused",
                    guarded.acknowledged,
                    guarded.lost.len(),
                    guarded.refused
                ),
            ),
            ("longest gap", age(self.findings.longest_gap)),
            ("result", self.verdict()),
        ]);
        summary
    }

    pub(super) fn print(&self, json: bool) -> Outcome<()> {
        if json {
            return output::json_line(&self.as_json());
        }
        let mut lines: Vec<_> = self
            .summary()
            .into_iter()
            .map(|(name, value)| format!("{name:14} {value}"))
            .collect();
        for violation in self.shown() {
            lines.push(format!("\nviolation: {}", violation.what));
            for Entry { at, who, what } in self.timeline(violation) {
                lines.push(format!("  {:9.3} s  {who:10} {what}", at.as_secs_f64()));
            }
        }
        if self.not_shown() > 0 {
            lines.push(format!("\n… and {} more of these kinds", self.not_shown()));
        }
        output::line(&lines.join("\n"))
    }

    fn as_json(&self) -> Value {
        let updates = |updates: &Updates| {
            json!({
                "acknowledged": updates.acknowledged,
                "lost": updates.lost.len(),
                "refused": updates.refused,
                "late": updates.late,
            })
        };
        let violations = self.shown().into_iter().map(|violation| {
            let timeline = self.timeline(violation).into_iter().map(
                |entry| json!({"at_ms": millis(entry.at), "who": entry.who, "what": entry.what}),
            );
            json!({
                "kind": violation.kind.name(),
                "what": violation.what,
                "timeline": timeline.collect::<Vec<_>>(),
            })
        });
        let faults = self.faults();
        let faults = faults
            .iter()
            .map(|(fault, count)| (fault.name().to_owned(), (*count).into()));
        json!({
            "engine": self.engine,
            "ok": self.findings.violations.is_empty(),
            "seed": self.seed,
            "ms": millis(self.lasted()),
            "interrupted": self.interrupted,
            "clients": self.args.clients,
            "ttl_ms": millis(self.args.ttl),
            "holds": self.findings.holds.len(),
            "faults": Value::Object(faults.collect()),
            "not_available": self.not_available,
            "without_token": updates(&self.findings.unguarded),
            "with_token": updates(&self.findings.guarded),
            "longest_gap_ms": millis(self.findings.longest_gap),
            "violation_count": self.findings.violations.len(),
            "violations": violations.collect::<Vec<_>>(),
        })
    }
}
