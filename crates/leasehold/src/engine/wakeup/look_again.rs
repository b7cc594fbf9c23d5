//! When a waiter looks at the lock again although no notice has come.

use std::time::Duration;

/// How much longer than the first in the queue the other waiters wait before they look: they do so only in case the first
/// one is dead. `number` spreads them over a second, so that they do not come all at once.
pub(crate) fn delay_behind_first(number: u64) -> Duration {
    Duration::from_millis(50 + number % 900)
}
