//! What MySQL can say, as errors that tell what to do.

use mysql_async::{DriverError, Error as Cause, IoError};

use super::schema::LAYOUT;
use crate::engine::tls;
use crate::error::{Error, ErrorKind};

/// The number of what the server said.
pub(crate) fn code(error: &Error) -> Option<u16> {
    let cause = std::error::Error::source(error)?.downcast_ref::<Cause>()?;
    match cause {
        Cause::Server(said) => Some(said.code),
        _ => None,
    }
}

/// Whether the server refused a connection because it has too many.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(code(error), Some(1040 | 1203 | 1226))
}

/// There is no such table.
pub(crate) const NO_TABLE: u16 = 1146;

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// It was rolled back, and may be made again.
    Again,
    /// The connection is lost or of no use, and with it the answer.
    Reconnect,
    None,
}

pub(crate) fn remedy(cause: &Cause) -> Remedy {
    match cause {
        Cause::Server(said) => match said.code {
            // A deadlock; someone else's transaction was in the way for too long.
            1213 | 1205 | 1020 => Remedy::Again,
            // Ended from outside: what was done so far may still be open in this session.
            1053 | 1317 | 1927 | 1152 | 1158..=1161 | 1184 | 3169 | 4031 => Remedy::Reconnect,
            _ => Remedy::None,
        },
        _ => Remedy::Reconnect,
    }
}

/// An error of a call to this server.
pub(crate) fn of_call(cause: Cause) -> Error {
    let Cause::Server(said) = &cause else {
        return of_connection(cause).of_unknown_effect();
    };
    let message = said.message.clone();
    let error = match said.code {
        1044 | 1142 | 1143 | 1227 | 1370 | 1419 | 1449 => Error::new(
            ErrorKind::Denied,
            format!("this user may not do that: {message}"),
        )
        .advise("grant it SELECT, INSERT, UPDATE, DELETE and EXECUTE on the database"),
        1290 | 1792 | 1836 => read_only(&message),
        1205 | 1213 => Error::new(
            ErrorKind::Unreachable,
            "another transaction keeps leasehold's tables locked",
        )
        .advise("end that transaction (see SHOW ENGINE INNODB STATUS), or raise ?timeout="),
        1969 | 3024 => Error::new(
            ErrorKind::Unreachable,
            format!("the server gave up: {message}"),
        )
        .advise("raise its limit on the time of statements for the user of this URL"),
        1021 | 1114 => Error::new(
            ErrorKind::Unreachable,
            format!("the server has no room: {message}"),
        )
        .advise("free some space"),
        1047 => Error::new(
            ErrorKind::Unreachable,
            format!("the node takes no statements now: {message}"),
        )
        .advise("see that it has joined its cluster"),
        1146 | 1305 | 1054 | 1318 => unfit(format!(
            "leasehold's tables are not there, or not as expected: {message}"
        ))
        .advise(format!(
            "run the SQL that `leasehold schema mysql` prints (layout {LAYOUT})"
        )),
        1665 => unfit("the server logs statements instead of rows")
            .advise("set binlog_format to ROW or MIXED"),
        1053 | 1317 | 1927 | 1152 | 1158..=1161 | 1184 | 3169 | 4031 => Error::new(
            ErrorKind::Unreachable,
            format!("the server says: {message}"),
        )
        .advise("try again in a moment")
        .of_unknown_effect(),
        _ => Error::new(ErrorKind::Unexpected, format!("the server says: {message}")),
    };
    error.caused_by(cause)
}

