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
    let mut cause = status.source();
    while let Some(error) = cause {
        let refused = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if refused == Some(io::ErrorKind::ConnectionRefused)
            || error.to_string().contains("connect error")
        {
            return true;
        }
        cause = error.source();
    }
    false
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
    let what = match status.code() {
        _ if status.message().contains("no leader") => {
            "the cluster has no leader: it has lost its quorum".to_owned()
        }
        Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
            "no endpoint answered in time".to_owned()
        }
        _ => format!("no endpoint can be reached: {}", root_cause(status)),
    };
    let error = Error::new(ErrorKind::Unreachable, what)
        .advise(
            "see that a majority of the members is up, and the addresses right, or raise ?timeout=",
        )
        .caused_by(status.clone());
    match may_have_happened {
        true => error.of_unknown_effect(),
        false => error,
    }
}

fn root_cause(status: &Status) -> String {
    let mut said = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        said = error.to_string();
        cause = error.source();
    }
    said
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
