//! Statistics of the measurements.

use std::time::Duration;

use serde::Serialize;

/// Percentiles, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Percentiles {
    /// Zero if there are no measurements.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |per_cent: usize| {
            let nth = times.len() * per_cent / 100;
            let time = times.get(nth.min(times.len().saturating_sub(1)));
            time.map_or(0.0, |time| rounded(time.as_secs_f64() * 1e6))
        };
        Self {
            p50_us: at(50),
            p99_us: at(99),
        }
    }
}

/// Rounded to two decimal places.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Ours divided by the baseline; `None` without one.
pub(super) fn ratio(ours: f64, baseline: Option<f64>) -> Option<f64> {
    let baseline = baseline.filter(|baseline| *baseline > 0.0);
    baseline.map(|baseline| rounded(ours / baseline))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_unsorted_times() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let percentiles = Percentiles::of(times);
        assert_eq!((percentiles.p50_us, percentiles.p99_us), (101.0, 199.0));
        assert_eq!(Percentiles::of(Vec::new()).p99_us, 0.0);
    }
}
