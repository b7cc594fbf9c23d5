//! What PostgreSQL can say, as errors that tell what to do.

use deadpool_postgres::PoolError;
use tokio_postgres::Error as Cause;
use tokio_postgres::error::SqlState;

use super::schema::LAYOUT;
use crate::engine::tls;
use crate::error::{Error, ErrorKind};

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// It was rolled back, and may be made again.
    Again,
    /// The connection is lost, and with it the answer.
    Reconnect,
    /// Statements do not stay prepared: a pooler gives each transaction another session.
    Unprepare,
    None,
}

pub(crate) fn remedy(cause: &Cause) -> Remedy {
    let Some(code) = cause.code() else {
        return Remedy::Reconnect;
    };
    match code.code() {
        "40001" | "40P01" => Remedy::Again,
        "26000" | "42P05" | "0A000" | "08P01" => Remedy::Unprepare,
        "57P01" | "57P02" | "57P03" | "57P05" => Remedy::Reconnect,
        code if code.starts_with("08") => Remedy::Reconnect,
        _ => Remedy::None,
    }
}

/// An error of a call to this server.
pub(crate) fn of_call(cause: Cause) -> Error {
    let Some(said) = cause.as_db_error() else {
        return of_connection(cause).of_unknown_effect();
    };
    let message = said.message().to_owned();
    let error = match said.code().code() {
        "42501" => Error::new(
            ErrorKind::Denied,
            format!("this user may not do that: {message}"),
        )
        .advise("grant it USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on the tables in it"),
        "25006" => read_only(),
        "LH001" => unfit("its transactions are not read committed by default").advise(
            "ALTER ROLE … SET default_transaction_isolation = 'read committed' for the user of this URL",
        ),
        "LH002" => newer_layout(message),
        "55P03" => Error::new(
            ErrorKind::Unreachable,
            "another transaction keeps leasehold's tables locked",
        )
        .advise("end that transaction (see pg_locks), or raise ?timeout="),
        "57014" => Error::new(ErrorKind::Unreachable, format!("the server gave up: {message}"))
            .advise("raise statement_timeout for the user of this URL"),
        "53100" => Error::new(ErrorKind::Unreachable, "the server's disk is full").advise("free some space"),
        "53300" | "53200" | "53400" => Error::new(ErrorKind::Unreachable, format!("the server says: {message}"))
            .advise("lower ?pool=, or raise the server's limits"),
        "42P01" | "3F000" | "42883" | "42703" => unfit(format!("leasehold's tables are not there, or not as expected: {message}"))
            .advise(format!("run the SQL that `leasehold schema postgres` prints (layout {LAYOUT})")),
        code if code.starts_with("57P") || code.starts_with("08") => {
            Error::new(ErrorKind::Unreachable, format!("the server says: {message}"))
                .advise("try again in a moment")
                .of_unknown_effect()
        }
        _ => Error::new(ErrorKind::Unexpected, format!("the server says: {message}")),
    };
    error.caused_by(cause)
}

/// An error on a table of the user's.
pub(crate) fn of_table(cause: Cause) -> Error {
    let Some(said) = cause.as_db_error() else {
        return of_call(cause);
    };
    let message = said.message().to_owned();
    let error = match said.code().code() {
        "42P01" | "3F000" | "42809" => Error::new(ErrorKind::InvalidConfig, message)
            .advise("check the name of the table, and its schema: SCHEMA.TABLE"),
        "42501" => Error::new(ErrorKind::Denied, message)
            .advise("do it as the owner of the table; `leasehold fence print` tells the SQL"),
        _ => return of_call(cause),
    };
    error.caused_by(cause)
}

/// How a server says that whom it refuses does not encrypt.
const UNENCRYPTED: &str = "no encryption";

