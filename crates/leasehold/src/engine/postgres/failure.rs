//! Errors of PostgreSQL, with advice.

use deadpool_postgres::PoolError;
use tokio_postgres::Error as Cause;
use tokio_postgres::error::DbError;

use super::schema::LAYOUT;
pub(crate) use crate::engine::sql::failure::*;
use crate::engine::tls;
use crate::error::{Error, ErrorKind};

/// Advice if the tables have a newer layout.
pub(crate) const OTHER_SCHEMA: &str = "another schema: ?schema=";

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// It was rolled back, and can be repeated.
    Again,
    /// The connection is lost, and the answer is lost with it.
    Reconnect,
    /// It was not carried out, since a statement is not prepared in this session: a pooler gives each transaction another one.
    Unprepare,
    /// Either that, or a pooler has lost the server and the answer with it.
    UnprepareMaybeApplied,
    /// It was rolled back after it had waited too long for a lock of another transaction.
    Patience,
    None,
}

pub(crate) fn remedy(cause: &Cause) -> Remedy {
    let Some(code) = cause.code() else {
        return Remedy::Reconnect;
    };
    match code.code() {
        "40001" | "40P01" => Remedy::Again,
        "26000" | "42P05" | "0A000" => Remedy::Unprepare,
        // Poolers report many things with this code, also some after which the server may have carried out the call.
        "08P01" => Remedy::UnprepareMaybeApplied,
        "55P03" => Remedy::Patience,
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
    let message = said.message();
    let error = match said.code().code() {
        "42501" => not_permitted(
            message,
            "grant it USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on the tables in it",
        ),
        "25006" => only_reads(),
        "LH001" => not_read_committed(),
        "LH002" => unfit(message).advise(format!("use a newer leasehold, or {OTHER_SCHEMA}")),
        "55P03" => tables_locked("pg_locks"),
        "57014" => gave_up(message, "raise statement_timeout for the user of this URL"),
        "53100" => unreachable("the server's disk is full", "free some space"),
        "53300" | "53200" | "53400" => says(ErrorKind::Unreachable, message)
            .advise("lower ?pool=, or raise the server's limits")
            .because_busy(),
        "42P01" | "3F000" | "42883" | "42703" => tables_missing(message, "postgres", LAYOUT.into()),
        _ if takes_no_more(said) => says(ErrorKind::Unreachable, message)
            .advise("lower ?pool=, or raise the limits of the server and the pooler")
            .because_busy(),
        code if code.starts_with("57P") || code.starts_with("08") => restarting(message),
        _ => says(ErrorKind::Unexpected, message),
    };
    error.caused_by(cause)
}

/// An error on a table of the user's.
pub(crate) fn of_table(cause: Cause) -> Error {
    let Some(said) = cause.as_db_error() else {
        return of_call(cause);
    };
    let message = said.message();
    let error = match said.code().code() {
        "42P01" | "3F000" | "42809" => misconfigured(
            message,
            "check the name of the table, and its schema: SCHEMA.TABLE",
        ),
        "42710" => misconfigured(message, "rename or drop that one; the fence needs its name"),
        "42501" => denied(
            message,
            "do it as the owner of the table; `leasehold fence print` prints the SQL",
        ),
        _ => return of_call(cause),
    };
    error.caused_by(cause)
}

/// Whether whoever refuses a connection has no room for it: the server, by its own code, or a pooler, which has one code for everything.
fn takes_no_more(said: &DbError) -> bool {
    let words = [
        "no more connections allowed",
        "too many clients",
        "remaining connection slots",
        "too many connections",
        "query_wait_timeout",
    ];
    match said.code().code() {
        "53300" | "53400" => true,
        "08P01" => words.iter().any(|word| said.message().contains(word)),
        _ => false,
    }
}

/// How a server says that whom it refuses does not encrypt.
const UNENCRYPTED: &str = "no encryption";

/// An error while connecting.
pub(crate) fn of_connection(cause: Cause) -> Error {
    if let Some(said) = cause.as_db_error() {
        return of_refusal(said).caused_by(cause);
    }
    if let Some(mistrust) = tls::mistrust(&cause) {
        return mistrust.caused_by(cause);
    }
    let said = message_of(&cause);
    let error = if said.contains("password missing") {
        denied(
            "the server asks for a password",
            "give it: postgres://user:password@host/database",
        )
    } else if said.contains("does not support TLS") {
        does_not_encrypt()
    } else {
        not_connected(&said)
    };
    error.caused_by(cause)
}

/// What the server says instead of letting us in. A pooler has one code for everything.
fn of_refusal(said: &DbError) -> Error {
    let (code, message) = (said.code(), said.message());
    let is_unencrypted = message.contains("no pg_hba.conf entry") && message.contains(UNENCRYPTED);
    let of_login = message.contains("authentication") || message.contains("password");
    match code.code() {
        _ if is_unencrypted => denied(
            format!(
                "the server refuses this user, or connections that are not encrypted: {message}"
            ),
            "say ?sslmode=require, or let pg_hba.conf admit the user",
        ),
        "28P01" | "28000" => login_refused(message, "postgres"),
        "3D000" => no_database(message, "postgres"),
        _ if takes_no_more(said) => no_more_connections(
            message,
            "lower ?pool=, raise max_connections, or use a pooler",
        ),
        // It is starting up or shutting down, and has not let us in.
        code if code.starts_with("57P") => unreachable(
            format!("the server is not ready: {message}"),
            "try again in a moment",
        )
        .because_busy(),
        "42501" => denied(
            message,
            "GRANT CONNECT ON DATABASE … TO the user of this URL",
        ),
        "08P01" if of_login => login_refused(message, "postgres"),
        _ => says(ErrorKind::Unreachable, message),
    }
}

/// An error of the first connection: whoever is at that address may be no server of this kind.
pub(crate) fn of_greeting(cause: Cause) -> Error {
    let said = message_of(&cause);
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
            .advise("check that the address and the port are right")
            .caused_by(cause),
        false => of_connection(cause),
    }
}

/// An error while waiting for one of the connections.
pub(crate) fn of_pool(cause: PoolError, size: usize) -> Error {
    match cause {
        PoolError::Backend(cause) => of_connection(cause),
        PoolError::Timeout(deadpool_postgres::TimeoutType::Wait) => all_busy(size),
        PoolError::Timeout(_) => no_connection_in_time(),
        other => Error::new(ErrorKind::Unexpected, other.to_string()),
    }
}

pub(crate) fn not_read_committed() -> Error {
    unfit("its transactions are not read committed by default").advise(
        "let default_transaction_isolation be 'read committed' for these connections: ALTER ROLE … SET …, or in the settings of the pool",
    )
}

pub(crate) fn only_reads() -> Error {
    read_only("a standby, or default_transaction_read_only is on")
}

/// With what lies behind it: the client says no more than that a connection failed.
fn message_of(cause: &Cause) -> String {
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
