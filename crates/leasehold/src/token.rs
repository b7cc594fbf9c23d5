//! Fencing tokens, and the hybrid clock that proposes them.

use std::fmt;
#[cfg(feature = "torture")]
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};

/// A number that is strictly greater than that of every earlier grant of the same lock.
///
/// Give it to the resource with every write; a resource that refuses a token lower than one it has
/// seen is safe from holders that slept past their lease. Always below 2^53, so that JSON and Lua
/// keep it exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// No token is greater.
    pub const MAX: FencingToken = FencingToken((1 << 53) - 1);

    /// What is shown for a holder that has none: another program's lock.
    pub const NONE: FencingToken = FencingToken(0);

    /// The token with this number, if it is within the range.
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX.0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The hybrid clock: `max(last + 1, now in microseconds)`.
    ///
    /// Clock-like, it still grows when the store has lost its memory; stored, it still grows when
    /// the clock has stepped back.
    pub fn after(last: u64, now_in_micros: u64) -> Result<Self> {
        Self::new(now_in_micros.max(last.saturating_add(1))).ok_or_else(|| {
            Error::new(
                ErrorKind::EngineUnfit,
                format!("the next fencing token would pass 2^53 (last was {last})"),
            )
            .advise("set the system clock right; if the store's register is wrong, move the store aside")
        })
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Microseconds since 1970 by the wall clock; 0 if the clock stands before that.
pub fn wall_clock_micros() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64);
    #[cfg(feature = "torture")]
    let now = now.saturating_add_signed(STEP.load(Ordering::Relaxed));
    now
}

#[cfg(feature = "torture")]
static STEP: AtomicI64 = AtomicI64::new(0);

/// From now on, the wall clock of this process shows so much more or less than that of the machine, for all that leasehold uses it for:
/// the clock of a host that was set wrong.
#[cfg(feature = "torture")]
pub fn step_wall_clock(micros: i64) {
    STEP.store(micros, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_grow_whatever_the_clock_does(clock in proptest::collection::vec(0..1u64 << 52, 1..50)) {
            let mut last = 0;
            for now in clock {
                let token = FencingToken::after(last, now).unwrap();
                prop_assert!(token.get() > last);
                prop_assert!(token.get() >= now);
                last = token.get();
            }
        }
    }

    #[test]
    fn the_range_ends_below_2_to_the_53() {
        assert!(FencingToken::after(FencingToken::MAX.get(), 0).is_err());
        assert!(FencingToken::after(0, u64::MAX).is_err());
        assert_eq!(FencingToken::new(1 << 53), None);
    }
}
