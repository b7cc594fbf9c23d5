//! The report as a page: one file, with the timeline drawn as SVG and nothing from elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::check::Violation;
use super::faults::Fault;
use super::report::{Entry, Report};

const WIDTH: f64 = 1400.0;
const ROW: f64 = 22.0;
const MARGIN: f64 = 80.0;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1500px; margin: 2em auto; padding: 0 1em; color: #1c2733; background: #fff }
table { border-collapse: collapse } td { padding: .15em 1em .15em 0; vertical-align: top } td:first-child { color: #5b6b7b }
.good { color: #17753a } .bad { color: #b3261e } svg { max-width: 100%; height: auto; border: 1px solid #d5dde5 }
svg text { font: 11px system-ui, sans-serif; fill: #5b6b7b } .hold { fill: #2f6fb3 } .pause { fill: #e3a008 } .cut { fill: #d65f5f }
.delay { fill: #e8c9a0 } .kill { stroke: #b3261e; stroke-width: 2 } .clock { stroke: #7b5ea7; stroke-width: 2 } .server { fill: #b3261e; opacity: .25 }
.violation { fill: none; stroke: #b3261e; stroke-width: 1.5 } .row { stroke: #eef2f5 }
@media (prefers-color-scheme: dark) { body { color: #e3e9ef; background: #12181f } svg { border-color: #35424f } .row { stroke: #222c36 } .hold { fill: #6aa9e9 } .good { color: #5fd08a } .bad { color: #ff8a80 } }
";

pub(super) fn page(report: &Report<'_>) -> String {
    let violations = &report.findings.violations;
    let class = if violations.is_empty() { "good" } else { "bad" };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>leasehold torture</title><style>{STYLE}</style>\n<h1>leasehold torture: <span class=\"{class}\">{}</span></h1>\n<table>\n",
        escape(&report.verdict())
    );
    for (name, value) in report.summary() {
        let _ = writeln!(page, "<tr><td>{name}<td>{}", escape(&value));
    }
    page += "</table>\n<h2>Timeline</h2>\n";
    page += "<p>A row for each client. Blue: it holds the lock. Yellow: it is stopped. Red: its connections are cut; light brown: they are slow. \
             A red line: it is killed; a violet one: its wall clock is stepped.</p>\n";
    page += &drawing(report, report.record.began, report.record.ended, None);
    for violation in report.shown() {
        page += &of_violation(report, violation);
    }
    if report.not_shown() > 0 {
        let more = report.not_shown();
        let _ = writeln!(page, "<p>… and {more} more of these kinds.</p>");
    }
    page += "</html>\n";
    page
}

fn of_violation(report: &Report<'_>, violation: &Violation) -> String {
    let mut text = format!("<h2 class=\"bad\">{}</h2>\n", escape(&violation.what));
    let around = (violation.until - violation.from) / 5 + 50_000_000;
    let from = violation
        .from
        .saturating_sub(around)
        .max(report.record.began);
    text += &drawing(report, from, violation.until + around, Some(violation));
    text += "<table>\n";
    for Entry { at, who, what } in report.timeline(violation) {
        let (who, what) = (escape(&who), escape(&what));
        let _ = writeln!(text, "<tr><td>{:.3} s<td>{who}<td>{what}", at.as_secs_f64());
    }
    text += "</table>\n";
    text
}

/// What happened between two moments; of those who took part in a violation only, if one is given.
fn drawing(report: &Report<'_>, from: u64, until: u64, of: Option<&Violation>) -> String {
    let record = report.record;
    let shown = |client: u32| of.is_none_or(|violation| violation.clients.contains(&client));
    let overlaps = |begin: u64, end: u64| begin <= until && end >= from;
    let lines = record
        .lines
        .iter()
        .filter(|(_, line)| overlaps(line.at, line.at));
    let clients = lines
        .map(|(client, _)| *client)
        .filter(|client| shown(*client));
    let mut rows: BTreeMap<u32, f64> = clients.map(|client| (client, 0.0)).collect();
    for (nth, row) in rows.values_mut().enumerate() {
        *row = nth as f64 * ROW + 4.0;
    }
    let height = rows.len() as f64 * ROW + 24.0;
    let scale = (WIDTH - MARGIN - 10.0) / (until - from).max(1) as f64;
    let x = |at: u64| MARGIN + at.clamp(from, until).saturating_sub(from) as f64 * scale;
    let seconds = |at: u64| at.saturating_sub(record.began) as f64 / 1e9;
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"timeline\">\n");
    for (client, y) in &rows {
        let middle = y + ROW / 2.0;
        let _ = writeln!(
            svg,
            "<line class=\"row\" x1=\"{MARGIN}\" x2=\"{WIDTH}\" y1=\"{middle}\" y2=\"{middle}\"/><text x=\"4\" y=\"{}\">client {client}</text>",
            middle + 4.0
        );
    }
    for struck in record
        .faults
        .iter()
        .filter(|struck| overlaps(struck.from, struck.until))
    {
        let class = struck.fault.name();
        let (left, right) = (x(struck.from), x(struck.until));
        let title = format!("{:.3} s: {}", seconds(struck.from), struck.fault.describe());
        let row = struck.client.and_then(|client| rows.get(&client));
        let (y, tall) = match (row, struck.client) {
            (Some(y), _) => (*y, ROW - 4.0),
            (None, None) => (0.0, height - 20.0),
            (None, Some(_)) => continue,
        };
        let _ = match struck.fault {
            Fault::Kill | Fault::Clock => writeln!(
                svg,
                "<line class=\"{class}\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"{y}\" y2=\"{}\"><title>{title}</title></line>",
                y + tall
            ),
            _ => writeln!(svg, "{}", rectangle(class, left, right, y, tall, &title)),
        };
    }
    for hold in &report.findings.holds {
        if let (Some(y), true) = (rows.get(&hold.client), overlaps(hold.entered, hold.left)) {
            let (left, right) = (x(hold.entered), x(hold.left));
            let title = format!("{:.3} s: token {}", seconds(hold.entered), hold.token);
            let bar = rectangle("hold", left, right, y + 5.0, ROW - 14.0, &title);
            let _ = writeln!(svg, "{bar}");
        }
    }
    if of.is_none() {
        for violation in &report.findings.violations {
            let (left, right) = (x(violation.from), x(violation.until));
            let bar = rectangle(
                "violation",
                left,
                right,
                1.0,
                height - 22.0,
                &escape(&violation.what),
            );
            let _ = writeln!(svg, "{bar}");
        }
    }
    for tenth in 0..=10 {
        let at = from + (until - from) / 10 * tenth;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\">{:.2} s</text>",
            x(at).min(WIDTH - 50.0),
            height - 6.0,
            seconds(at)
        );
    }
    svg + "</svg>\n"
}

fn rectangle(class: &str, left: f64, right: f64, y: f64, height: f64, title: &str) -> String {
    let width = (right - left).max(1.0);
    format!(
        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"><title>{title}</title></rect>"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(
            escape("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }
}
