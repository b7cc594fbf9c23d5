//! Errors that are the same with every service.

use std::time::Duration;

use reqsign_core::ErrorKind as SignErrorKind;

use super::config::Endpoint;
use crate::engine::tls;
use crate::error::{Error, ErrorKind};

fn at(endpoint: &Endpoint) -> String {
    format!("{}://{}", endpoint.scheme, endpoint.authority)
}

/// The request was not answered.
pub(super) fn no_answer(
    cause: Box<dyn std::error::Error + Send + Sync>,
    endpoint: &Endpoint,
) -> Error {
    if let Some(mistrusted) = tls::mistrust(&*cause) {
        return mistrusted;
    }
    let failed = cause.downcast_ref::<hyper_util::client::legacy::Error>();
    if failed.is_some_and(hyper_util::client::legacy::Error::is_connect) {
        let what = format!("{} does not accept connections", at(endpoint));
        return Error::new(ErrorKind::Unreachable, what)
            .advise(
                "check that the region and the endpoint are right, and that this host can reach it",
            )
            .caused_by(cause);
    }
    Error::new(
        ErrorKind::Unreachable,
        format!("{} did not answer", at(endpoint)),
    )
    .advise("try again; check the network in between")
    .caused_by(cause)
    .of_unknown_effect()
}

/// The request was not answered in time.
pub(super) fn late(timeout: Duration, endpoint: &Endpoint) -> Error {
    let what = format!(
        "{} did not answer within {}",
        at(endpoint),
        humantime::format_duration(timeout)
    );
    Error::new(ErrorKind::Unreachable, what)
        .advise("check that this host can reach it, or raise ?timeout=")
        .of_unknown_effect()
}

pub(super) fn malformed(cause: http::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "the request cannot be written")
        .advise("report this as a bug of leasehold")
        .caused_by(cause)
}

/// There are no credentials that it could be signed with. What the signer says may contain them, so only its kind is told.
pub(super) fn unsigned(cause: &reqsign_core::Error) -> Error {
    let what = match cause.kind() {
        SignErrorKind::CredentialInvalid => "no valid AWS credentials were found",
        SignErrorKind::PermissionDenied => "AWS gave out no credentials: permission denied",
        SignErrorKind::ConfigInvalid => "the AWS configuration cannot be used",
        SignErrorKind::RateLimited => "AWS gives out no credentials at this moment",
        _ => "the AWS credentials could not be loaded",
    };
    Error::new(ErrorKind::Denied, what)
        .advise("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or log in again")
}

/// What AWS said, and what it calls that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Codes that mean: nothing was done, try again later.
const TOO_MANY: &[&str] = &[
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "Throttling",
    "TransactionConflictException",
    "SlowDown",
    "TooManyRequests",
    "OperationAborted",
    "ConditionalRequestConflict",
    // Of a global table with strong consistency: another region writes the same item.
    "ReplicatedWriteConflictException",
];

/// Codes that mean: the request did not arrive as a whole in time.
const TOO_SLOW: &[&str] = &["RequestTimeout", "RequestTimeoutException"];

const DENIED: &[&str] = &[
    "AccessDeniedException",
    "AccessDenied",
    "AllAccessDisabled",
    "AccountProblem",
];

const NOT_US: &[&str] = &[
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "MissingAuthenticationTokenException",
    "MissingAuthenticationToken",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidToken",
    "AuthFailure",
];

const EXPIRED: &[&str] = &[
    "ExpiredTokenException",
    "ExpiredToken",
    "RequestExpired",
    "TokenRefreshRequired",
];

const WRONG_CLOCK: &[&str] = &["RequestTimeTooSkewed", "RequestInTheFuture"];

/// Whether an answer says that the credentials have expired, in the way of whatever service.
pub(super) fn says_expired(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    EXPIRED.iter().any(|code| text.contains(code))
}

impl Said {
    fn is(&self, codes: &[&str]) -> bool {
        codes.contains(&self.code.as_str())
    }

