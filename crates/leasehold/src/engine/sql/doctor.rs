//! Checks that are the same in all databases.

use std::time::Duration;

use humantime::format_duration;

use crate::claim::Ttl;
use crate::engine::doctor::Finding;

/// So many connections should be left for those who come.
const SPARE: u64 = 10;

/// Connections that the server closes when they are idle.
pub(crate) fn idle_timeout(setting: &str, time: Option<Duration>, ttl: Ttl, fix: &str) -> Finding {
    Finding::of("idle_timeout", time, |time| {
        let seen = format!("{setting} {}", format_duration(time));
        let renewed_every = ttl.get() / 3;
        match time.is_zero() || time > renewed_every {
            true => Finding::good("idle_timeout", seen),
            false => Finding::warning("idle_timeout", seen)
                .means(format!(
                    "the server closes connections between two renewals, which are {} apart: each needs a new one",
                    format_duration(renewed_every)
                ))
                .fix(fix),
        }
    })
}

/// How many connections are left.
pub(crate) fn connections(used: Option<u64>, all: Option<u64>) -> Finding {
    Finding::of("connections", used.zip(all), |(used, all)| {
        let seen = format!("{used} of {all} in use");
        match all.saturating_sub(used) >= SPARE {
            true => Finding::good("connections", seen),
            false => Finding::warning("connections", seen)
                .means("clients that come now may find no connection, and get no lock")
                .fix("raise max_connections, use a pooler, or find out who keeps connections open"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn few_connections_left_are_too_few() {
        for (used, all, weight) in [
            (Some(3), Some(100), Weight::Good),
            (Some(95), Some(97), Weight::Warning),
            (Some(99), Some(97), Weight::Warning),
            (None, Some(97), Weight::Unknown),
        ] {
            assert_eq!(connections(used, all).weight, weight, "{used:?} {all:?}");
        }
    }
}
