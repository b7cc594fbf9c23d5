//! Errors that are the same with every database.

use crate::error::{Error, ErrorKind};

/// The server cannot be trusted with locks as it is.
pub(crate) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
}

pub(crate) fn unreachable(what: impl Into<String>, help: &str) -> Error {
    Error::new(ErrorKind::Unreachable, what).advise(help)
}

pub(crate) fn denied(what: impl Into<String>, help: &str) -> Error {
    Error::new(ErrorKind::Denied, what).advise(help)
}

pub(crate) fn misconfigured(what: impl Into<String>, help: &str) -> Error {
    Error::new(ErrorKind::InvalidConfig, what).advise(help)
}

/// What the server says for which there is no better word.
pub(crate) fn says(kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, format!("the server says: {message}"))
}

/// The server is on its way down, or up again.
pub(crate) fn restarting(message: &str) -> Error {
    let error = says(ErrorKind::Unreachable, message);
    error.advise("try again in a moment").of_unknown_effect()
}

pub(crate) fn login_refused(message: &str, scheme: &str) -> Error {
    denied(
        format!("the server refuses this user or password: {message}"),
        &format!("check them: {scheme}://user:password@host/database"),
    )
}

pub(crate) fn no_database(message: &str, scheme: &str) -> Error {
    let help = format!("create the database, or name another: {scheme}://host/database");
    misconfigured(message, &help)
}

pub(crate) fn no_more_connections(message: &str, help: &str) -> Error {
    let what = format!("the server takes no more connections: {message}");
    unreachable(what, help).because_busy()
}

pub(crate) fn not_connected(said: &str) -> Error {
    let help = "check that the server is running and that the address is right";
    unreachable(format!("the connection failed: {said}"), help)
}

pub(crate) fn does_not_encrypt() -> Error {
    unfit("the server does not encrypt").advise("turn TLS on there, or say ?sslmode=disable")
}

pub(crate) fn not_permitted(message: &str, help: &str) -> Error {
    denied(format!("this user may not do that: {message}"), help)
}

pub(crate) fn tables_locked(see: &str) -> Error {
    let what = "another transaction keeps leasehold's tables locked";
    let help = format!("end that transaction (see {see}), or raise ?timeout=");
    unreachable(what, &help)
}

pub(crate) fn gave_up(message: &str, help: &str) -> Error {
    unreachable(format!("the server gave up: {message}"), help)
}

pub(crate) fn tables_missing(message: &str, scheme: &str, layout: i64) -> Error {
    unfit(format!(
        "leasehold's tables are not there, or not as expected: {message}"
    ))
    .advise(format!(
        "run the SQL that `leasehold schema {scheme}` prints (layout {layout})"
    ))
}

pub(crate) fn read_only(what: &str) -> Error {
    unfit(format!("the server is read-only: {what}"))
        .advise("connect to the primary, or let the user of this URL write")
}

pub(crate) fn all_busy(size: usize) -> Error {
    let what = format!("all {size} connections are busy");
    unreachable(what, "raise ?pool= or ?timeout=").because_busy()
}

pub(crate) fn no_connection_in_time() -> Error {
    let help = "check that it is running and that the address is right, or raise ?connect_timeout=";
    unreachable("the server cannot be reached in time", help)
}

pub(crate) fn no_answer_in_time() -> Error {
    let help = "check that it is running and not overloaded, or raise ?timeout=";
    unreachable("the server did not answer in time", help).of_unknown_effect()
}

/// An answer that no function or procedure of ours gives.
pub(crate) fn nonsense(what: &str) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!("the server gave an answer that makes no sense: {what:?}"),
    )
    .of_unknown_effect()
}

/// The tables are not as this version needs them, and the user cannot change that. `help` says who can, and how.
pub(crate) fn may_not_create(error: &Error, help: String) -> Error {
    let what = format!(
        "leasehold's tables are missing or old, and this user may not make them: {}",
        error.what()
    );
    Error::new(ErrorKind::Denied, what).advise(help)
}

/// Tables of a newer version. `elsewhere` says how to use others.
pub(crate) fn newer_layout(found: i64, known: i64, elsewhere: &str) -> Error {
    unfit(format!(
        "the tables have layout {found}, and this version of leasehold knows {known}"
    ))
    .advise(format!("use a newer leasehold, or {elsewhere}"))
}
