//! CMD under one lease: told what it holds, started, watched to its end.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Lease, LeaseView, Locks};
use nix::sys::signal::Signal;

use crate::child::{self, Child};
use crate::command::Context;
use crate::exit::{Failure, Outcome};
use crate::held::{self, Held};
use crate::output;
use crate::request::Request;
use crate::signals::Signals;
use crate::supervise::{End, Listening, Supervisor, Terms};
use crate::terminal::Terminal;

/// What is to be done under a lock.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) context: &'a Context,
    pub(crate) locks: &'a Locks,
    pub(crate) request: &'a Request,
    pub(crate) words: &'a [OsString],
    /// What enclosing runs hold.
    pub(crate) held: Held,
    /// What CMD gets when someone asks for the lock.
    pub(crate) on_revoke: Option<Signal>,
}

/// What this process has once, and lends to whoever watches over CMD.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) signals: Signals,
    pub(crate) terminal: Option<Terminal>,
    /// The signals that were passed on to CMD.
    pub(crate) passed_on: Vec<Signal>,
}

impl Seat {
    pub(crate) fn take() -> Outcome<Self> {
        let terminal = Terminal::of_stdin();
        Ok(Self {
            signals: Signals::listen(terminal.is_some())?,
            terminal,
            passed_on: Vec::new(),
        })
    }
}

impl Work<'_> {
    /// Returns when CMD has ended, or had to be.
    pub(crate) async fn under(&self, lease: &LeaseView, mut seat: Seat) -> (Outcome<End>, Seat) {
        let command = match self.command(lease) {
            Ok(command) => command,
            Err(failure) => return (Err(failure), seat),
        };
        let foreground = seat.terminal.as_ref().is_some_and(Terminal::is_ours);
        let child = match Child::spawn(command, foreground) {
            Ok(child) => child,
            Err(failure) => {
                if let Some(terminal) = seat.terminal.as_mut().filter(|_| foreground) {
                    terminal.take_back_from_the_dead();
                }
                return (Err(failure), seat);
            }
        };
        if let Some(terminal) = seat.terminal.as_mut().filter(|_| foreground) {
            terminal.was_taken_by(child.group());
        }
        let mut supervisor = Supervisor {
            child,
            lease: lease.clone(),
            clock: self.locks.engine().clock(),
            terms: Terms {
                ttl: self.request.ttl.get(),
                max_hold: self.request.max_hold,
            },
            span: Duration::ZERO,
            listening: self.on_revoke.map(|signal| listen(signal, lease.clone())),
            passed_on: seat.passed_on,
            signals: seat.signals,
            terminal: seat.terminal,
        };
        let end = supervisor.until_end().await;
        let seat = Seat {
            signals: supervisor.signals,
            terminal: supervisor.terminal,
            passed_on: supervisor.passed_on,
        };
        (Ok(end), seat)
    }

    fn command(&self, lease: &LeaseView) -> Outcome<Command> {
        let mut command = child::command(self.words);
        let (claim, token) = (lease.claim_id().reveal(), lease.token().get());
        tell(&mut command, self.context, self.request, &claim, token);
        let held = self.held.clone();
        let held = held.and(lease, self.request, &self.locks.location());
        command.env(held::VARIABLE, held.to_json()?);
        Ok(command)
    }

    /// The error for a lease that did not last.
    pub(crate) fn lost(&self, what: String) -> Failure {
        Error::new(ErrorKind::LeaseLost, what)
            .advise("check what it has done, with the fencing token if you can; then run it again")
            .during("go on with", self.locks.location())
            .on(&self.request.name)
            .into()
    }
}

fn listen(signal: Signal, lease: LeaseView) -> Listening {
    Listening {
        signal,
        asked: Box::pin(async move { lease.revoke_requested().await }),
    }
}

/// Tells CMD what it holds.
pub(crate) fn tell(
    command: &mut Command,
    context: &Context,
    request: &Request,
    claim: &str,
    token: u64,
) {
    command
        .env("LEASEHOLD_NAME", request.name.as_str())
        .env("LEASEHOLD_TOKEN", token.to_string())
        .env("LEASEHOLD_CLAIM", claim)
        .env("LEASEHOLD_URL", wherever_it_goes(&context.url).as_ref());
}

/// The URL, but with a path that still names the same file after CMD has changed its folder.
fn wherever_it_goes(url: &str) -> Cow<'_, str> {
    let here = std::env::current_dir().ok();
    let here = here.as_deref().and_then(Path::to_str);
    match (url.split_once(':'), here) {
        (Some((scheme, rest)), Some(here))
            if scheme.eq_ignore_ascii_case("sqlite")
                && !rest.is_empty()
                && !rest.starts_with(['/', '?']) =>
        {
            let here = here.replace('%', "%25").replace('?', "%3F");
            Cow::Owned(format!("{scheme}:{here}/{rest}"))
        }
        _ => Cow::Borrowed(url),
    }
}

/// CMD has ended: that the release failed changes nothing about how it went.
pub(crate) async fn give_back(lease: Lease) {
    if let Err(error) = lease.release().await {
        output::warn(&format!("warning: {error}; the lock ends with its TTL"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_file_stays_the_same_file_elsewhere() {
        for same in [
            "sqlite:",
            "sqlite:/a.db",
            "sqlite:?busy_timeout=1s",
            "memory:",
        ] {
            assert_eq!(wherever_it_goes(same), same);
        }
        let moved = wherever_it_goes("sqlite:a.db?busy_timeout=1s").into_owned();
        assert!(
            moved.starts_with("sqlite:/") && moved.ends_with("/a.db?busy_timeout=1s"),
            "{moved}"
        );
    }
}
