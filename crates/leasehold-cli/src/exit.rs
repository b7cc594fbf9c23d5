//! How it ended: the one place where exit codes are decided.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use leasehold::{Error, ErrorKind};
use nix::sys::signal::Signal;

use crate::args;
use crate::output;

/// A command's exit code, or why it has none of its own.
pub(crate) type Outcome<T = i32> = Result<T, Failure>;

/// Why it did not come to a good end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are wrong, or ask for help.
    Usage(clap::Error),
    /// The lock, the lease or the engine.
    Locks(Error),
    /// CMD could not be started.
    Start {
        /// CMD.
        command: String,
        /// Why not.
        cause: io::Error,
    },
    /// A record that was to be read is not there.
    NoRecord {
        /// Its key.
        key: String,
    },
    /// A signal ended it; whoever sent that needs no message.
    Signal(Signal),
    /// Whoever read stdout has seen enough.
    StdoutClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Locks(error)
    }
}

/// Something that should work on any system did not.
pub(crate) fn unexpected(what: &str, cause: impl Into<io::Error>) -> Failure {
    let cause = cause.into();
    Error::new(ErrorKind::Unexpected, format!("{what}: {cause}"))
        .caused_by(cause)
        .into()
}

/// The exit code of an ended CMD, as shells tell it.
pub(crate) fn of_command(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => killed_by(signal.unwrap_or_default()),
    }
}

fn killed_by(signal: i32) -> i32 {
    128 + signal
}

/// Says on stderr what went wrong, if anything did, and returns the exit code.
pub(crate) fn report(outcome: Outcome) -> i32 {
    let failure = match outcome {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    let (code, kind) = failure.code_and_kind();
    let json = args::json_was_asked_for();
    match failure {
        Failure::Usage(error) if code == 0 || !json => {
            let _ = error.print();
        }
        Failure::Usage(error) => {
            let text = error.to_string();
            let message = text.lines().next().unwrap_or_default();
            let message = message.strip_prefix("error: ").unwrap_or(message);
            let advice = Some("see leasehold --help");
            output::error(json, kind, code, message, &output::Place::default(), advice);
        }
        Failure::Locks(error) => {
            let place = output::Place {
                lock: error.lock().map(|lock| lock.as_str()),
                engine: error.engine(),
                operation: error.operation(),
            };
            let message = if json {
                error.what().to_owned()
            } else {
                error.to_string()
            };
            output::error(json, kind, code, &message, &place, error.advice());
        }
        Failure::Start { command, cause } => {
            let message = format!("cannot start {command:?}: {cause}");
            let advice = Some("check the command behind the --");
            output::error(
                json,
                kind,
                code,
                &message,
                &output::Place::default(),
                advice,
            );
        }
        Failure::NoRecord { key } => {
            let message = format!("there is no record {key:?}");
            let advice = Some("check the key and the URL; `leasehold store put` writes one");
            let place = output::Place::default();
            output::error(json, kind, code, &message, &place, advice);
        }
        Failure::Signal(_) | Failure::StdoutClosed => {}
    }
    code
}

impl Failure {
    /// The exit code, and the same in a word for JSON.
    fn code_and_kind(&self) -> (i32, &'static str) {
        match self {
            Failure::Usage(error) => (if error.use_stderr() { 64 } else { 0 }, "usage"),
            Failure::Locks(error) => match error.kind() {
                ErrorKind::InvalidName => (64, "invalid_name"),
                ErrorKind::InvalidConfig => (64, "invalid_config"),
                ErrorKind::Unsupported => (64, "unsupported"),
                ErrorKind::Unreachable => (69, "unreachable"),
                ErrorKind::TimedOut => (75, "timed_out"),
                ErrorKind::LeaseLost => (76, "lease_lost"),
                ErrorKind::Denied => (77, "denied"),
                ErrorKind::EngineUnfit => (78, "engine_unfit"),
                _ => (70, "unexpected"),
            },
            Failure::Start { cause, .. } => match cause.kind() {
                io::ErrorKind::NotFound => (127, "command_not_found"),
                _ => (126, "command_not_executable"),
            },
            Failure::NoRecord { .. } => (66, "no_record"),
            Failure::Signal(signal) => (killed_by(*signal as i32), "signal"),
            Failure::StdoutClosed => (0, "stdout_closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_for_each_kind() {
        let table = [
            (ErrorKind::InvalidName, 64),
            (ErrorKind::InvalidConfig, 64),
            (ErrorKind::Unsupported, 64),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Unexpected, 70),
            (ErrorKind::TimedOut, 75),
            (ErrorKind::LeaseLost, 76),
            (ErrorKind::Denied, 77),
            (ErrorKind::EngineUnfit, 78),
        ];
        for (kind, code) in table {
            let failure = Failure::from(Error::new(kind, "x"));
            assert_eq!(failure.code_and_kind().0, code, "{kind:?}");
        }
        assert_eq!(of_command(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(of_command(ExitStatus::from_raw(15)), 143);
    }
}
