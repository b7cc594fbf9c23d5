//! What a server's clock says, without asking it each time: tokens are proposed by it.

use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::sync::Mutex;

/// After this time the server is asked again.
const FRESH: Duration = Duration::from_secs(30);

/// What the server said so long ago no token is proposed by: the estimate falls behind by a thousandth. Longer than `FRESH`, so that a connection in use
/// is asked again before.
const TOO_OLD: Duration = Duration::from_secs(60);

/// One server's clock. What it tells is never ahead of the server, as long as two clocks drift apart by less than a thousandth.
#[derive(Debug)]
pub(crate) struct ServerTime(Mutex<Sample>);

#[derive(Debug)]
struct Sample {
    /// On this machine's clock: no earlier than the server said it.
    received: Moment,
    /// Microseconds.
    said: u64,
    /// When the server was asked last.
    asked: Moment,
}

impl ServerTime {
    /// The server has just said this.
    pub(crate) fn new(micros: u64) -> Self {
        let now = Clock::machine().now();
        Self(Mutex::new(Sample {
            received: now,
            said: micros,
            asked: now,
        }))
    }

    pub(crate) fn is_now(&self, micros: u64) {
        let mut sample = self.0.lock();
        sample.received = Clock::machine().now();
        sample.said = micros;
    }

    /// Microseconds.
    pub(crate) fn estimate(&self) -> u64 {
        self.estimate_at(Clock::machine().now())
    }

    fn estimate_at(&self, now: Moment) -> u64 {
        let sample = self.0.lock();
        let passed = now.since(sample.received);
        sample.said + (passed - passed / 1000).as_micros() as u64
    }

    /// The least that a token is to be: microseconds by the server's clock, or 0 if it is not known well enough. A server that decides alone raises a token that is
    /// behind its register, and then to the time on its own clock.
    pub(crate) fn least_token(&self) -> u64 {
        self.least_token_at(Clock::machine().now())
    }

    fn least_token_at(&self, now: Moment) -> u64 {
        let is_old = now.since(self.0.lock().received) > TOO_OLD;
        if is_old { 0 } else { self.estimate_at(now) }
    }

    /// Whether the server is to be asked again. True once, and then not for a while.
    pub(crate) fn is_to_be_asked(&self) -> bool {
        let (mut sample, now) = (self.0.lock(), Clock::machine().now());
        let is_old = now.since(sample.asked) > FRESH;
        if is_old {
            sample.asked = now;
        }
        is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_follows_the_clock_and_stays_behind() {
        let time = ServerTime::new(5_000_000);
        let received = time.0.lock().received;
        assert_eq!(time.estimate_at(received), 5_000_000);
        assert_eq!(
            time.estimate_at(received + Duration::from_secs(10)),
            14_990_000
        );
        time.is_now(1_000);
        assert!(
            time.estimate() < 5_000_000,
            "the server's clock was set back"
        );
    }

    #[test]
    fn no_token_is_proposed_by_an_old_time() {
        let time = ServerTime::new(5_000_000);
        let received = time.0.lock().received;
        let least = |seconds| time.least_token_at(received + Duration::from_secs(seconds));
        assert_eq!(least(10), 14_990_000);
        // By less than this it falls behind.
        assert!(5_000_000 + 60_000_000 - least(60) < 100_000);
        for old in [61, 24 * 60 * 60] {
            assert_eq!(least(old), 0, "it would be {old} ms behind");
        }
    }

    #[test]
    fn server_is_asked_again_now_and_then() {
        let time = ServerTime::new(0);
        assert!(!time.is_to_be_asked());
        time.0.lock().asked = Moment::from_origin(Duration::ZERO);
        let long_ago = Clock::machine().now().since_origin() > FRESH;
        assert_eq!(time.is_to_be_asked(), long_ago);
        assert!(!time.is_to_be_asked());
    }
}
