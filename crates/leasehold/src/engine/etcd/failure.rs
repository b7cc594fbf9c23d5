//! What etcd can say, as errors that say what to do.

use std::error::Error as _;
use std::io;

use tonic::{Code, Status};

use super::client::Refused;
use crate::error::{Error, ErrorKind};

/// What is to be done about a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Another endpoint may do better.
    Elsewhere {
        /// Whether the request may have been carried out.
        maybe_applied: bool,
    },
    /// Our login has to be made again.
    LogIn,
    /// None: it is the answer.
    None,
}

pub(crate) fn remedy(status: &Status) -> Remedy {
    let said = status.message();
    let elsewhere = Remedy::Elsewhere {
        maybe_applied: !never_left(status) && !is_too_much(status),
    };
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => elsewhere,
        Code::ResourceExhausted if is_too_much(status) => elsewhere,
        // What the transport says; and all that the server has no code for, such as "raft proposal dropped", which it says
        // while its leader changes.
        Code::Unknown | Code::Internal => elsewhere,
        Code::FailedPrecondition if said.contains("not leader") => elsewhere,
        Code::Unauthenticated => Remedy::LogIn,
        // A token from before the users were changed, and none at all, from while nobody asked for one.
        Code::InvalidArgument if said.contains("auth store is old") || is_nobody(said) => {
            Remedy::LogIn
        }
        _ => Remedy::None,
    }
}

/// The member has more to do than it takes on, and has not begun with this.
fn is_too_much(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("too many requests")
}

fn is_nobody(said: &str) -> bool {
    said.contains("user name is empty")
}

/// There is nothing to log in to.
pub(crate) fn is_without_passwords(status: &Status) -> bool {
    status.message().contains("authentication is not enabled")
}

/// No connection was made at all.
fn never_left(status: &Status) -> bool {
    causes(status).any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        kind == Some(io::ErrorKind::ConnectionRefused)
            || cause.to_string().contains("connect error")
    })
}

/// The lease that a write named has ended.
pub(crate) fn is_lease_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

/// An answer that no other endpoint would give otherwise.
pub(crate) fn of_answer(status: Status) -> Error {
    let said = status.message().to_owned();
    let error = match status.code() {
        Code::PermissionDenied => Error::new(ErrorKind::Denied, "this user may not do that")
            .advise("grant its role readwrite on the keys under the prefix: etcdctl role grant-permission ROLE --prefix=true readwrite PREFIX"),
        Code::Unauthenticated => denied(),
        Code::InvalidArgument if said.contains("authentication failed") || is_nobody(&said) => denied(),
        Code::ResourceExhausted if said.contains("space exceeded") => {
            Error::new(ErrorKind::EngineUnfit, "the server has no space left (alarm NOSPACE)")
                .advise("compact and defragment it, or raise --quota-backend-bytes, then: etcdctl alarm disarm")
        }
        Code::Unimplemented => Error::new(ErrorKind::EngineUnfit, "what answers there is not etcd 3.4 or newer")
            .advise("check the address and the port"),
        _ => Error::new(ErrorKind::Unexpected, format!("the server says: {said}"))
            .of_unknown_effect(),
    };
    error.caused_by(status)
}

/// An error of the first request: whoever is at that address may be no etcd.
pub(crate) fn of_greeting(refused: Refused) -> Error {
    match is_babble(&refused.said) {
        true => Error::new(
            ErrorKind::EngineUnfit,
            "what answers there does not speak HTTP/2, as etcd does",
        )
        .advise("check the address and the port")
        .caused_by(refused.said),
        false => refused.into(),
    }
}

/// Whether the other side speaks another protocol.
pub(crate) fn is_babble(status: &Status) -> bool {
    let signs = ["frame with invalid size", "unspecific protocol error"];
    causes(status).any(|cause| {
        let said = cause.to_string();
        signs.iter().any(|sign| said.contains(sign))
    })
}

fn denied() -> Error {
    Error::new(
        ErrorKind::Denied,
        "the server refuses this user or password",
    )
    .advise("check them: etcd://user:password@host:2379")
}

