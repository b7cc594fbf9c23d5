//! Errors.

use serde::{Deserialize, Serialize};

use crate::error::{Effect, Error, ErrorKind};

/// An [`Error`] as `application/problem+json`, as far as an engine needs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Problem {
    /// A stable word: see docs/http.md.
    pub kind: String,
    /// What failed.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// `none` or `unknown`.
    pub effect: String,
}

impl Problem {
    /// An error, without where it happened: the client knows that better.
    pub fn of(error: &Error) -> Self {
        Self {
            kind: kind(error).to_owned(),
            detail: error.what().to_owned(),
            advice: error.advice().map(str::to_owned),
            effect: effect(error.effect()).to_owned(),
        }
    }

    /// The error that it tells of. The kinds that a server has of its own become the nearest of an engine.
    pub fn into_error(self) -> Error {
        let kind = match &*self.kind {
            "unreachable" | "busy" | "draining" | "too_many" => ErrorKind::Unreachable,
            "engine_denied" | "unauthorized" | "forbidden" | "read_only" | "foreign_origin" => {
                ErrorKind::Denied
            }
            "engine_unfit" => ErrorKind::EngineUnfit,
            "unsupported" => ErrorKind::Unsupported,
            "invalid_request" | "invalid_name" | "body_too_large" => ErrorKind::InvalidConfig,
            _ => ErrorKind::Unexpected,
        };
        let mut error = Error::new(kind, self.detail);
        if let Some(advice) = self.advice {
            error = error.advise(advice);
        }
        if matches!(&*self.kind, "busy" | "draining" | "too_many") {
            error = error.because_busy();
        }
        match &*self.effect {
            "none" => error,
            _ => error.of_unknown_effect(),
        }
    }
}

/// The word for an error: what its HTTP status is chosen by.
pub fn kind(error: &Error) -> &'static str {
    match error.kind() {
        _ if error.is_busy() => "busy",
        ErrorKind::InvalidName => "invalid_name",
        ErrorKind::InvalidConfig => "invalid_request",
        ErrorKind::EngineUnfit => "engine_unfit",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::TimedOut => "held",
        ErrorKind::LeaseLost => "lease_lost",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Denied => "engine_denied",
        ErrorKind::Unexpected => "unexpected",
    }
}

/// The word for an effect.
pub fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::None => "none",
        Effect::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_read_back() {
        let error = Error::new(ErrorKind::Unreachable, "x").advise("y");
        let read = Problem::of(&error.clone().of_unknown_effect()).into_error();
        assert_eq!(read.kind(), ErrorKind::Unreachable);
        assert_eq!((read.effect(), read.advice()), (Effect::Unknown, Some("y")));
        let read = Problem::of(&error.because_busy()).into_error();
        assert!(read.is_busy() && read.effect() == Effect::None);
    }
}
