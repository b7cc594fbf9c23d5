//! What goes to stdout and stderr. Stdout carries results and nothing else.

use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde_json::json;

use crate::exit::{Failure, Outcome, unexpected};

pub(crate) mod age;
pub(crate) mod lock;
pub(crate) mod table;

/// Prints a result as a line of text.
pub(crate) fn line(text: &str) -> Outcome<()> {
    raw(format!("{text}\n").as_bytes())
}

/// Prints a result as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> Outcome<()> {
    match serde_json::to_string(value) {
        Ok(text) => line(&text),
        Err(cause) => Err(unexpected("cannot write JSON", cause)),
    }
}

/// Prints a result as it is. A reader that has gone away is no failure.
pub(crate) fn raw(bytes: &[u8]) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::BrokenPipe => Failure::StdoutClosed,
            _ => unexpected("cannot write to stdout", cause),
        })
}

/// Fails if nobody reads stdout any more: for those who may have nothing to print for a long time.
pub(crate) fn still_read() -> Outcome<()> {
    let stdout = io::stdout();
    let mut polled = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let gone = PollFlags::POLLERR | PollFlags::POLLNVAL;
    match poll(&mut polled, PollTimeout::ZERO) {
        Ok(_)
            if polled[0]
                .revents()
                .is_some_and(|events| events.intersects(gone)) =>
        {
            Err(Failure::StdoutClosed)
        }
        _ => Ok(()),
    }
}

/// Says something on stderr that is neither a result nor the end.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "leasehold: {text}");
}

/// Where an error happened.
#[derive(Debug, Default)]
pub(crate) struct Place<'a> {
    pub(crate) lock: Option<&'a str>,
    pub(crate) engine: Option<&'a str>,
    pub(crate) operation: Option<&'a str>,
}

/// Says on stderr what went wrong. For people, `message` says all of it.
pub(crate) fn error(
    json: bool,
    kind: &str,
    code: i32,
    message: &str,
    place: &Place<'_>,
    advice: Option<&str>,
) {
    let text = match json {
        true => json!({"error": {
            "kind": kind,
            "exit_code": code,
            "message": message,
            "operation": place.operation,
            "lock": place.lock,
            "engine": place.engine,
            "advice": advice,
        }})
        .to_string(),
        false => format!("leasehold: {message}"),
    };
    let _ = writeln!(io::stderr(), "{text}");
}