/// No endpoint has answered in time; with what the last one came to.
pub(crate) fn unreachable(status: &Status, maybe_applied: bool) -> Error {
    let cause = root_cause(status);
    let is_from_transport = status.source().is_some();
    let (what, advice) = match status.code() {
        _ if status.message().contains("no leader") => (
            "the cluster has no leader: it has lost its quorum".to_owned(),
            MAJORITY,
        ),
        _ if cause.contains("invalid peer certificate") => (
            format!("the server's certificate is not trusted: {cause}"),
            "name the certificates to trust, ?ca=…, and the host as the server's certificate has it",
        ),
        _ if cause.contains("corrupt message") || cause.contains("handshake eof") => (
            "what answers there does not speak TLS".to_owned(),
            "write etcd://…, or give the server its certificates",
        ),
        _ if is_from_transport && is_closed(status) => (
            format!("the connection was closed: {cause}"),
            "check that a majority of the members is up; one with TLS wants etcds://…, and maybe a certificate that it trusts: ?cert=…&key=…",
        ),
        Code::ResourceExhausted => (
            "the cluster has too many requests to answer".to_owned(),
            "try again later, or see why it is so slow",
        ),
        Code::DeadlineExceeded | Code::Cancelled => (SILENCE.to_owned(), MAJORITY),
        // How a member says that it gave up on our behalf.
        Code::Unknown if status.message().contains("context ") => (SILENCE.to_owned(), MAJORITY),
        Code::Unknown | Code::Internal if !is_from_transport => {
            (format!("no endpoint can do it: {cause}"), MAJORITY)
        }
        _ => (format!("no endpoint can be reached: {cause}"), MAJORITY),
    };
    let error = Error::new(ErrorKind::Unreachable, what)
        .advise(advice)
        .caused_by(status.clone());
    match maybe_applied {
        true => error.of_unknown_effect(),
        false if is_too_much(status) => error.because_busy(),
        false => error,
    }
}

const SILENCE: &str = "no endpoint answered in time";

const MAJORITY: &str = "check that a majority of the members is running and that the addresses are right, or raise ?timeout=";

/// The other side has ended the connection, which is all that a server without patience for our certificate, or for its
/// absence, may let us see.
fn is_closed(status: &Status) -> bool {
    causes(status).any(|cause| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let closed = matches!(
            kind,
            Some(
                io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::UnexpectedEof
            )
        );
        let said = cause.to_string();
        closed || said.contains("fatal alert") || said.contains("connection closed")
    })
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

fn root_cause(status: &Status) -> String {
    let last = causes(status).last().map(ToString::to_string);
    last.unwrap_or_else(|| status.message().to_owned())
}

/// An answer that does not fit the question.
pub(crate) fn nonsense() -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "the server gave an answer that makes no sense",
    )
    .of_unknown_effect()
}

/// A revision that is no token.
pub(crate) fn too_many_revisions() -> Error {
    Error::new(
        ErrorKind::EngineUnfit,
        "the cluster's revision has passed 2^53",
    )
    .advise("use a new cluster")
    .of_unknown_effect()
}

/// The revision that was asked for is no longer kept.
pub(crate) fn is_compacted(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("compacted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Effect;

    /// As etcd 3.4 says it, and whether the request may have been carried out then.
    #[test]
    fn refusals_while_the_leader_changes_are_tried_again() {
        for (code, said) in [
            (Code::Unknown, "raft proposal dropped"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
            ),
            (Code::FailedPrecondition, "etcdserver: not leader"),
            (Code::Unknown, "context deadline exceeded"),
        ] {
            let status = Status::new(code, said);
            let again = Remedy::Elsewhere {
                maybe_applied: true,
            };
            assert_eq!(remedy(&status), again, "{said}");
            let error = unreachable(&status, true);
            assert_eq!(error.effect(), Effect::Unknown, "{said}");
            assert!(!error.is_busy(), "{said}");
        }
    }

    #[test]
    fn overloaded_cluster_is_busy_and_has_done_nothing() {
        let status = Status::new(Code::ResourceExhausted, "etcdserver: too many requests");
        let again = Remedy::Elsewhere {
            maybe_applied: false,
        };
        assert_eq!(remedy(&status), again);
        assert!(unreachable(&status, false).is_busy());
        // Not if an earlier try was not answered.
        assert!(!unreachable(&status, true).is_busy());
    }

    #[test]
    fn what_would_not_be_otherwise_elsewhere_is_final() {
        for (code, said) in [
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
            ),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
            (Code::NotFound, "etcdserver: requested lease not found"),
        ] {
            assert_eq!(remedy(&Status::new(code, said)), Remedy::None, "{said}");
        }
    }
}
