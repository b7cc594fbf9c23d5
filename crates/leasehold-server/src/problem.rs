//! Errors as `application/problem+json` (RFC 9457). The only place where HTTP statuses are decided.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use leasehold::engine::wire;
use leasehold::{Effect, Error};
use serde_json::{Map, Value, json};

/// Where the kinds are explained.
const DOCS: &str = "https://github.com/leasehold/leasehold/blob/main/docs/http.md";

/// What went wrong: what the client gets to see.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: &'static str,
    detail: String,
    advice: Option<String>,
    effect: Effect,
    retry_after: Option<Duration>,
    more: Map<String, Value>,
}

/// The stable words, each with its status and a title.
const KINDS: &[(&str, u16, &str)] = &[
    ("held", 409, "the lock is held"),
    ("lease_lost", 410, "the claim does not hold the lock"),
    ("stale", 409, "a higher token has written"),
    ("changed", 409, "the record has changed"),
    ("no_record", 404, "there is no such record"),
    ("invalid_request", 400, "the request cannot be used"),
    ("invalid_name", 400, "the name cannot be used"),
    ("unsupported", 422, "the engine cannot do this"),
    ("unauthorized", 401, "an access token is needed"),
    ("forbidden", 403, "the access token does not allow this"),
    ("read_only", 403, "the server is read-only"),
    (
        "foreign_origin",
        403,
        "the request comes from another origin",
    ),
    ("not_found", 404, "there is no such route"),
    ("method_not_allowed", 405, "the route has no such method"),
    ("slow_body", 408, "the body took too long"),
    ("body_too_large", 413, "the body is too large"),
    ("headers_too_large", 431, "the headers are too large"),
    ("unsupported_media_type", 415, "the body is not JSON"),
    ("too_many", 429, "a limit is reached"),
    ("unreachable", 503, "the engine does not answer"),
    ("busy", 503, "the engine is busy"),
    ("draining", 503, "the server is about to end"),
    ("engine_denied", 502, "the engine refuses the server"),
    ("engine_unfit", 502, "the engine is not fit for use"),
    ("unexpected", 500, "an internal error"),
];

impl Problem {
    /// A problem of one of the kinds, with no effect.
    pub(crate) fn new(kind: &'static str, detail: impl Into<String>) -> Self {
        debug_assert!(KINDS.iter().any(|(known, ..)| *known == kind), "{kind}");
        Self {
            kind,
            detail: detail.into(),
            advice: None,
            effect: Effect::None,
            retry_after: None,
            more: Map::new(),
        }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new("invalid_request", detail)
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The request may have been carried out.
    pub(crate) fn of_unknown_effect(mut self) -> Self {
        self.effect = Effect::Unknown;
        self
    }

    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    /// Another member.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    #[cfg(test)]
    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    fn row(&self) -> &'static (&'static str, u16, &'static str) {
        let mut known = KINDS.iter();
        let found = known.find(|(kind, ..)| *kind == self.kind);
        found.unwrap_or(&KINDS[KINDS.len() - 1])
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.row().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The document.
    pub(crate) fn to_json(&self) -> Value {
        let (kind, status, title) = self.row();
        let mut document = json!({
            "type": format!("{DOCS}#{kind}"),
            "title": title,
            "status": status,
            "kind": kind,
            "detail": self.detail,
            "effect": wire::effect(self.effect),
        });
        if let Some(members) = document.as_object_mut() {
            if let Some(advice) = &self.advice {
                members.insert("advice".to_owned(), advice.as_str().into());
            }
            for (name, value) in &self.more {
                members.insert(name.clone(), value.clone());
            }
        }
        document
    }
}

/// For one of the answers to a batch.
impl From<Problem> for wire::Problem {
    fn from(problem: Problem) -> Self {
        Self {
            kind: problem.kind.to_owned(),
            detail: problem.detail,
            advice: problem.advice,
            effect: wire::effect(problem.effect).to_owned(),
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = wire::kind(&error);
        let mut problem = Self::new(kind, error.what());
        problem.advice = error.advice().map(str::to_owned);
        problem.effect = error.effect();
        if let Some(lock) = error.lock() {
            problem = problem.with("lock", lock);
        }
        if let Some(operation) = error.operation() {
            problem = problem.with("operation", operation);
        }
        match kind {
            "busy" | "unreachable" => problem.retry_after(Duration::from_secs(1)),
            _ => problem,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status(), self.to_json().to_string()).into_response();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, json);
        if let Some(time) = self.retry_after {
            let seconds = time.as_millis().div_ceil(1000).max(1) as u64;
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.kind == "unauthorized" {
            let bearer = HeaderValue::from_static("Bearer realm=\"leasehold\"");
            headers.insert(WWW_AUTHENTICATE, bearer);
        }
        // For the layer that counts.
        response.extensions_mut().insert(Kind(self.kind));
        response
    }
}

/// The kind of the problem that a response tells of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind(pub(crate) &'static str);

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::ErrorKind;

    #[test]
    fn each_kind_of_error_has_its_status() {
        let table = [
            (ErrorKind::InvalidName, 400),
            (ErrorKind::InvalidConfig, 400),
            (ErrorKind::Unsupported, 422),
            (ErrorKind::TimedOut, 409),
            (ErrorKind::LeaseLost, 410),
            (ErrorKind::Unreachable, 503),
            (ErrorKind::Denied, 502),
            (ErrorKind::EngineUnfit, 502),
            (ErrorKind::Unexpected, 500),
        ];
        for (kind, status) in table {
            let problem = Problem::from(Error::new(kind, "x"));
            assert_eq!(problem.status().as_u16(), status, "{kind:?}");
        }
        let busy = Problem::from(Error::new(ErrorKind::Unreachable, "x").because_busy());
        assert_eq!((busy.kind(), busy.status().as_u16()), ("busy", 503));
    }
}
