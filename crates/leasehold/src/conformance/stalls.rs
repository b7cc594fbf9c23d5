//! Tells a host that took the processor away from an engine that was late.

use std::sync::Once;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

const TICK: Duration = Duration::from_millis(5);

/// Shorter delays of a thread are nothing unusual on a busy machine.
const NOTICED: Duration = Duration::from_millis(15);

static STALLS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Measures for how long the host kept this process from running, from when it is made.
#[derive(Debug, Clone, Copy)]
pub struct Stalls {
    since: Instant,
}

impl Stalls {
    /// Begins to measure.
    pub fn watch() -> Self {
        static WATCHING: Once = Once::new();
        WATCHING.call_once(|| drop(std::thread::spawn(measure)));
        Self {
            since: Instant::now(),
        }
    }

    /// The longest stall so far.
    pub fn longest(&self) -> Duration {
        // One that is not over yet has not been noted.
        std::thread::sleep(2 * TICK);
        let stalls = STALLS.lock();
        let seen = stalls.iter().filter(|(at, _)| *at >= self.since);
        seen.map(|(_, time)| *time).max().unwrap_or_default()
    }
}

fn measure() {
    loop {
        let before = Instant::now();
        std::thread::sleep(TICK);
        let stalled = before.elapsed().saturating_sub(TICK);
        if stalled > NOTICED {
            let mut stalls = STALLS.lock();
            stalls.push((Instant::now(), stalled));
        }
    }
}

/// Tries something whose truth depends on the host until it is so; a failure counts as one unless the host stalled for longer
/// than `tolerated` meanwhile.
pub async fn unless_stalled<E: std::fmt::Display>(
    tolerated: Duration,
    mut shown: impl AsyncFnMut() -> Result<(), E>,
) {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let stalls = Stalls::watch();
        let Err(failure) = shown().await else {
            return;
        };
        let longest = stalls.longest();
        assert!(
            longest > tolerated,
            "{failure}, although the host stalled for no more than {longest:?}"
        );
    }
    panic!("the host stalled for more than {tolerated:?} in each of {TRIES} tries");
}
