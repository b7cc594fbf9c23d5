//! Random delays: pure and seeded, so that a test can replay them.

use std::time::Duration;

/// An endless series of delays that double up to a cap, each drawn at random from its upper half.
#[derive(Debug, Clone)]
pub struct Backoff {
    random: fastrand::Rng,
    next: Duration,
    cap: Duration,
}

impl Backoff {
    /// Delays from about `first` up to `cap`.
    pub fn new(seed: u64, first: Duration, cap: Duration) -> Self {
        let first = first.max(Duration::from_micros(1));
        Self {
            random: fastrand::Rng::with_seed(seed),
            next: first.min(cap),
            cap,
        }
    }

    /// The next delay.
    pub fn delay(&mut self) -> Duration {
        let delay = self
            .next
            .mul_f64(0.5 + 0.5 * self.random.f64())
            .min(self.cap);
        self.next = self.next.saturating_mul(2).min(self.cap);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn delays_stay_within_their_bounds(seed: u64, first in 1u64..1000, cap in 1u64..100_000) {
            let (first, cap) = (Duration::from_millis(first), Duration::from_millis(cap));
            let mut backoff = Backoff::new(seed, first, cap);
            for _ in 0..40 {
                let delay = backoff.delay();
                prop_assert!(delay <= cap && delay >= first.min(cap) / 2);
            }
        }
    }

    #[test]
    fn a_seed_replays() {
        let series = |seed| {
            let mut backoff = Backoff::new(seed, Duration::from_millis(5), Duration::from_secs(1));
            (0..9).map(|_| backoff.delay()).collect::<Vec<_>>()
        };
        assert_eq!(series(7), series(7));
        assert_ne!(series(7), series(8));
    }
}
