//! What etcd can say, as errors that tell what to do.

use std::error::Error as _;
use std::io;

use tonic::{Code, Status};

use crate::error::{Error, ErrorKind};

/// What is to be done about a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Another endpoint may do better.
    Elsewhere {
        /// Whether the request may have been carried out.
        may_have_happened: bool,
    },
    /// Our login has to be made again.
    LogIn,
    /// None: it is the answer.
    None,
}

pub(crate) fn remedy(status: &Status) -> Remedy {
    let said = status.message();
    let elsewhere = Remedy::Elsewhere {
        may_have_happened: !never_left(status),
    };
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => elsewhere,
        Code::ResourceExhausted if said.contains("too many requests") => elsewhere,
        // What the transport says; the server's own have no source.
        Code::Unknown | Code::Internal if status.source().is_some() => elsewhere,
        // How a member says that it gave up on our behalf.
        Code::Unknown if said.contains("context ") => elsewhere,
        Code::Unauthenticated => Remedy::LogIn,
        Code::InvalidArgument if said.contains("auth store is old") => Remedy::LogIn,
        _ => Remedy::None,
    }
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
        Code::InvalidArgument if said.contains("authentication failed") || said.contains("user name is empty") => denied(),
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

fn denied() -> Error {
    Error::new(
        ErrorKind::Denied,
        "the server refuses this user or password",
    )
    .advise("check them: etcd://user:password@host:2379")
}

/// No endpoint has answered in time; with what the last one came to.
pub(crate) fn unreachable(status: &Status, may_have_happened: bool) -> Error {
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
            "see that a majority of the members is up; one with TLS wants etcds://…, and maybe a certificate that it trusts: ?cert=…&key=…",
        ),
        Code::DeadlineExceeded | Code::Cancelled => (SILENCE.to_owned(), MAJORITY),
        Code::Unknown if !is_from_transport => (SILENCE.to_owned(), MAJORITY),
        _ => (format!("no endpoint can be reached: {cause}"), MAJORITY),
    };
    let error = Error::new(ErrorKind::Unreachable, what)
        .advise(advice)
        .caused_by(status.clone());
    match may_have_happened {
        true => error.of_unknown_effect(),
        false => error,
    }
}

const SILENCE: &str = "no endpoint answered in time";

const MAJORITY: &str =
    "see that a majority of the members is up, and the addresses right, or raise ?timeout=";

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
