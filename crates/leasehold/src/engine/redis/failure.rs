//! What Redis can say, as errors that tell what to do.

use std::error::Error as _;

use redis::{ErrorKind as Redis, RedisError, ServerErrorKind};

use crate::error::{Effect, Error, ErrorKind};

/// An error of a request to this server.
pub(crate) fn of_request(cause: RedisError) -> Error {
    match describe(cause) {
        (error, Effect::None) => error,
        (error, Effect::Unknown) => error.of_unknown_effect(),
    }
}

/// An error of making a connection: nothing was asked for yet.
pub(crate) fn of_connect(cause: RedisError) -> Error {
    describe(cause).0
}

/// Whether the connection was lost with the answer to a request: by the server, the network, or the end of the runtime that it was made on. The next
/// request makes another one.
pub(crate) fn is_lost_connection(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    error.effect() == Effect::Unknown && cause.is_some_and(RedisError::is_connection_dropped)
}

/// An error of an attempt. If the connection was lost, a claim that waits attempts again: over another connection, or it fails for want of one.
pub(crate) fn of_attempt(error: Error) -> Error {
    match is_lost_connection(&error) {
        true => error.because_busy(),
        false => error,
    }
}

/// With what a request may have done.
fn describe(cause: RedisError) -> (Error, Effect) {
    let said = without_arguments(&cause);
    let code = cause.code().unwrap_or_default().to_owned();
    let mut effect = Effect::None;
    let error = match cause.kind() {
        _ if matches!(code.as_str(), "NOAUTH" | "WRONGPASS") => denied(),
        Redis::AuthenticationFailed => denied(),
        // Within a script, whose earlier commands have been carried out: what servers before Redis 7 say, and since.
        _ if said.contains("user executing the script can't")
            || said.contains("ACL failure in script") =>
        {
            effect = Effect::Unknown;
            not_permitted(&said)
        }
        Redis::Server(ServerErrorKind::NoPerm) => not_permitted(&said),
        Redis::Server(ServerErrorKind::ReadOnly) => {
            unfit("the server is a read-only replica").advise("connect to the primary")
        }
        Redis::Server(
            ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::CrossSlot
            | ServerErrorKind::ClusterDown,
        ) => cluster(),
        // Within a script too: a key of it was on its way to another node.
        _ if said.contains("non local key") || said.contains("while the cluster is down") => {
            effect = Effect::Unknown;
            busy("the lock's slot is on its way to another node").advise("try again in a moment")
        }
        Redis::RESP3NotSupported => {
            unfit("the server is older than Redis 6.2").advise("use 6.2 or newer")
        }
        Redis::Server(ServerErrorKind::BusyLoading) => {
            busy("the server is still reading its memory from disk").advise("try again in a moment")
        }
        Redis::Server(ServerErrorKind::MasterDown | ServerErrorKind::TryAgain) => {
            Error::new(ErrorKind::Unreachable, "the server is not ready")
                .advise("try again in a moment")
        }
        _ if code == "BUSY" => busy("the server is busy with a script that does not end")
            .advise("wait for it, or end it with SCRIPT KILL"),
        _ if said.contains("max number of clients") => too_many_connections(),
        _ if code == "WRONGTYPE" || said.contains("WRONGTYPE") => {
            unfit("the lock's key holds something else than a lock")
                .advise("use another prefix (?prefix=…), or another name")
        }
        // A script is refused before it has changed anything, or carried out to its end.
        _ if code == "OOM" || said.contains("OOM ") => {
            busy("the server is out of memory").advise("raise maxmemory, or free some")
        }
        _ if code == "NOREPLICAS" || said.contains("NOREPLICAS ") => {
            busy("the server has too few replicas to write (min-replicas-to-write)")
                .advise("bring its replicas back")
        }
        _ if code == "MISCONF" || said.contains("MISCONF ") => {
            busy("the server cannot write its memory to disk, and takes no writes (MISCONF)")
                .advise("see its log and its disk, or set stop-writes-on-bgsave-error to no")
        }
        _ if said.contains("DB index is out of range") => Error::new(
            ErrorKind::InvalidConfig,
            "the server has no database of this number",
        )
        .advise("use a lower one, or raise databases in the server's configuration"),
        Redis::Server(_) | Redis::Extension => {
            Error::new(ErrorKind::Unexpected, format!("the server says: {said}"))
        }
        Redis::Parse => {
            effect = Effect::Unknown;
            unfit("what answers there is not a Redis server")
                .advise("check the address and the port")
        }
        Redis::InvalidClientConfig => {
            Error::new(ErrorKind::InvalidConfig, said).advise("mend the URL")
        }
        _ if cause.is_timeout() => {
            effect = Effect::Unknown;
            Error::new(ErrorKind::Unreachable, "the server did not answer in time")
                .advise("check that it is running and not overloaded, or raise ?timeout=")
        }
        _ if cause.is_connection_refusal() => {
            Error::new(ErrorKind::Unreachable, "the server cannot be reached")
                .advise("check that it is running and that the address is right")
        }
        _ => {
            effect = Effect::Unknown;
            Error::new(
                ErrorKind::Unreachable,
                format!("the connection failed: {said}"),
            )
            .advise("check that the server is running and that the address is right")
        }
    };
    (with_cause(error, cause), effect)
}

/// How a server goes on that repeats the arguments of a command which it does not know: a password may be among them.
const REPEATS_ARGUMENTS: &str = "with args beginning with";

fn without_arguments(cause: &RedisError) -> String {
    let said = cause.to_string();
    match said.split_once(REPEATS_ARGUMENTS) {
        Some((said, _)) => said.trim_end_matches([' ', ',']).to_owned(),
        None => said,
    }
}

