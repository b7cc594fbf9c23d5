//! What DynamoDB says, as errors.

use crate::engine::aws::failure::Said;
use crate::error::{Error, ErrorKind};

pub(super) fn said(said: &Said, call: &str) -> Error {
    let told = || format!("{}: {}", said.code, said.message);
    match said.code.as_str() {
        "ResourceNotFoundException" => {
            Error::new(ErrorKind::InvalidConfig, format!("there is no such table: {}", told()))
                .advise("check its name and the region, or make it with what `leasehold schema dynamodb` prints")
        }
        "ValidationException" if said.message.contains("size") => {
            Error::new(ErrorKind::InvalidConfig, format!("it is too large for an item: {}", told()))
                .advise("keep it below 400 KB")
        }
        "ValidationException" => {
            Error::new(ErrorKind::EngineUnfit, format!("the table is not one for locks: {}", told()))
                .advise("let it have one partition key of type S; see `leasehold schema dynamodb`")
        }
        _ => said.error(&format!("dynamodb:{call}")),
    }
}

/// A table that is there, and cannot be used.
pub(super) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
        .advise("name another table; `leasehold schema dynamodb` prints how one is made")
}

/// An item that is there, and not a lock.
pub(super) fn foreign(key: &str, what: &str) -> Error {
    Error::new(
        ErrorKind::EngineUnfit,
        format!("the item {key:?} is not a lock of ours: {what}"),
    )
    .advise("use a table of its own for locks; with another lock client's table, name its dialect")
}
