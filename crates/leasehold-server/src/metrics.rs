//! Counters, gauges and histograms in Prometheus' text format. No lock names as labels, unless asked for.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::doctor::Examined;

/// The upper bounds of the buckets of histograms, in seconds.
const BOUNDS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
];

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: BTreeMap<(String, u16), u64>,
    problems: BTreeMap<&'static str, u64>,
    losses: BTreeMap<&'static str, u64>,
    breaks: u64,
    asks: u64,
    waits: Histogram,
    holds: Histogram,
    answers: Histogram,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    fn write(&self, text: &mut String, name: &str, help: &str) {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {bucket}");
        }
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(text, "{name}_sum {}\n{name}_count {}", self.sum, self.count);
    }
}

/// What is read when the metrics are.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    pub(crate) places: usize,
    pub(crate) engine_seconds: Option<f64>,
    pub(crate) engine_requests: Option<u64>,
    pub(crate) draining: bool,
    /// What the doctor found last.
    pub(crate) examined: Option<Arc<Examined>>,
    /// Waiters and holders by lock, if names are asked for.
    pub(crate) by_lock: Vec<(String, usize, usize)>,
}

impl Metrics {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answered(
        &self,
        route: &str,
        status: u16,
        problem: Option<&'static str>,
        took: Duration,
    ) {
        let mut counts = self.counts();
        *counts
            .requests
            .entry((route.to_owned(), status))
            .or_default() += 1;
        if let Some(kind) = problem {
            *counts.problems.entry(kind).or_default() += 1;
        }
        counts.answers.add(took);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.counts().waits.add(time);
    }

    pub(crate) fn held(&self, time: Duration) {
        self.counts().holds.add(time);
    }

    pub(crate) fn lost(&self, reason: &'static str) {
        *self.counts().losses.entry(reason).or_default() += 1;
    }

    pub(crate) fn broken(&self) {
        self.counts().breaks += 1;
    }

    pub(crate) fn asked(&self) {
        self.counts().asks += 1;
    }

    pub(crate) fn to_text(&self, now: &Gauges) -> String {
        let counts = self.counts();
        let mut text = String::new();
        let mut gauge = |name: &str, help: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}"
            );
        };
        gauge("leasehold_held", "Claims that hold a lock.", &now.held);
        gauge("leasehold_waiting", "Claims that wait.", &now.waiting);
        gauge(
            "leasehold_places",
            "Claims that wait through this server.",
            &now.places,
        );
        gauge(
            "leasehold_draining",
            "Whether the server is about to end.",
            &u8::from(now.draining),
        );
        if let Some(seconds) = now.engine_seconds {
            let help = "How long the engine took to list all locks the last time.";
            gauge("leasehold_engine_list_seconds", help, &seconds);
        }
        if let Some(examined) = &now.examined {
            let mut gauges = |name: &str, help: &str, label: &str, rows: Vec<(&str, usize)>| {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
                for (value, count) in rows {
                    let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {count}");
                }
            };
            gauges(
                "leasehold_doctor_findings",
                "What the engine's settings mean for locks, by how much it matters.",
                "weight",
                examined.by_weight(),
            );
            gauges(
                "leasehold_doctor_verdict",
                "What the engine's settings are fit for.",
                "verdict",
                examined.verdicts(),
            );
        }
        let mut counter =
            |name: &str, help: &str, rows: &mut dyn Iterator<Item = (String, u64)>| {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
                for (labels, count) in rows {
                    let _ = writeln!(text, "{name}{labels} {count}");
                }
            };
        if let Some(requests) = now.engine_requests {
            counter(
                "leasehold_engine_requests_total",
                "Requests to the engine.",
                &mut [(String::new(), requests)].into_iter(),
            );
        }
        let requests = counts.requests.iter().map(|((route, status), count)| {
            (format!("{{route=\"{route}\",status=\"{status}\"}}"), *count)
        });
        counter(
            "leasehold_requests_total",
            "Requests that were answered.",
            &mut { requests },
        );
        let by = |label: &'static str, map: &BTreeMap<&'static str, u64>| -> Vec<_> {
            let rows = map.iter();
            rows.map(|(value, count)| (format!("{{{label}=\"{value}\"}}"), *count))
                .collect()
        };
        counter(
            "leasehold_problems_total",
            "Requests that were answered with a problem.",
            &mut by("kind", &counts.problems).into_iter(),
        );
        counter(
            "leasehold_losses_total",
            "Leases of hold streams that were lost.",
            &mut by("reason", &counts.losses).into_iter(),
        );
        let plain = |count: u64| [(String::new(), count)].into_iter();
        counter(
            "leasehold_breaks_total",
            "Locks that were taken from their holders.",
            &mut plain(counts.breaks),
        );
        counter(
            "leasehold_asks_total",
            "Locks that were asked for.",
            &mut plain(counts.asks),
        );
        counts.waits.write(
            &mut text,
            "leasehold_wait_seconds",
            "How long claims waited until they were granted.",
        );
        counts.holds.write(
            &mut text,
            "leasehold_hold_seconds",
            "How long claims of this server held a lock.",
        );
        counts.answers.write(
            &mut text,
            "leasehold_request_seconds",
            "How long requests took, waits included.",
        );
        text += &by_lock_to_text(&now.by_lock);
        text
    }
}

/// Holders and waiters by lock.
pub(crate) fn by_lock_to_text(by_lock: &[(String, usize, usize)]) -> String {
    let mut text = String::new();
    for (nth, name) in ["leasehold_lock_held", "leasehold_lock_waiting"]
        .iter()
        .enumerate()
    {
        if by_lock.is_empty() {
            break;
        }
        let _ = writeln!(text, "# HELP {name} By lock.\n# TYPE {name} gauge");
        for (lock, held, waiting) in by_lock {
            let lock = lock.replace('\\', "\\\\").replace('"', "\\\"");
            let count = [held, waiting][nth];
            let _ = writeln!(text, "{name}{{lock=\"{lock}\"}} {count}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_each_name_once_and_escapes_labels() {
        let metrics = Metrics::default();
        metrics.waited(Duration::from_millis(20));
        metrics.answered("/v1/renew", 200, None, Duration::from_millis(1));
        metrics.answered("/v1/renew", 409, Some("held"), Duration::from_millis(1));
        let text = metrics.to_text(&Gauges {
            by_lock: vec![("a\"b\\".to_owned(), 1, 2)],
            ..Gauges::default()
        });
        assert!(text.contains("leasehold_wait_seconds_bucket{le=\"0.05\"} 1"));
        assert!(text.contains("leasehold_wait_seconds_bucket{le=\"0.01\"} 0"));
        assert!(text.contains("leasehold_lock_waiting{lock=\"a\\\"b\\\\\"} 2"));
        let types = text.lines().filter(|line| line.starts_with("# TYPE"));
        let mut names: Vec<_> = types.collect();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