/// An error while connecting.
pub(crate) fn of_connection(cause: Cause) -> Error {
    if let Some(said) = cause.as_db_error() {
        let message = said.message().to_owned();
        let denied = [
            SqlState::INVALID_PASSWORD,
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        ];
        let error = if message.contains("no pg_hba.conf entry") && message.contains(UNENCRYPTED) {
            Error::new(
                ErrorKind::Denied,
                format!(
                    "the server refuses this user, or connections that are not encrypted: {message}"
                ),
            )
            .advise("say ?sslmode=require, or let pg_hba.conf admit the user")
        } else if denied.contains(said.code()) {
            Error::new(
                ErrorKind::Denied,
                format!("the server refuses this user or password: {message}"),
            )
            .advise("check them: postgres://user:password@host/database")
        } else if *said.code() == SqlState::INVALID_CATALOG_NAME {
            Error::new(ErrorKind::InvalidConfig, message)
                .advise("create the database, or name another: postgres://host/database")
        } else if *said.code() == SqlState::TOO_MANY_CONNECTIONS {
            Error::new(
                ErrorKind::Unreachable,
                format!("the server takes no more connections: {message}"),
            )
            .advise("lower ?pool=, raise max_connections, or use a pooler")
        } else if said.code().code().starts_with("57P") {
            Error::new(
                ErrorKind::Unreachable,
                format!("the server is not ready: {message}"),
            )
            .advise("try again in a moment")
        } else if said.code().code() == "42501" {
            Error::new(ErrorKind::Denied, message)
                .advise("GRANT CONNECT ON DATABASE … TO the user of this URL")
        } else if said.code().code() == "08P01" {
            // A pooler says everything so.
            match message.contains("authentication") || message.contains("password") {
                true => Error::new(
                    ErrorKind::Denied,
                    format!("the server refuses this user or password: {message}"),
                )
                .advise("check them: postgres://user:password@host/database"),
                false => Error::new(
                    ErrorKind::Unreachable,
                    format!("the server says: {message}"),
                ),
            }
        } else {
            Error::new(
                ErrorKind::Unreachable,
                format!("the server says: {message}"),
            )
        };
        return error.caused_by(cause);
    }
    if let Some(mistrust) = tls::mistrust(&cause) {
        return mistrust.caused_by(cause);
    }
    let said = told(&cause);
    let error = if said.contains("password missing") {
        Error::new(ErrorKind::Denied, "the server asks for a password")
            .advise("give it: postgres://user:password@host/database")
    } else if said.contains("does not support TLS") {
        unfit("the server does not encrypt").advise("turn ssl on there, or say ?sslmode=disable")
    } else {
        Error::new(
            ErrorKind::Unreachable,
            format!("the connection failed: {said}"),
        )
        .advise("see that the server is up, and the address right")
    };
    error.caused_by(cause)
}

/// An error of the first connection: whoever is at that address may be no server of this kind.
pub(crate) fn of_greeting(cause: Cause) -> Error {
    let said = told(&cause);
    let is_babble = cause.as_db_error().is_none()
        && [
            "bytes remaining",
            "invalid message",
            "unexpected message",
            "unknown message",
        ]
        .iter()
        .any(|sign| said.contains(sign));
    match is_babble {
        true => unfit(format!("that is not a PostgreSQL server: {said}"))
            .advise("see that the address and the port are right")
            .caused_by(cause),
        false => of_connection(cause),
    }
}

/// An error while waiting for one of the connections.
pub(crate) fn of_pool(cause: PoolError, size: usize) -> Error {
    match cause {
        PoolError::Backend(cause) => of_connection(cause),
        PoolError::Timeout(deadpool_postgres::TimeoutType::Wait) => Error::new(
            ErrorKind::Unreachable,
            format!("all {size} connections are busy"),
        )
        .advise("raise ?pool= or ?timeout="),
        PoolError::Timeout(_) => no_connection_in_time(),
        other => Error::new(ErrorKind::Unexpected, other.to_string()),
    }
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

pub(crate) fn read_only() -> Error {
    unfit("the server is read-only: a standby, or default_transaction_read_only is on")
        .advise("connect to the primary, or let the user of this URL write")
}

pub(crate) fn newer_layout(what: String) -> Error {
    unfit(what).advise("use a newer leasehold, or another schema: ?schema=")
}

pub(crate) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
}

/// An answer that no function of ours gives.
pub(crate) fn nonsense(what: &str) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!("the server gave an answer that makes no sense: {what:?}"),
    )
    .of_unknown_effect()
}

/// With what lies behind it: the client says no more than that a connection failed.
fn told(cause: &Cause) -> String {
    let mut said = cause.to_string();
    let mut inner = std::error::Error::source(cause);
    while let Some(more) = inner {
        let more_said = more.to_string();
        if !said.contains(&more_said) {
            said = format!("{said}: {more_said}");
        }
        inner = more.source();
    }
    said
}
