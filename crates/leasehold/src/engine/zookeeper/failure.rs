//! What ZooKeeper can say, as errors that say what to do.

use zookeeper_client::Error as Said;

use crate::error::{Error, ErrorKind, Result};

/// An error of a request.
pub(crate) fn of_request(cause: Said) -> Error {
    let error = match &cause {
        Said::NoAuth => Error::new(ErrorKind::Denied, "this user may not do that here")
            .advise("check the user and the password: zookeeper://user:password@host; and who may use the node (getAcl)"),
        Said::AuthFailed => Error::new(ErrorKind::Denied, "the servers refuse this user or password")
            .advise("check them: zookeeper://user:password@host"),
        Said::NoNode => unfit("the node under which the locks are is gone")
            .advise("make it again, or name another in the URL"),
        Said::NoChildrenForEphemerals => unfit("the node under which the locks are belongs to a session")
            .advise("name another in the URL"),
        Said::Unimplemented => unfit("the server is older than ZooKeeper 3.5.3").advise("use a newer one"),
        Said::QuotaExceeded => Error::new(ErrorKind::Unreachable, "the quota of the path is used up")
            .advise("raise it, or name another path"),
        Said::NotReadOnly => {
            Error::new(ErrorKind::Unreachable, "the server cannot write just now").advise("try again in a moment")
        }
        Said::Throttled => Error::new(ErrorKind::Unreachable, "the server has more requests than it takes")
            .advise("try again in a moment")
            .because_busy(),
        Said::NoHosts => Error::new(ErrorKind::Unreachable, "no server can be reached that belongs to a quorum")
            .advise("check that most of the servers are running, that the addresses are right, and with TLS the certificates too"),
        Said::SessionExpired | Said::ClientClosed | Said::SessionMoved => {
            Error::new(ErrorKind::Unreachable, "the servers have ended the session")
                .advise("try again: a new one is opened")
                .of_unknown_effect()
        }
        _ if client_has_stopped(&cause) => {
            Error::new(ErrorKind::Unreachable, "the runtime has ended that the session was opened on")
                .advise("try again: a new one is opened; or keep that runtime for as long as locks are used")
                .of_unknown_effect()
        }
        Said::Timeout => silent(),
        // The library says what the system said where a connection breaks, and nothing else that way.
        Said::ConnectionLoss | Said::Custom(_) => Error::new(ErrorKind::Unreachable, format!("the connection was lost: {cause}"))
            .advise("check that most of the servers are running")
            .of_unknown_effect(),
        Said::BadArguments(what) => Error::new(ErrorKind::InvalidConfig, format!("the client refuses it: {what}"))
            .advise("mend the URL"),
        _ => Error::new(ErrorKind::Unreachable, format!("the request failed: {cause}"))
            .advise("check that most of the servers are running")
            .of_unknown_effect(),
    };
    error.caused_by(cause)
}

/// Nobody answered in time.
pub(crate) fn silent() -> Error {
    Error::new(ErrorKind::Unreachable, "the servers did not answer in time")
        .advise("check that most of them are running and not overloaded, or raise ?timeout=")
        .of_unknown_effect()
}

/// There is a server, but it takes no more connections.
pub(crate) fn full() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the servers take no more connections from this host",
    )
    .advise("raise maxClientCnxns on the servers, or let more tasks share a handle")
    .because_busy()
}

pub(crate) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
}

fn said(error: &Error) -> Option<&Said> {
    std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
}

/// Whether a new session would do better.
pub(crate) fn ended_the_session(error: &Error) -> bool {
    said(error).is_some_and(|cause| {
        matches!(
            cause,
            Said::SessionExpired | Said::ClientClosed | Said::SessionMoved
        ) || client_has_stopped(cause)
    })
}

/// Whether the library's own task is gone, with the runtime that it ran on: nobody sends requests any more. The library has no error for that.
pub(crate) fn client_has_stopped(cause: &Said) -> bool {
    let Said::UnexpectedError(what) = cause else {
        return false;
    };
    what.contains("expect response, but got none") || what.starts_with("expect error state, got ")
}

/// Whether it may go better at once: on another connection, or in a new session.
pub(crate) fn was_interrupted(error: &Error) -> bool {
    let lost = matches!(said(error), Some(Said::ConnectionLoss | Said::Custom(_)));
    lost || ended_the_session(error)
}

/// Whether no server has taken the connection.
pub(crate) fn found_nobody(error: &Error) -> bool {
    matches!(said(error), Some(Said::NoHosts))
}

/// Whether the node is not there.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(said(error), Some(Said::NoNode))
}

/// Whether the node is there already.
pub(crate) fn is_there(error: &Error) -> bool {
    matches!(said(error), Some(Said::NodeExists))
}

/// Whether the node is of another version than was asked for.
pub(crate) fn is_other_version(error: &Error) -> bool {
    matches!(said(error), Some(Said::BadVersion))
}

/// A missing node is a value.
pub(crate) fn unless_missing<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
