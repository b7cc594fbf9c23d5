//! What a request brings: a body in JSON, the claim id in its header, a name in its path.

use std::str::FromStr;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use leasehold::{ClaimId, LockName};
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The header with the claim id.
pub(crate) const CLAIM_HEADER: &str = "leasehold-claim";

/// How long a body may take: whoever sends it slower holds a connection for nothing.
const SLOWEST_BODY: Duration = Duration::from_secs(10);

/// A body in JSON, of up to `LIMIT` bytes. An empty one stands for `{}`.
pub(crate) struct Json<T, const LIMIT: usize = { 64 << 10 }>(pub(crate) T);

/// For records, whose values may be a megabyte, and a third more in Base64.
pub(crate) const RECORD: usize = 2 << 20;

/// For batches.
pub(crate) const BATCH: usize = 4 << 20;

impl<S: Sync, T: DeserializeOwned, const LIMIT: usize> FromRequest<S> for Json<T, LIMIT> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let media_type = request.headers().get(CONTENT_TYPE);
        let is_json = media_type.is_some_and(|it| {
            let essence = it.to_str().unwrap_or_default().split(';').next();
            let essence = essence.unwrap_or_default().trim();
            essence.eq_ignore_ascii_case("application/json")
        });
        let body = Limited::new(request.into_body(), LIMIT).collect();
        let body = tokio::time::timeout(SLOWEST_BODY, body).await;
        let body = body.map_err(|_| {
            Problem::new("slow_body", "the body did not come in time").advise("send it within 10 s")
        })?;
        let body = body.map_err(|cause| match cause.is::<LengthLimitError>() {
            true => Problem::new("body_too_large", "the body is too large")
                .advise(format!("send up to {LIMIT} bytes")),
            false => Problem::invalid("the body could not be read"),
        })?;
        let body = body.to_bytes();
        if body.is_empty() {
            return parse(b"{}").map(Self);
        }
        if !is_json {
            return Err(
                Problem::new("unsupported_media_type", "the body is not said to be JSON")
                    .advise("send it with Content-Type: application/json"),
            );
        }
        parse(&body).map(Self)
    }
}

/// The position is told, but not the text: it may be a secret.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // Serde would also read a list as the fields in their order.
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        return Err(Problem::invalid("the body is not a JSON object")
            .advise("see docs/http.md for the fields"));
    }
    serde_json::from_slice(body).map_err(|cause| {
        let detail = match cause.classify() {
            serde_json::error::Category::Data => cause.to_string(),
            _ => format!(
                "the body is not JSON (line {}, column {})",
                cause.line(),
                cause.column()
            ),
        };
        Problem::invalid(without_claims(&detail)).advise("see docs/http.md for the fields")
    })
}

/// Serde quotes what it cannot use, and that may be a claim id.
fn without_claims(text: &str) -> String {
    let is_digit = |c: char| c.is_ascii_hexdigit();
    let parts = text.split_inclusive(|c| !is_digit(c)).map(|part| {
        let digits = part.trim_end_matches(|c| !is_digit(c));
        match digits.len() >= 32 {
            true => part.replacen(digits, "...", 1),
            false => part.to_owned(),
        }
    });
    let text: String = parts.collect();
    text.chars().take(300).collect()
}

/// The claim id of the header.
#[derive(Debug)]
pub(crate) struct ClaimHeader(pub(crate) ClaimId);

impl<S: Sync> FromRequestParts<S> for ClaimHeader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut given = parts.headers.get_all(CLAIM_HEADER).into_iter();
        let advice = "send 32 random hexadecimal digits that no other claim has";
        let Some(value) = given.next() else {
            return Err(Problem::invalid("the header Leasehold-Claim is missing").advise(advice));
        };
        if given.next().is_some() {
            return Err(Problem::invalid("there are two Leasehold-Claim headers").advise(advice));
        }
        let id = value
            .to_str()
            .ok()
            .and_then(|it| ClaimId::from_str(it).ok());
        id.map(Self).ok_or_else(|| {
            Problem::invalid("the header Leasehold-Claim is no claim id").advise(advice)
        })
    }
}

/// The last variable of the path, percent-decoded.
pub(crate) struct Named(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, state).await;
        match named {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(
                Problem::new("invalid_name", "the name in the path is not UTF-8")
                    .advise("percent-encode it as UTF-8, as one segment: a / is %2F"),
            ),
        }
    }
}

/// The query of the URL.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(cause) => Err(
                Problem::invalid(format!("the query cannot be used: {cause}"))
                    .advise("see docs/http.md for its parameters"),
            ),
        }
    }
}

/// A lock that a user may name.
pub(crate) fn lock_name(name: &str) -> Result<LockName, Problem> {
    Ok(LockName::new(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_ids_are_not_quoted() {
        let id = "0123456789abcdef0123456789abcdef";
        let problem = parse::<u32>(format!("{{\"claim\": \"{id}\"}}").as_bytes()).unwrap_err();
        assert!(!problem.to_json().to_string().contains(id));
        let form = parse::<std::collections::HashMap<String, u32>>;
        let problem = form(format!("{{\"claim\": \"{id}\"}}").as_bytes()).unwrap_err();
        let text = problem.to_json().to_string();
        assert!(!text.contains(id) && text.contains("..."), "{text}");
        assert!(form(b"[]").is_err());
    }
}
