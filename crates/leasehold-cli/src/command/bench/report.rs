//! The figures: a table for people, or JSON.

use console::Style;
use serde::Serialize;

use super::counter::Counter;
use super::cycle::Cycle;
use super::handoff::{Handoff, Handoffs};
use super::parallel::Parallel;
use super::processor::Processor;
use super::steal::Measured;
use super::waiters::WaiterKind;
use crate::exit::Outcome;
use crate::output::{self, table::Table};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) engine: String,
    /// Of each measurement, and of its baseline.
    pub(super) seconds: u32,
    pub(super) cycle: Measured<Cycle>,
    pub(super) parallel: Measured<Parallel>,
    /// For stores whose servers tell.
    pub(super) processor: Option<Measured<Processor>>,
    /// Between processes; not for an engine within the process.
    pub(super) handoff: Option<Measured<Handoff>>,
    /// Between threads of one process.
    pub(super) handoff_in_process: Measured<Handoff>,
    /// For engines that keep guarded records.
    pub(super) counter: Option<Measured<Counter>>,
}

/// Formats one figure of the handoffs.
type Format = fn(&Handoffs) -> String;

impl Report {
    pub(super) fn print(&self, json: bool) -> Outcome<()> {
        match json {
            true => output::json_line(self),
            false => output::line(&self.describe()),
        }
    }

    fn describe(&self) -> String {
        let mut lines = vec![format!(
            "{}, {} s per measurement",
            self.engine, self.seconds
        )];
        let (cycle, parallel) = (&self.cycle, &self.parallel);
        lines.push(format!(
            "baseline of cycle: {}",
            or_dash(cycle.figures.baseline_is)
        ));
        lines.push(format!(
            "baseline of handoffs: {}",
            or_dash(self.handoff_in_process.figures.baseline_is)
        ));
        lines.push(String::new());
        let mut table = Table::default();
        let headers = ["", "ours", "baseline", "ratio", "steal"];
        table.row(headers.map(|header| (header.to_owned(), Style::new().bold())));
        let mut row = |what: &str, ours: String, baseline: Option<String>, ratio, steal| {
            let ratio: Option<f64> = ratio;
            let cells = [
                what.to_owned(),
                ours,
                or_dash(baseline),
                or_dash(ratio),
                steal,
            ];
            table.row(cells.map(|cell| (cell, Style::new())));
        };
        let time = |us: f64| format!("{us:.1} µs");
        let baseline = cycle.figures.baseline;
        row(
            "cycle p50",
            time(cycle.figures.ours.p50_us),
            baseline.map(|it| time(it.p50_us)),
            cycle.figures.ratio,
            cycle.steal(),
        );
        row(
            "cycle p99",
            time(cycle.figures.ours.p99_us),
            baseline.map(|it| time(it.p99_us)),
            None,
            cycle.steal(),
        );
        row(
            &format!("{} tasks, cycles/s", parallel.figures.tasks),
            format!("{:.0}", parallel.figures.ours_per_s),
            parallel
                .figures
                .baseline_per_s
                .map(|per_s| format!("{per_s:.0}")),
            parallel.figures.ratio,
            parallel.steal(),
        );
        if let Some(processor) = &self.processor {
            let figures = &processor.figures;
            row(
                "server's processor/cycle",
                time(figures.ours_us),
                Some(time(figures.baseline_us)),
                figures.ratio,
                processor.steal(),
            );
        }
        for measured in self.handoff.iter().chain([&self.handoff_in_process]) {
            let handoff = &measured.figures;
            let who = match handoff.waiters_are {
                WaiterKind::Processes => format!("{} processes", handoff.waiters),
                WaiterKind::Threads => format!("{} threads of one process", handoff.waiters),
            };
            let (ours, baseline) = (&handoff.ours, handoff.baseline.as_ref());
            let mut both = |what: &str, format: Format, ratio| {
                let steal = measured.steal();
                row(what, format(ours), baseline.map(format), ratio, steal);
            };
            let per_s: Format = |h| format!("{:.0}", h.per_s);
            let name = format!("handoffs/s, {who}");
            both(&name, per_s, handoff.ratio);
            let rows: [(&str, Format); 5] = [
                ("  gap p50", |h| format!("{:.1} µs", h.gap.p50_us)),
                ("  gap p99", |h| format!("{:.1} µs", h.gap.p99_us)),
                ("  most/fewest", |h| format!("{}/{}", h.most, h.fewest)),
                ("  commands/handoff", |h| or_dash(h.commands_per_handoff)),
                ("  overlaps", |h| h.overlaps.to_string()),
            ];
            for (what, format) in rows {
                both(what, format, None);
            }
        }
        lines.extend(table.lines(usize::MAX));
        if let Some(counter) = &self.counter {
            let figures = &counter.figures;
            lines.push(String::new());
            lines.push(format!(
                "one counter, {} writers: {:.0} optimistic updates/s with {} attempts each, {:.0}/s under a lock, {} lost, steal {}",
                figures.writers,
                figures.optimistic_per_s,
                figures.tries_per_update,
                figures.locked_per_s,
                figures.lost,
                counter.steal(),
            ));
        }
        lines.join("\n")
    }
}

impl<T> Measured<T> {
    /// The steal time, and how often the measurement was repeated because of it.
    fn steal(&self) -> String {
        let share = self.steal.map(|share| format!("{:.0} %", share * 100.0));
        match self.runs {
            1 => or_dash(share),
            runs => format!("{} (best of {runs} runs)", or_dash(share)),
        }
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}