/// An error while connecting.
pub(crate) fn of_connection(cause: Cause) -> Error {
    if let Some(mistrust) = tls::mistrust(&cause) {
        return mistrust.caused_by(cause);
    }
    let login = "check them: mysql://user:password@host/database";
    let error = match &cause {
        Cause::Server(said) => {
            let message = &said.message;
            match said.code {
                1045 | 1698 | 1862 | 3118 | 4151 => Error::new(
                    ErrorKind::Denied,
                    format!("the server refuses this user or password: {message}"),
                )
                .advise(login),
                1044 => Error::new(
                    ErrorKind::Denied,
                    format!("this user may not use the database, or there is none: {message}"),
                )
                .advise("create it, and grant the user SELECT, INSERT, UPDATE, DELETE and EXECUTE on it"),
                1129 | 1130 => Error::new(
                    ErrorKind::Denied,
                    format!("the server takes no connections from here: {message}"),
                )
                .advise("let the user connect from this host"),
                // It wants connections to be encrypted.
                3159 => Error::new(ErrorKind::Denied, message.clone()).advise("say ?sslmode=require"),
                1049 => Error::new(ErrorKind::InvalidConfig, message.clone())
                    .advise("create the database, or name another: mysql://host/database"),
                1040 | 1203 | 1226 => Error::new(
                    ErrorKind::Unreachable,
                    format!("the server takes no more connections: {message}"),
                )
                .advise("lower ?pool=, or raise max_connections"),
                _ => Error::new(
                    ErrorKind::Unreachable,
                    format!("the server says: {message}"),
                ),
            }
        }
        Cause::Driver(DriverError::NoClientSslFlagFromServer) => {
            unfit("the server does not encrypt").advise("turn it on there, or say ?sslmode=disable")
        }
        Cause::Driver(DriverError::UnknownAuthPlugin { name }) => Error::new(
            ErrorKind::Denied,
            format!("the server asks for a way of logging in that is not known: {name}"),
        )
        .advise("let the user log in with caching_sha2_password or mysql_native_password"),
        other => Error::new(
            ErrorKind::Unreachable,
            format!("the connection failed: {}", told(other)),
        )
        .advise("see that the server is up, and the address right"),
    };
    error.caused_by(cause)
}

/// The same where nothing is encrypted: some servers refuse that as if the password were wrong.
pub(crate) fn of_plain_connection(cause: Cause) -> Error {
    let error = of_connection(cause);
    match (error.kind(), error.advice()) {
        (ErrorKind::Denied, Some(advice)) => {
            let advice = format!(
                "{advice}; if the server wants connections encrypted, say ?sslmode=require"
            );
            error.advise(advice)
        }
        _ => error,
    }
}

/// An error of a statement on a table of the user's own, where our own tables are not what is meant.
pub(crate) fn of_users_table(error: Error) -> Error {
    match code(&error) {
        Some(NO_TABLE | 1054 | 1103 | 1049) => {
            Error::new(ErrorKind::InvalidConfig, error.what().to_owned())
                .advise("see that the table and the column are there")
                .caused_by(error)
        }
        _ => error,
    }
}

pub(crate) fn all_busy(size: usize) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("all {size} connections are busy"),
    )
    .advise("raise ?pool= or ?timeout=")
}

pub(crate) fn no_connection_in_time() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the server cannot be reached in time",
    )
    .advise("see that it is up, and the address right, or raise ?connect_timeout=")
}

pub(crate) fn no_answer_in_time() -> Error {
    Error::new(ErrorKind::Unreachable, "the server did not answer in time")
        .advise("see that it is up and not overloaded, or raise ?timeout=")
        .of_unknown_effect()
}

pub(crate) fn read_only(message: &str) -> Error {
    unfit(format!("the server is read-only: {message}"))
        .advise("connect to the primary, or let the user of this URL write")
}

pub(crate) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
}

/// An answer that no procedure of ours gives.
pub(crate) fn nonsense(what: &str) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!("the server gave an answer that makes no sense: {what:?}"),
    )
    .of_unknown_effect()
}

/// What the system said, without what the client puts around it.
fn told(cause: &Cause) -> String {
    match cause {
        Cause::Io(IoError::Io(said)) => said.to_string(),
        other => other.to_string(),
    }
}
