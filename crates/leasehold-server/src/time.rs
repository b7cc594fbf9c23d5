//! Times as the API writes them.

use std::time::{Duration, SystemTime};

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A time in a request: a text such as `"30s"`, or a whole number of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// The longest that is accepted, so that no sum overflows: a year.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Times;
        impl Visitor<'_> for Times {
            type Value = Time;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    "a time such as \"500ms\" or \"30s\", or a whole number of milliseconds",
                )
            }

            fn visit_u64<E: serde::de::Error>(self, millis: u64) -> Result<Time, E> {
                match Duration::from_millis(millis) {
                    time if time <= LONGEST => Ok(Time(time)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(millis), &self)),
                }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                match humantime::parse_duration(text) {
                    Ok(time) if time <= LONGEST => Ok(Time(time)),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Times)
    }
}

/// How long to wait: a time, or `"forever"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitTime {
    UpTo(Duration),
    Forever,
}

impl<'de> Deserialize<'de> for WaitTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        if value == "forever" {
            return Ok(Self::Forever);
        }
        let time: Time = serde_json::from_value(value).map_err(D::Error::custom)?;
        Ok(Self::UpTo(time.0))
    }
}

/// For how long a place is kept: a time, `true` for the usual one, or `false`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeepPlace(pub(crate) Option<Duration>);

/// For how long a place is kept if the request does not say.
const KEPT: Duration = Duration::from_secs(30);

impl<'de> Deserialize<'de> for KeepPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        if let Some(keeps) = value.as_bool() {
            return Ok(Self(keeps.then_some(KEPT)));
        }
        let time: Time = serde_json::from_value(value).map_err(D::Error::custom)?;
        Ok(Self(Some(time.0)))
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A point in time, in UTC.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_texts_or_milliseconds() {
        let read = |text: &str| serde_json::from_str::<Time>(text).map(|time| time.0);
        assert_eq!(read("\"1m 30s\"").unwrap(), Duration::from_secs(90));
        assert_eq!(read("1500").unwrap(), Duration::from_millis(1500));
        for bad in [
            "-1",
            "1.5",
            "\"\"",
            "\"soon\"",
            "null",
            "[]",
            "\"1000y\"",
            "18446744073709551615",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let wait = |text: &str| serde_json::from_str::<WaitTime>(text);
        assert_eq!(wait("\"forever\"").unwrap(), WaitTime::Forever);
        assert_eq!(wait("0").unwrap(), WaitTime::UpTo(Duration::ZERO));
        let keep = |text: &str| serde_json::from_str::<KeepPlace>(text).map(|keep| keep.0);
        assert_eq!(keep("true").unwrap(), Some(KEPT));
        assert_eq!(keep("false").unwrap(), None);
        assert_eq!(keep("\"1s\"").unwrap(), Some(Duration::from_secs(1)));
    }
}
