//! Options that are the same with every store.

use std::time::Duration;

use super::rules::Terms;
use crate::error::Result;
use crate::url::{EngineUrl, check_times, invalid};

/// How the locks of an engine are kept and waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// How often the first in a queue looks.
    pub(crate) poll: Duration,
    /// For how long a waiter's place is kept without a sign of life.
    pub(crate) waiter_ttl: Duration,
    /// By how much the wall clocks of clients may differ, if they are to be trusted.
    pub(crate) max_clock_skew: Option<Duration>,
    /// How long one request may take.
    pub(crate) timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            poll: Duration::from_millis(200),
            waiter_ttl: Duration::from_secs(10),
            max_clock_skew: None,
            timeout: Duration::from_secs(5),
        }
    }
}

impl Settings {
    /// Those that a URL asks for.
    pub(crate) fn of(url: &EngineUrl) -> Result<Self> {
        let default = Self::default();
        let settings = Self {
            poll: url.duration("poll")?.unwrap_or(default.poll),
            waiter_ttl: url.duration("waiter_ttl")?.unwrap_or(default.waiter_ttl),
            max_clock_skew: url.duration("max_clock_skew")?,
            timeout: url.duration("timeout")?.unwrap_or(default.timeout),
        };
        settings.check()?;
        Ok(settings)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let times = [
            ("poll", self.poll),
            ("waiter_ttl", self.waiter_ttl),
            ("timeout", self.timeout),
        ];
        check_times(&times)?;
        if let Some(skew) = self.max_clock_skew {
            check_times(&[("max_clock_skew", skew)])?;
        }
        if self.waiter_ttl < 3 * self.poll {
            return Err(
                invalid("waiter_ttl is too short for waiters that look this seldom")
                    .advise("give waiter_ttl at least three times the time of poll"),
            );
        }
        Ok(())
    }

    pub(crate) fn terms(&self, queue: bool) -> Terms {
        Terms {
            poll: self.poll,
            waiter_ttl: self.waiter_ttl,
            queue,
        }
    }
}
