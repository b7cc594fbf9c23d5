//! Errors of MySQL, with advice.

use mysql_async::{DriverError, Error as Cause, IoError};

use super::schema::LAYOUT;
pub(crate) use crate::engine::sql::failure::*;
use crate::engine::tls;
use crate::error::{Error, ErrorKind};

/// The server's error code.
pub(crate) fn code(error: &Error) -> Option<u16> {
    let cause = std::error::Error::source(error)?.downcast_ref::<Cause>()?;
    match cause {
        Cause::Server(said) => Some(said.code),
        _ => None,
    }
}

/// There is no such table.
pub(crate) const NO_TABLE: u16 = 1146;

/// What to do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// It was rolled back, and can be repeated.
    Again,
    /// The connection is lost or cannot be used any more, and the answer is lost with it.
    Reconnect,
    None,
}

pub(crate) fn remedy(cause: &Cause) -> Remedy {
    match cause {
        Cause::Server(said) => match said.code {
            // A deadlock; someone else's transaction was in the way for too long.
            1213 | 1205 | 1020 => Remedy::Again,
            // It was killed, or the server shuts down. A transaction may still be open in the session.
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
    let message = said.message.as_str();
    let error = match said.code {
        // All of these were refused before anything was done, or rolled back.
        1226 | 1461 => unreachable(
            format!("the server has reached a limit: {message}"),
            "raise the user's limits (max_queries_per_hour, max_updates_per_hour) or max_prepared_stmt_count",
        )
        .because_busy(),
        1044 | 1142 | 1143 | 1227 | 1370 | 1419 | 1449 => not_permitted(
            message,
            "grant it SELECT, INSERT, UPDATE, DELETE and EXECUTE on the database",
        ),
        1290 | 1792 | 1836 => read_only(message),
        1205 | 1213 => tables_locked("SHOW ENGINE INNODB STATUS"),
        1969 | 3024 => gave_up(
            message,
            "raise its limit on the time of statements for the user of this URL",
        ),
        1021 | 1114 => unreachable(
            format!("the server has no room: {message}"),
            "free some space",
        ),
        1047 => unreachable(
            format!("the node takes no statements now: {message}"),
            "check that it has joined its cluster",
        ),
        1146 | 1305 | 1054 | 1318 => tables_missing(message, "mysql", LAYOUT),
        1665 => unfit("the server logs statements instead of rows")
            .advise("set binlog_format to ROW or MIXED"),
        _ if remedy(&cause) == Remedy::Reconnect => restarting(message),
        _ => says(ErrorKind::Unexpected, message),
    };
    error.caused_by(cause)
}

/// The program's own pool has no connection in time.
pub(crate) fn none_given_in_time() -> Error {
    let help = "check that the server is running, raise the size of the pool, or use its connections for shorter times";
    unreachable("the pool that was given has no connection in time", help).because_busy()
}

/// An error while connecting.
pub(crate) fn of_connection(cause: Cause) -> Error {
    if let Some(mistrust) = tls::mistrust(&cause) {
        return mistrust.caused_by(cause);
    }
    let error = match &cause {
        Cause::Server(said) => of_refusal(said.code, &said.message),
        Cause::Driver(DriverError::NoClientSslFlagFromServer) => does_not_encrypt(),
        Cause::Driver(DriverError::UnknownAuthPlugin { name }) => denied(
            format!("the server asks for a way of logging in that is not known: {name}"),
            "let the user log in with caching_sha2_password or mysql_native_password",
        ),
        // The message of the operating system, without what the client library adds to it.
        Cause::Io(IoError::Io(said)) => not_connected(&said.to_string()),
        other => not_connected(&other.to_string()),
    };
    error.caused_by(cause)
}

/// An error of the server when it refuses a connection.
fn of_refusal(code: u16, message: &str) -> Error {
    match code {
        1045 | 1698 | 1862 | 3118 | 4151 => login_refused(message, "mysql"),
        1044 => denied(
            format!("this user may not use the database, or there is none: {message}"),
            "create it, and grant the user SELECT, INSERT, UPDATE, DELETE and EXECUTE on it",
        ),
        1129 | 1130 => denied(
            format!("the server takes no connections from here: {message}"),
            "let the user connect from this host",
        ),
        // It wants connections to be encrypted.
        3159 => denied(message, "say ?sslmode=require"),
        1049 => no_database(message, "mysql"),
        1040 | 1135 | 1203 | 1226 => no_more_connections(
            message,
            "lower ?pool=, or raise max_connections and the user's own limits",
        ),
        _ => says(ErrorKind::Unreachable, message),
    }
}

/// The same for a connection without TLS: some servers refuse those as if the password were wrong.
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

/// An error of a statement on a table of the user's own: the advice must not be about leasehold's tables.
pub(crate) fn of_users_table(error: Error) -> Error {
    match code(&error) {
        Some(NO_TABLE | 1054 | 1103 | 1049) => {
            let help = "check that the table and the column are there";
            misconfigured(error.what().to_owned(), help).caused_by(error)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Effect;

    #[test]
    fn limits_are_said_to_be_busy_and_nothing_else_is() {
        let said = |code| {
            Cause::Server(mysql_async::ServerError {
                code,
                message: "no".to_owned(),
                state: "HY000".to_owned(),
            })
        };
        for code in [1040, 1135, 1203, 1226] {
            let error = of_connection(said(code));
            assert!(error.is_busy(), "{code}: {error}");
            assert_eq!(error.kind(), ErrorKind::Unreachable);
            assert_eq!(error.effect(), Effect::None);
            assert!(of_plain_connection(said(code)).is_busy(), "{code}");
        }
        for code in [1226, 1461] {
            let error = of_call(said(code));
            assert!(error.is_busy(), "{code}: {error}");
            assert_eq!(error.effect(), Effect::None);
        }
        for code in [1045, 1049, 1129, 1205, 1213, 1317, 2013] {
            assert!(!of_connection(said(code)).is_busy(), "{code}");
            assert!(!of_call(said(code)).is_busy(), "{code}");
        }
        assert!(all_busy(4).is_busy());
    }
}
