//! What a pile of measurements comes to.

use std::time::Duration;

use serde::Serialize;

/// The middle and the tail, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Spread {
    /// Zero if there is nothing to measure.
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

/// Two digits after the point say more than enough.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// Ours against raw; `None` without a raw limit.
pub(super) fn ratio(ours: f64, raw: Option<f64>) -> Option<f64> {
    raw.filter(|raw| *raw > 0.0).map(|raw| rounded(ours / raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_and_tail() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let spread = Spread::of(times);
        assert_eq!((spread.p50_us, spread.p99_us), (101.0, 199.0));
        assert_eq!(Spread::of(Vec::new()).p99_us, 0.0);
    }
}
