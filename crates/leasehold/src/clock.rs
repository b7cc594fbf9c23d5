//! The clock that validity is counted on: it only goes forward, and it counts time asleep.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Tokio's timers stand still while the machine is suspended. No sleep is longer than this, so
/// that after a resume the truth is noticed within a second.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A point in time on a [`Clock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment that lies `since_origin` after the clock's origin (the start of the machine).
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// How long after the clock's origin this is.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time from `earlier` until this moment; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, later_by: Duration) -> Moment {
        Moment(self.0.saturating_add(later_by))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, earlier_by: Duration) -> Moment {
        Moment(self.0.saturating_sub(earlier_by))
    }
}

/// Gives the time to the lease and to the engine alike.
///
/// Outside tests there is one: the machine's, which counts time asleep (`CLOCK_BOOTTIME` on
/// Linux) and is the same for all processes of the machine.
#[derive(Debug, Clone, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    Machine,
    Tokio(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock.
    pub const fn machine() -> Self {
        Self(Source::Machine)
    }

    /// A clock that follows Tokio's, for tests with a paused clock.
    pub fn tokio() -> Self {
        Self(Source::Tokio(Arc::default()))
    }

    /// Lets a [`Clock::tokio`] clock jump forward without waking any timer, as if the machine had
    /// been asleep. Does nothing to the machine's clock.
    pub fn sleep_through(&self, asleep: Duration) {
        if let Source::Tokio(offset) = &self.0 {
            offset.fetch_add(asleep.as_nanos() as u64, Ordering::SeqCst);
        }
    }

    /// The present moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::Machine => machine_now(),
            Source::Tokio(asleep) => {
                let awake = tokio::time::Instant::now().duration_since(tokio_origin());
                Moment(awake + Duration::from_nanos(asleep.load(Ordering::SeqCst)))
            }
        }
    }

    /// Returns once `until` has come.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time.
    pub async fn sleep_until(&self, until: Moment) {
        loop {
            let left = until.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}

/// Any fixed instant serves as the origin of a test clock; a day back, so that subtraction from
/// an early moment does not saturate.
fn tokio_origin() -> tokio::time::Instant {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let origin = *ORIGIN.get_or_init(|| {
        let now = std::time::Instant::now();
        now.checked_sub(Duration::from_secs(86_400)).unwrap_or(now)
    });
    tokio::time::Instant::from_std(origin)
}

#[cfg(unix)]
fn machine_now() -> Moment {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const COUNTS_SLEEP: nix::time::ClockId = nix::time::ClockId::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const COUNTS_SLEEP: nix::time::ClockId = nix::time::ClockId::CLOCK_MONOTONIC;
    match COUNTS_SLEEP.now() {
        Ok(time) => Moment(Duration::from(time)),
        Err(_) => Moment(process_clock()),
    }
}

#[cfg(not(unix))]
fn machine_now() -> Moment {
    Moment(process_clock())
}

fn process_clock() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_clock_goes_forward() {
        let clock = Clock::machine();
        let first = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= first + Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_within_a_second_of_a_resume() {
        let clock = Clock::tokio();
        let end = clock.now() + Duration::from_secs(3600);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(end).await }
        });
        tokio::task::yield_now().await;
        clock.sleep_through(Duration::from_secs(7200));
        tokio::time::timeout(Duration::from_millis(1500), sleeper)
            .await
            .unwrap()
            .unwrap();
    }
}
