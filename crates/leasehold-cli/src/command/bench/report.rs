//! The figures: a table for people, or JSON.

use console::Style;
use serde::Serialize;

use super::counter::Counter;
use super::cycle::Cycle;
use super::handoff::{Handoff, Handoffs};
use super::parallel::Parallel;
use crate::exit::Outcome;
use crate::output::{self, table::Table};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) engine: String,
    /// Of each measure, and of its raw limit.
    pub(super) seconds: u32,
    pub(super) cycle: Cycle,
    pub(super) parallel: Parallel,
    pub(super) handoff: Handoff,
    /// For engines that keep guarded records.
    pub(super) counter: Option<Counter>,
}

impl Report {
    pub(super) fn print(&self, json: bool) -> Outcome<()> {
        match json {
            true => output::json_line(self),
            false => output::line(&self.describe()),
        }
    }

    fn describe(&self) -> String {
        let mut table = Table::default();
        let headers = ["", "ours", "raw", "ours/raw"];
        table.row(headers.map(|header| (header.to_owned(), Style::new().bold())));
        let mut row = |what: &str, ours: String, raw: Option<String>, ratio: Option<f64>| {
            let cells = [what.to_owned(), ours, or_dash(raw), or_dash(ratio)];
            table.row(cells.map(|cell| (cell, Style::new())));
        };
        let Report {
            cycle,
            parallel,
            handoff,
            ..
        } = self;
        let time = |us: f64| format!("{us:.1} µs");
        let raw = cycle.raw;
        row(
            "cycle p50",
            time(cycle.ours.p50_us),
            raw.map(|r| time(r.p50_us)),
            cycle.ratio,
        );
        row(
            "cycle p99",
            time(cycle.ours.p99_us),
            raw.map(|r| time(r.p99_us)),
            None,
        );
        row(
            &format!("{} tasks, cycles/s", parallel.tasks),
            format!("{:.0}", parallel.ours_per_s),
            parallel.raw_per_s.map(|per_s| format!("{per_s:.0}")),
            parallel.ratio,
        );
        let (ours, raw) = (&handoff.ours, handoff.raw.as_ref());
        let mut both = |what: &str, tell: fn(&Handoffs) -> String, ratio| {
            row(what, tell(ours), raw.map(tell), ratio);
        };
        both("handoffs/s", |h| format!("{:.0}", h.per_s), handoff.ratio);
        both("gap p50", |h| format!("{:.1} µs", h.gap.p50_us), None);
        both("gap p99", |h| format!("{:.1} µs", h.gap.p99_us), None);
        both("most/fewest", |h| format!("{}/{}", h.most, h.fewest), None);
        both(
            "commands/handoff",
            |h| or_dash(h.commands_per_handoff),
            None,
        );
        both("overlaps", |h| h.overlaps.to_string(), None);
        let kind = if handoff.processes {
            "processes"
        } else {
            "threads"
        };
        let mut lines = vec![
            format!("{}, {} s a measure", self.engine, self.seconds),
            format!("raw cycle: {}", or_dash(cycle.raw_is)),
            format!(
                "handoffs: {} {kind}, raw: {}",
                handoff.waiters,
                or_dash(handoff.raw_is)
            ),
            String::new(),
        ];
        lines.extend(table.lines(usize::MAX));
        if let Some(counter) = &self.counter {
            lines.push(String::new());
            lines.push(format!(
                "one counter, {} writers: {:.0} optimistic updates/s with {} tries each, {:.0}/s under a lock, {} lost",
                counter.writers,
                counter.optimistic_per_s,
                counter.tries_per_update,
                counter.locked_per_s,
                counter.lost,
            ));
        }
        lines.join("\n")
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}
