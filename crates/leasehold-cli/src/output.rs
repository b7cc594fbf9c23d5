//! Writes to stdout and stderr. Stdout carries results and nothing else.

use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde_json::json;

use crate::exit::{Failure, Outcome, unexpected};

pub(crate) mod age;
pub(crate) mod lock;
mod stderr_writer;
pub(crate) mod table;

/// Prints a result as a line of text.
pub(crate) fn line(text: &str) -> Outcome<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints a result as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Outcome<()> {
    match serde_json::to_string(value) {
        Ok(text) => line(&text),
        Err(cause) => Err(unexpected("cannot write JSON", cause)),
    }
}

/// Prints a result as it is.
pub(crate) fn bytes(bytes: &[u8]) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::BrokenPipe => Failure::StdoutClosed,
            _ => unexpected("cannot write to stdout", cause),
        })
}

/// Fails if the reader of stdout has closed it: for commands that may print nothing for a long time.
pub(crate) fn check_stdout() -> Outcome<()> {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLNVAL;
    match poll(&mut polled, PollTimeout::ZERO) {
        Ok(_)
            if polled[0]
                .revents()
                .is_some_and(|events| events.intersects(closed)) =>
        {
            Err(Failure::StdoutClosed)
        }
        _ => Ok(()),
    }
}

/// Prints a warning to stderr. Never blocks, even if nobody reads stderr: a lease may be held and has to be renewed.
pub(crate) fn warn(text: &str) {
    stderr_writer::write(format!("leasehold: {text}\n"));
}

/// Waits until all warnings are written. Call this when no lease is held any more.
pub(crate) fn flush_warnings() {
    stderr_writer::flush();
}

/// What an error is about.
#[derive(Debug, Default)]
pub(crate) struct ErrorContext<'a> {
    pub(crate) lock: Option<&'a str>,
    pub(crate) engine: Option<&'a str>,
    pub(crate) operation: Option<&'a str>,
}

/// Prints an error to stderr. In text form, `message` contains everything.
pub(crate) fn error(
    json: bool,
    kind: &str,
    code: i32,
    message: &str,
    context: &ErrorContext<'_>,
    advice: Option<&str>,
) {
    let text = match json {
        true => json!({"error": {
            "kind": kind,
            "exit_code": code,
            "message": message,
            "operation": context.operation,
            "lock": context.lock,
            "engine": context.engine,
            "advice": advice,
        }})
        .to_string(),
        false => format!("leasehold: {message}"),
    };
    let _ = writeln!(io::stderr(), "{text}");
}