/// The error with its cause, unless that repeats the arguments of a command.
pub(crate) fn with_cause(error: Error, cause: RedisError) -> Error {
    match cause.to_string().contains(REPEATS_ARGUMENTS) {
        true => error,
        false => error.caused_by(cause),
    }
}

fn not_permitted(said: &str) -> Error {
    Error::new(
        ErrorKind::Denied,
        format!("this user may not do that: {said}"),
    )
    .advise("allow it EVALSHA, SCRIPT, BLPOP, PUBLISH, PUBSUB, SUBSCRIBE and the keys under the prefix (ACL SETUSER)")
}

fn denied() -> Error {
    Error::new(
        ErrorKind::Denied,
        "the server refuses this user or password",
    )
    .advise("check them: redis://user:password@host")
}

/// A limit of the server: it has done nothing, and may do it later.
fn busy(what: &str) -> Error {
    Error::new(ErrorKind::Unreachable, what).because_busy()
}

/// Another server takes its place, or will.
pub(crate) fn no_longer_primary() -> Error {
    busy("the server is no longer the primary").advise("try again in a moment")
}

pub(crate) fn too_many_connections() -> Error {
    busy("the server takes no more connections").advise("raise maxclients, or see who has so many")
}

pub(crate) fn unfit(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::EngineUnfit, what)
}

pub(crate) fn cluster() -> Error {
    unfit("the server runs in cluster mode, and has only some of the locks")
        .advise("write redis+cluster://host:6379, or use a single server")
}

pub(crate) fn not_a_cluster() -> Error {
    unfit("the server is not in cluster mode")
        .advise("write redis://host:6379, or name the nodes of a cluster")
}

/// What another version of this library keeps under the prefix.
pub(crate) fn other_layout() -> Error {
    unfit("the server has locks of an older version under this prefix, which keeps them in another way")
        .advise("end the programs of that version and delete the key that is the prefix and \"\\x01register\", or use another prefix (?prefix=…)")
}

/// None of several servers could be asked: the most telling of their errors, or all of them.
pub(crate) fn of_all(mut failed: Vec<Error>, nobody_answers: &str) -> Error {
    let telling = [
        ErrorKind::Denied,
        ErrorKind::EngineUnfit,
        ErrorKind::InvalidConfig,
    ];
    let telling = telling
        .iter()
        .find_map(|kind| failed.iter().position(|error| error.kind() == *kind));
    if let Some(nth) = telling {
        return failed.swap_remove(nth);
    }
    let mut wrong: Vec<_> = failed.iter().map(Error::what).collect();
    wrong.sort_unstable();
    let what = format!("{nobody_answers} ({})", wrong.join("; "));
    Error::new(ErrorKind::Unreachable, what)
        .advise("check that they are running and that their addresses are right")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: ServerErrorKind) -> RedisError {
        (Redis::Server(kind), "the server says so").into()
    }

    #[test]
    fn what_a_server_refuses_for_a_while_is_asked_again() {
        let loading = of_request(said(ServerErrorKind::BusyLoading));
        assert!(loading.is_busy() && loading.effect() == Effect::None);
        assert!(!of_request(said(ServerErrorKind::ReadOnly)).is_busy());
    }

    #[test]
    fn server_that_cannot_save_has_done_nothing() {
        let refused = RedisError::from((
            Redis::Extension,
            "an error was signalled by the server",
            "MISCONF Redis is configured to save RDB snapshots".to_owned(),
        ));
        let error = of_request(refused);
        assert!(error.is_busy() && error.effect() == Effect::None, "{error}");
    }

    #[test]
    fn a_connection_that_is_cut_leaves_the_effect_open_unless_nothing_was_asked() {
        let cut = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(of_request(cut()).effect(), Effect::Unknown);
        assert_eq!(of_connect(cut()).effect(), Effect::None);
    }

    #[test]
    fn attempt_is_repeated_if_its_connection_was_lost() {
        let failed = |kind| RedisError::from(std::io::Error::from(kind));
        let cut = || failed(std::io::ErrorKind::BrokenPipe);
        assert!(of_attempt(of_request(cut())).is_busy());
        let silent = failed(std::io::ErrorKind::TimedOut);
        for other in [of_connect(cut()), of_request(silent)] {
            assert!(!of_attempt(other).is_busy());
        }
    }

    /// As Redis 6.2 and 7 say it.
    #[test]
    fn denial_within_a_script_is_of_unknown_effect() {
        let old = "The user executing the script can't";
        let new = "ACL failure in script: User app has no permissions to";
        for (code, text) in [
            ("ERR", format!("{old} run this command or subcommand")),
            (
                "ERR",
                format!("{old} access at least one of the keys mentioned in the command arguments"),
            ),
            (
                "ERR",
                format!("{old} publish to the channel mentioned in the command"),
            ),
            ("NOPERM", format!("{new} run the 'hset' command")),
            (
                "NOPERM",
                format!("{new} access one of the keys used as arguments"),
            ),
        ] {
            let said = format!("-{code} {text} script: 5d1, on @user_script:12.\r\n");
            let refused =
                redis::parse_redis_value(said.as_bytes()).and_then(|value| value.extract_error());
            let error = of_request(refused.unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert_eq!(error.effect(), Effect::Unknown, "{error}");
        }
        let refused = redis::parse_redis_value(
            b"-NOPERM User app has no permissions to run the 'evalsha' command\r\n",
        );
        let error = of_request(refused.and_then(|value| value.extract_error()).unwrap_err());
        assert_eq!(
            (error.kind(), error.effect()),
            (ErrorKind::Denied, Effect::None)
        );
    }
}
