//! `leasehold run`: a command under a lock.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use leasehold::{Error, ErrorKind, Lease, LeaseState, Locks, Result};

use super::{Context, block_on};
use crate::args::RunArgs;
use crate::child::{self, Child};
use crate::exit::{Failure, Outcome};
use crate::held::{self, Held};
use crate::output;
use crate::request::Request;
use crate::signals::Signals;
use crate::supervise::{End, Supervisor, Terms};
use crate::terminal::Terminal;
use crate::waiting;

pub(super) fn run(context: Context, args: RunArgs) -> Outcome {
    let (request, words) = Request::of_run(args)?;
    let next = block_on(async {
        let locks = context.connect().await?;
        let held = Held::inherited()?;
        let outer = held.covering(&request, &locks.location())?;
        if let Some(outer) = outer {
            outer.verify(&locks, &request).await?;
            let mut command = child::command(&words);
            tell(
                &mut command,
                &context,
                &request,
                outer.claim(),
                outer.token(),
            );
            return Ok(Next::Become(command));
        }
        let code = hold_and_run(&context, &locks, &request, &words, held).await;
        // Closing the engine in good order would only take time.
        std::mem::forget(locks);
        code.map(Next::Exit)
    })?;
    match next {
        Next::Exit(code) => Ok(code),
        // The enclosing run holds the lock and supervises whatever is in its process group.
        Next::Become(command) => Err(child::become_command(command)),
    }
}

enum Next {
    Exit(i32),
    Become(Command),
}

async fn hold_and_run(
    context: &Context,
    locks: &Locks,
    request: &Request,
    words: &[OsString],
    held: Held,
) -> Outcome {
    let mut terminal = Terminal::of_stdin();
    let mut signals = Signals::listen(terminal.is_some())?;
    let lease = waiting::obtain(locks, request, &mut signals, context.json).await?;

    let mut command = child::command(words);
    let (claim, token) = (lease.claim_id().reveal(), lease.token().get());
    tell(&mut command, context, request, &claim, token);
    let held = held.and(&lease, request, &locks.location());
    command.env(held::VARIABLE, held.to_json()?);

    let foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
    let child = match Child::spawn(command, foreground) {
        Ok(child) => child,
        Err(failure) => {
            if let Some(terminal) = terminal.as_mut().filter(|_| foreground) {
                terminal.take_back_from_the_dead();
            }
            give_back(lease).await;
            return Err(failure);
        }
    };
    if let Some(terminal) = terminal.as_mut().filter(|_| foreground) {
        terminal.was_taken_by(child.group());
    }
    let mut supervisor = Supervisor {
        child,
        lease: lease.view(),
        clock: locks.engine().clock(),
        terms: Terms {
            ttl: request.ttl.get(),
            max_hold: request.max_hold,
        },
        signals,
        terminal,
    };
    let end = supervisor.until_end().await;
    let state = lease.state();
    give_back(lease).await;
    match (end, state) {
        (End::ByItself(code), LeaseState::Held | LeaseState::Uncertain) => Ok(code),
        (End::ByItself(_), LeaseState::Lost(reason)) => Err(lost(
            locks,
            request,
            format!("the lease was lost before the command ended: {reason}"),
        )),
        (End::ByUs(why), _) => Err(lost(
            locks,
            request,
            format!("the command was ended because {why}"),
        )),
    }
}

/// Tells CMD what it holds.
fn tell(command: &mut Command, context: &Context, request: &Request, claim: &str, token: u64) {
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
async fn give_back(lease: Lease) {
    let released: Result<_> = lease.release().await;
    if let Err(error) = released {
        output::warn(&format!("warning: {error}; the lock ends with its TTL"));
    }
}

fn lost(locks: &Locks, request: &Request, what: String) -> Failure {
    Error::new(ErrorKind::LeaseLost, what)
        .advise("check what it has done, with the fencing token if you can; then run it again")
        .during("go on with", locks.location())
        .on(&request.name)
        .into()
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
