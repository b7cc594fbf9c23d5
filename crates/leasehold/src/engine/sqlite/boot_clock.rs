//! The clock of the moments in the table: the kernel's boot clock, the same in all its time namespaces.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::failure::Result;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind};

/// The offsets of a process's time namespace: the process sees the kernel's clock so much later.
const OFFSETS: &str = "/proc/self/timens_offsets";

/// The kernel's boot clock, and how far from it the clock is that this process sees.
#[derive(Debug, Clone, Default)]
pub(super) struct BootClock {
    pub(super) seen: Clock,
    pub(super) ahead: Duration,
    pub(super) behind: Duration,
}

impl BootClock {
    pub(super) fn of_this_process() -> Result<Self> {
        // The offsets are those of the namespace that children are born in: one's own, unless it was changed without starting one.
        let [own, childrens] = ["time", "time_for_children"]
            .map(|namespace| fs::read_link(Path::new("/proc/self/ns").join(namespace)).ok());
        let offset = match fs::read_to_string(OFFSETS) {
            // A kernel without time namespaces.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Some(0),
            Ok(offsets) if own == childrens => boot_offset(&offsets),
            _ => None,
        };
        let Some(offset) = offset else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("{OFFSETS} does not say how this process's clock differs from others'"),
            )
            .advise("mount /proc, or use another engine")
            .into());
        };
        let by = Duration::from_nanos(offset.unsigned_abs());
        let (ahead, behind) = match offset >= 0 {
            true => (by, Duration::ZERO),
            false => (Duration::ZERO, by),
        };
        Ok(Self {
            seen: Clock::machine(),
            ahead,
            behind,
        })
    }

    /// The present by the kernel's clock.
    pub(super) fn now(&self) -> Moment {
        self.seen.now() + self.behind - self.ahead
    }

    /// A moment of the kernel's clock as this process sees it.
    pub(super) fn seen(&self, moment: Moment) -> Moment {
        moment + self.ahead - self.behind
    }
}

/// In nanoseconds.
fn boot_offset(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find(|line| line.starts_with("boottime"))?;
    let mut fields = line.split_whitespace().skip(1);
    let mut field = || fields.next()?.parse::<i64>().ok();
    let (seconds, nanos) = (field()?, field()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_is_that_of_the_boot_clock() {
        let offset = |boot: &str| boot_offset(&format!("monotonic  5  6\n{boot}\n"));
        assert_eq!(offset("boottime  3600  7"), Some(3_600_000_000_007));
        assert_eq!(offset("boottime  -2  500000000"), Some(-1_500_000_000));
        assert_eq!(offset("boottime  x  0"), None);
        assert_eq!(offset(""), None);
        BootClock::of_this_process().unwrap();
    }
}