    /// For a request of this kind (`dynamodb:PutItem`).
    pub(crate) fn error(&self, action: &str) -> Error {
        let said = match self.message.is_empty() {
            true => format!("{} ({})", self.code, self.status),
            false => format!("{}: {}", self.code, self.message),
        };
        let error = |kind, what: String| Error::new(kind, what);
        if self.is(TOO_MANY) || self.status == 429 {
            return error(ErrorKind::Unreachable, format!("too many requests: {said}"))
                .advise("wait; if it goes on, let fewer ask at a time, or raise the limits of the table or bucket")
                .because_busy();
        }
        if self.is(EXPIRED) {
            return error(
                ErrorKind::Denied,
                format!("the AWS credentials have expired: {said}"),
            )
            .advise("log in again, or renew them");
        }
        if self.is(WRONG_CLOCK)
            || self.message.contains("Signature not yet current")
            || self.message.contains("Signature expired")
        {
            return error(
                ErrorKind::Denied,
                format!("AWS refuses the time of the request: {said}"),
            )
            .advise("set the clock of this machine right");
        }
        if self.message.contains("scoped to a valid region") {
            return error(
                ErrorKind::InvalidConfig,
                format!("the endpoint is in another region: {said}"),
            )
            .advise("write the region of the endpoint: region=");
        }
        if self.is(NOT_US) {
            return error(
                ErrorKind::Denied,
                format!("AWS does not accept the credentials: {said}"),
            )
            .advise("check the access key, and that it is for this account and endpoint");
        }
        if self.is(DENIED) || self.status == 403 {
            return error(
                ErrorKind::Denied,
                format!("{action} is not allowed: {said}"),
            )
            .advise(format!("allow {action} in the policy of this user or role"));
        }
        if self.status >= 500 || self.status == 408 || self.is(TOO_SLOW) {
            // Some of these were carried out.
            return error(ErrorKind::Unreachable, format!("AWS failed: {said}"))
                .advise("try again")
                .of_unknown_effect();
        }
        if self.status < 300 {
            // It says that it was carried out, and cannot be read.
            return error(
                ErrorKind::Unexpected,
                format!("the answer to {action} cannot be read: {said}"),
            )
            .advise("see that the endpoint is right, and what is between this host and it")
            .of_unknown_effect();
        }
        error(
            ErrorKind::Unexpected,
            format!("{action} was refused: {said}"),
        )
        .advise("report this as a bug of leasehold")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Effect;

    #[test]
    fn what_aws_says_becomes_kind_effect_and_advice() {
        let table = [
            (
                400,
                "ThrottlingException",
                ErrorKind::Unreachable,
                Effect::None,
                true,
            ),
            (503, "SlowDown", ErrorKind::Unreachable, Effect::None, true),
            (429, "Anything", ErrorKind::Unreachable, Effect::None, true),
            (
                409,
                "ConditionalRequestConflict",
                ErrorKind::Unreachable,
                Effect::None,
                true,
            ),
            (
                400,
                "ReplicatedWriteConflictException",
                ErrorKind::Unreachable,
                Effect::None,
                true,
            ),
            (
                400,
                "RequestTimeout",
                ErrorKind::Unreachable,
                Effect::Unknown,
                false,
            ),
            (
                200,
                "Unheard",
                ErrorKind::Unexpected,
                Effect::Unknown,
                false,
            ),
            (
                400,
                "AccessDeniedException",
                ErrorKind::Denied,
                Effect::None,
                false,
            ),
            (403, "Unheard", ErrorKind::Denied, Effect::None, false),
            (
                400,
                "ExpiredTokenException",
                ErrorKind::Denied,
                Effect::None,
                false,
            ),
            (
                403,
                "InvalidAccessKeyId",
                ErrorKind::Denied,
                Effect::None,
                false,
            ),
            (
                403,
                "RequestTimeTooSkewed",
                ErrorKind::Denied,
                Effect::None,
                false,
            ),
            (
                500,
                "InternalServerError",
                ErrorKind::Unreachable,
                Effect::Unknown,
                false,
            ),
            (
                503,
                "ServiceUnavailable",
                ErrorKind::Unreachable,
                Effect::Unknown,
                false,
            ),
            (
                400,
                "SerializationException",
                ErrorKind::Unexpected,
                Effect::None,
                false,
            ),
        ];
        for (status, code, kind, effect, busy) in table {
            let said = Said {
                status,
                code: code.to_owned(),
                message: String::new(),
            };
            let error = said.error("dynamodb:PutItem");
            assert_eq!(
                (error.kind(), error.effect(), error.is_busy()),
                (kind, effect, busy),
                "{code}"
            );
            assert!(error.advice().is_some() && error.what().contains(code));
        }
    }
}
