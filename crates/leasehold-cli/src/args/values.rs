//! Values as people write them: durations, waits and signals.

use std::time::{Duration, SystemTime};

use leasehold::{Ttl, Wait};
use nix::sys::signal::Signal;

/// `500ms`, `30s`, `1m 30s` or `0`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text)
        .map_err(|cause| format!("{cause}; write it like 500ms, 30s or 5m"))
}

/// A duration or `forever`.
pub(super) fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => parse_duration(text)
            .map(Wait::UpTo)
            .map_err(|cause| format!("{cause}, or forever")),
    }
}

/// When a lock ends that is held without a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    Forever,
    After(Duration),
    At(SystemTime),
}

impl Until {
    /// The time from now until then; zero if it is over.
    pub(crate) fn time_left(self) -> Duration {
        match self {
            Until::Forever => Ttl::FOREVER.get(),
            Until::After(time) => time,
            Until::At(then) => then.duration_since(SystemTime::now()).unwrap_or_default(),
        }
    }
}

/// `2026-12-24T18:00[:00][Z]`, `2days` or `forever`.
pub(super) fn parse_until(text: &str) -> Result<Until, String> {
    if text == "forever" {
        return Ok(Until::Forever);
    }
    let minutes = format!("{text}:00");
    let date = humantime::parse_rfc3339_weak(text)
        .or_else(|cause| humantime::parse_rfc3339_weak(&minutes).map_err(|_| cause));
    date.map(Until::At)
        .or_else(|_| parse_duration(text).map(Until::After))
        .map_err(|_| "write it like 2026-12-24T18:00 (in UTC), 2days or forever".to_owned())
}

/// `TERM`, `SIGTERM` or `15`.
pub(super) fn parse_signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let named = match upper.starts_with("SIG") {
        true => upper.parse().ok(),
        false => format!("SIG{upper}").parse().ok(),
    };
    let number = || {
        text.parse::<i32>()
            .ok()
            .and_then(|n| Signal::try_from(n).ok())
    };
    named
        .or_else(number)
        .ok_or_else(|| "no such signal; write it like TERM or USR1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_waits() {
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("10").unwrap_err().contains("500ms"));
        assert_eq!(parse_wait("forever"), Ok(Wait::Forever));
        assert_eq!(parse_wait("0"), Ok(Wait::UpTo(Duration::ZERO)));
        assert!(parse_wait("for ever").unwrap_err().contains("forever"));
    }

    #[test]
    fn sticky_ends() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_798_135_200);
        for text in [
            "2026-12-24T18:00",
            "2026-12-24 18:00:00",
            "2026-12-24T18:00:00Z",
        ] {
            assert_eq!(parse_until(text), Ok(Until::At(then)), "{text}");
        }
        assert_eq!(
            parse_until("2days"),
            Ok(Until::After(Duration::from_secs(172_800)))
        );
        assert_eq!(parse_until("forever"), Ok(Until::Forever));
        assert!(parse_until("tomorrow").unwrap_err().contains("2days"));
        let past = Until::At(SystemTime::UNIX_EPOCH);
        assert_eq!(past.time_left(), Duration::ZERO);
    }

    #[test]
    fn signals_by_name_and_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(text), Ok(Signal::SIGTERM), "{text}");
        }
        assert!(parse_signal("SIGNIFICANT").is_err() && parse_signal("99").is_err());
    }
}
