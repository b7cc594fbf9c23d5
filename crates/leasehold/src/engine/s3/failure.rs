//! What S3 says, as errors.

use crate::engine::aws::client::Answer;
use crate::engine::aws::failure::Said;
use crate::error::{Error, ErrorKind};

/// The contents of all elements of this name, as they are written.
pub(super) fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&open)?;
        let (content, after) = after.split_once(&close)?;
        rest = after;
        Some(content)
    })
}

pub(super) fn read(answer: &Answer) -> Said {
    let text = String::from_utf8_lossy(&answer.body);
    let element = |name| elements(&text, name).next().unwrap_or("").to_owned();
    let code = match element("Code") {
        code if code.is_empty() => "no reason given".to_owned(),
        code => code,
    };
    Said {
        status: answer.status.as_u16(),
        code,
        message: element("Message"),
    }
}

pub(super) fn said(said: &Said, action: &str, answer: &Answer) -> Error {
    let text = String::from_utf8_lossy(&answer.body);
    let region = answer.headers.get("x-amz-bucket-region");
    let region = region.and_then(|region| region.to_str().ok());
    let region = region.or_else(|| elements(&text, "Region").next());
    let told = format!("{}: {}", said.code, said.message);
    match (said.status, said.code.as_str()) {
        (_, "NoSuchBucket") => Error::new(
            ErrorKind::InvalidConfig,
            format!("there is no such bucket: {told}"),
        )
        .advise("check its name and the endpoint, or make it"),
        (300..400, _)
        | (
            _,
            "AuthorizationHeaderMalformed"
            | "PermanentRedirect"
            | "IllegalLocationConstraintException",
        ) => {
            let error = Error::new(
                ErrorKind::InvalidConfig,
                format!("the bucket is in another region: {told}"),
            );
            match region {
                Some(region) => error.advise(format!("write region={region}")),
                None => error.advise("write the region of the bucket: region="),
            }
        }
        (_, "EntityTooLarge" | "KeyTooLongError") => {
            Error::new(ErrorKind::InvalidConfig, format!("it is too large: {told}"))
                .advise("use shorter values and keys")
        }
        (501, _) | (_, "NotImplemented") => unfit(format!("it has no conditional writes: {told}")),
        // Without the right to list, S3 says the same of an object that is not there.
        (403, "AccessDenied") if action == "s3:GetObject" => said
            .error(action)
            .advise("allow s3:GetObject and s3:ListBucket in the policy of this user or role"),
        _ => said.error(action),
    }
}

pub(super) fn no_tag() -> Error {
    unfit("it tells no ETag of an object".to_owned()).of_unknown_effect()
}

/// A store that cannot keep locks.
pub(super) fn unfit(what: String) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
        .advise("use S3 itself, or a store that honours If-None-Match and If-Match on PutObject")
}
