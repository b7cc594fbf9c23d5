//! Runs CMD under one lease: sets its environment, starts it, and supervises it until it has ended.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::{Error, ErrorKind, Lease, LeaseView, Locks};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::args::HookArgs;
use crate::child::{self, Child};
use crate::command::Context;
use crate::console::Console;
use crate::exit::{Failure, Outcome};
use crate::held::{self, Held};
use crate::output;
use crate::request::Request;
use crate::supervise::{self, End, Limits, RevokeListener, Supervisor};
use crate::terminal::Terminal;
use crate::watchdog::Watchdog;

/// What to run under which lock.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) context: &'a Context,
    pub(crate) locks: &'a Locks,
    pub(crate) request: &'a Request,
    pub(crate) argv: &'a [OsString],
    /// The locks that enclosing runs hold.
    pub(crate) held: Held,
    /// The signal that CMD gets when someone asks for the lock.
    pub(crate) on_revoke: Option<Signal>,
    /// The commands for events.
    pub(crate) hooks: HookArgs,
    pub(crate) on_skip: Option<String>,
}

impl Work<'_> {
    /// Runs CMD until it has ended or was terminated.
    pub(crate) async fn run(&self, lease: &Lease, console: &mut Console) -> Outcome<End> {
        // This process may have been stopped since the lock was granted.
        if !lease.is_valid() {
            let why = supervise::loss_reason(&lease.view(), self.limits());
            let what =
                format!("the command was not started because the lease could not be kept: {why}");
            return Ok(End::Terminated(what));
        }
        let child = spawn(self.command(lease)?, console.terminal.as_mut())?;
        let mut supervisor = self.supervisor("the command", child, lease, console);
        supervisor.revoke = self.on_revoke.map(|signal| listen(signal, lease.view()));
        Ok(supervisor.until_end().await)
    }

    fn limits(&self) -> Limits {
        Limits {
            ttl: self.request.ttl.get(),
            max_hold: self.request.max_hold,
        }
    }

    pub(crate) fn supervisor<'a>(
        &self,
        what: &'static str,
        child: Child,
        lease: &Lease,
        console: &'a mut Console,
    ) -> Supervisor<'a> {
        Supervisor {
            what,
            watchdog: Watchdog::of(child.group()),
            child,
            lease: lease.view(),
            clock: self.locks.engine().about().clock,
            limits: self.limits(),
            longest_validity: Duration::ZERO,
            revoke: None,
            console,
            stopped: BTreeSet::new(),
        }
    }

    fn command(&self, lease: &Lease) -> Outcome<Command> {
        let mut command = child::command(self.argv);
        let (claim, token) = (lease.claim_id().reveal(), lease.token().get());
        set_environment(&mut command, self.context, self.request, Some(token));
        command.env("LEASEHOLD_CLAIM", claim);
        let held = self.held.clone();
        let held = held.with(lease, self.request, &self.locks.location());
        command.env(held::VARIABLE, held.to_json()?);
        Ok(command)
    }

    /// The error for a lease that was lost.
    pub(crate) fn lost(&self, what: String) -> Failure {
        self.lost_with_advice(
            what,
            "check what the command has written, by the fencing token if possible; then run it again",
        )
    }

    /// The error for a command that could not be terminated.
    pub(crate) fn still_runs(&self, what: &str, why: &str, groups: BTreeSet<Pid>) -> Failure {
        let groups: Vec<_> = groups.iter().map(Pid::to_string).collect();
        let what = format!(
            "{what} could not be terminated and still runs: process group {}; it had to end because the lease could not be kept: {why}",
            groups.join(", ")
        );
        self.lost_with_advice(
            what,
            "kill it before the lock ends with its TTL; if it has changed its user, do that outside: `sudo leasehold run ...`",
        )
    }

    fn lost_with_advice(&self, what: String, advice: &'static str) -> Failure {
        Error::new(ErrorKind::LeaseLost, what)
            .advise(advice)
            .during("go on with", self.locks.location())
            .on(&self.request.name)
            .into()
    }
}

/// Starts CMD, in the foreground if this process is.
fn spawn(command: Command, terminal: Option<&mut Terminal>) -> Outcome<Child> {
    let mut foreground = terminal.filter(|terminal| terminal.is_ours());
    let spawned = Child::spawn(command, foreground.is_some());
    match (&mut foreground, &spawned) {
        (Some(terminal), Ok(child)) => terminal.was_taken_by(child.group()),
        // The child may have taken it before it failed.
        (Some(terminal), Err(_)) => terminal.reclaim(),
        (None, _) => {}
    }
    spawned
}

fn listen(signal: Signal, lease: LeaseView) -> RevokeListener {
    RevokeListener {
        signal,
        request: Box::pin(async move { lease.revoke_requested().await }),
    }
}

/// Tells a command which lock is held with which token.
pub(crate) fn set_environment(
    command: &mut Command,
    context: &Context,
    request: &Request,
    token: Option<u64>,
) {
    command
        .env("LEASEHOLD_NAME", request.name.as_str())
        .env("LEASEHOLD_URL", absolute_url(&context.url).as_ref());
    match token {
        Some(token) => command.env("LEASEHOLD_TOKEN", token.to_string()),
        None => command.env_remove("LEASEHOLD_TOKEN"),
    };
}

/// The URL with an absolute path, so that it names the same file in every working directory.
fn absolute_url(url: &str) -> Cow<'_, str> {
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

/// Releases the lease of a CMD that has ended. A failure is only a warning: it does not change how CMD ended.
pub(crate) async fn release(lease: Lease) {
    if let Err(error) = lease.release().await {
        output::warn(&format!("warning: {error}; the lock ends with its TTL"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_become_absolute() {
        for same in [
            "sqlite:",
            "sqlite:/a.db",
            "sqlite:?busy_timeout=1s",
            "memory:",
        ] {
            assert_eq!(absolute_url(same), same);
        }
        let moved = absolute_url("sqlite:a.db?busy_timeout=1s").into_owned();
        assert!(
            moved.starts_with("sqlite:/") && moved.ends_with("/a.db?busy_timeout=1s"),
            "{moved}"
        );
    }
}
