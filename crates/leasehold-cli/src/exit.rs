//! Exit codes and final error messages: the only place where exit codes are decided.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use leasehold::engine::doctor::{Report, Verdict};
use leasehold::{Error, ErrorKind};
use nix::sys::signal::Signal;

use crate::args;
use crate::output;

/// The length of a claim id in hexadecimal digits.
const CLAIM_DIGITS: usize = 32;

/// The engine cannot be trusted with locks.
const UNFIT: i32 = 78;

/// The exit code of a command that succeeded, or why it failed.
pub(crate) type Outcome<T = i32> = Result<T, Failure>;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are invalid, or request help.
    Usage(clap::Error),
    /// An error of the library.
    Locks(Error),
    /// CMD could not be started.
    Start {
        /// CMD.
        command: String,
        /// Why.
        cause: io::Error,
    },
    /// There is no such record.
    NoRecord {
        /// Its key.
        key: String,
    },
    /// A signal ended it; no message is printed.
    Signal(Signal),
    /// The reader of stdout has closed it.
    StdoutClosed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Locks(error)
    }
}

/// An error of the operating system that is not the user's fault.
pub(crate) fn unexpected(what: &str, cause: impl Into<io::Error>) -> Failure {
    let cause = cause.into();
    Error::new(ErrorKind::Unexpected, format!("{what}: {cause}"))
        .caused_by(cause)
        .into()
}

/// CMD's exit code, as shells report it.
pub(crate) fn of_command(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, signal) => killed_by(signal.unwrap_or_default()),
    }
}

/// What a report comes to.
pub(crate) fn of_report(report: &Report, strict: bool) -> i32 {
    match (report.verdict, report.warns()) {
        (Verdict::Unfit, _) => UNFIT,
        (_, true) if strict => UNFIT,
        (_, true) => 1,
        (_, false) => 0,
    }
}

fn killed_by(signal: i32) -> i32 {
    128 + signal
}

/// Prints the error to stderr, if there is one; returns the exit code.
pub(crate) fn report(outcome: Outcome) -> i32 {
    let failure = match outcome {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    let (code, kind) = failure.code_and_kind();
    let json = args::json_was_asked_for();
    match failure {
        Failure::Usage(error) if code == 0 || (!json && !shows_claim(&error)) => {
            let _ = error.print();
        }
        Failure::Usage(error) => {
            let text = without_claims(&error.to_string());
            let what = text.lines().next().unwrap_or_default();
            let what = what.strip_prefix("error: ").unwrap_or(what);
            report_plain(json, kind, code, what, "run `leasehold --help`");
        }
        Failure::Locks(error) => {
            let context = output::ErrorContext {
                lock: error.lock(),
                engine: error.engine(),
                operation: error.operation(),
            };
            let message = if json {
                error.what().to_owned()
            } else {
                error.to_string()
            };
            output::error(json, kind, code, &message, &context, error.advice());
        }
        Failure::Start { command, cause } => {
            let what = format!("cannot start {command:?}: {cause}");
            report_plain(json, kind, code, &what, "check the command after --");
        }
        Failure::NoRecord { key } => {
            let what = format!("no record {key:?}");
            let advice = "check the key and the URL, or write it with `leasehold store put`";
            report_plain(json, kind, code, &what, advice);
        }
        Failure::Signal(_) | Failure::StdoutClosed => {}
    }
    code
}

/// Prints an error that is about no lock or engine.
fn report_plain(json: bool, kind: &str, code: i32, what: &str, advice: &str) {
    let text = format!("{what}; {advice}");
    let message = if json { what } else { &text };
    let context = output::ErrorContext::default();
    output::error(json, kind, code, message, &context, Some(advice));
}

fn shows_claim(error: &clap::Error) -> bool {
    let text = error.to_string();
    without_claims(&text) != text
}

/// Hides claim ids: clap quotes an argument that it cannot parse, and that may be a claim.
fn without_claims(text: &str) -> String {
    let is_digit = |c: char| c.is_ascii_hexdigit();
    text.split_inclusive(|c| !is_digit(c))
        .map(|part| {
            let digits = part.trim_end_matches(|c| !is_digit(c));
            match digits.len() >= CLAIM_DIGITS {
                true => part.replacen(digits, "...", 1),
                false => part.to_owned(),
            }
        })
        .collect()
}

impl Failure {
    /// The exit code, and the `kind` of the JSON error.
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
                ErrorKind::EngineUnfit => (UNFIT, "engine_unfit"),
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
    fn each_kind_has_its_exit_code() {
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
