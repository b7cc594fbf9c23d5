//! What Redis can say, as errors that tell what to do.

use redis::{ErrorKind as Redis, RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// An error of a request to this server.
pub(crate) fn of_request(cause: RedisError) -> Error {
    let said = cause.to_string();
    let code = cause.code().unwrap_or_default().to_owned();
    let error = match cause.kind() {
        _ if matches!(code.as_str(), "NOAUTH" | "WRONGPASS") => {
            Error::new(ErrorKind::Denied, "the server refuses this user or password")
                .advise("check them: redis://user:password@host")
        }
        Redis::AuthenticationFailed => {
            Error::new(ErrorKind::Denied, "the server refuses this user or password")
                .advise("check them: redis://user:password@host")
        }
        Redis::Server(ServerErrorKind::NoPerm) => {
            Error::new(ErrorKind::Denied, format!("this user may not do that: {said}"))
                .advise("allow it EVALSHA, SCRIPT, PUBLISH, SUBSCRIBE and the keys under the prefix (ACL SETUSER)")
        }
        Redis::Server(ServerErrorKind::ReadOnly) => unfit("the server is a read-only replica")
            .advise("connect to the primary"),
        Redis::Server(
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot | ServerErrorKind::ClusterDown,
        ) => cluster(),
        Redis::RESP3NotSupported => unfit("the server is older than Redis 6.2").advise("use 6.2 or newer"),
        Redis::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::TryAgain) => {
            Error::new(ErrorKind::Unreachable, "the server is not ready").advise("try again in a moment")
        }
        _ if code == "WRONGTYPE" || said.contains("WRONGTYPE") => {
            unfit("the lock's key holds something else than a lock")
                .advise("use another prefix (?prefix=…), or another name")
        }
        _ if code == "OOM" || said.contains("OOM ") => {
            Error::new(ErrorKind::Unreachable, "the server is out of memory").advise("raise maxmemory, or free some")
        }
        _ if said.contains("DB index is out of range") => {
            Error::new(ErrorKind::InvalidConfig, "the server has no database of this number")
                .advise("use a lower one, or raise databases in the server's configuration")
        }
        Redis::Server(_) | Redis::Extension => {
            Error::new(ErrorKind::Unexpected, format!("the server says: {said}"))
        }
        Redis::Parse => unfit("what answers there is not a Redis server").advise("check the address and the port")
            .of_unknown_effect(),
        Redis::InvalidClientConfig => Error::new(ErrorKind::InvalidConfig, said).advise("mend the URL"),
        _ if cause.is_timeout() => Error::new(ErrorKind::Unreachable, "the server did not answer in time")
            .advise("see that it is up and not overloaded, or raise ?timeout=")
            .of_unknown_effect(),
        _ if cause.is_connection_refusal() => {
            Error::new(ErrorKind::Unreachable, "the server cannot be reached").advise("see that it is up, and the address right")
        }
        _ => Error::new(ErrorKind::Unreachable, format!("the connection failed: {said}"))
            .advise("see that the server is up, and the address right")
            .of_unknown_effect(),
    };
    error.caused_by(cause)
}

pub(crate) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
}

pub(crate) fn cluster() -> Error {
    unfit("the server runs in cluster mode, where a failover can lose a lock and keys cannot be used together")
        .advise("use a single server, or several independent ones")
}

/// A reply that no script of ours gives.
pub(crate) fn nonsense(reply: &[String]) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        format!(
            "the server gave an answer that makes no sense: {:?}",
            reply.first()
        ),
    )
    .of_unknown_effect()
}
