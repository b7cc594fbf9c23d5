//! `leasehold run`: a command under a lock.

use std::process::Command;

use leasehold::recipe::{PeriodRun, PeriodTurn, Ran};
use leasehold::{Error, ErrorKind, Lease, LeaseState};
use serde_json::json;

use super::{Context, flushed};
use crate::args::{HookArgs, RunArgs, RunRecipes};
use crate::child;
use crate::console::Console;
use crate::exit::{Failure, Outcome};
use crate::held::Held;
use crate::hooks::Event;
use crate::output::{self, age::age, lock::millis, table::who};
use crate::request::Request;
use crate::supervise::End;
use crate::waiting;
use crate::work::{self, Work};

pub(super) fn run(context: Context, args: RunArgs) -> Outcome {
    let held = Held::inherited()?;
    let outermost = held.outermost();
    let (mut request, recipe, hooks, argv) = Request::of_run(args, outermost.as_ref())?;
    let next = flushed(&context.connected, async {
        let mut locks = context.connect_for(&mut request).await?;
        if let Some(outermost) = outermost {
            locks = locks.on_behalf_of(outermost)?;
        }
        let outer = held.covering(&request, &locks.location())?;
        if let Some(outer) = outer {
            if let Some(option) = option_of_hold(&request, &recipe, &hooks) {
                return Err(held_by_outer(&request, option).into());
            }
            outer.verify(&locks, &request).await?;
            let mut command = child::command(&argv);
            work::set_environment(&mut command, &context, &request, Some(outer.token()));
            command.env("LEASEHOLD_CLAIM", outer.claim());
            return Ok(Next::Exec(command));
        }
        if recipe.on_revoke.is_some() {
            // Fails before CMD runs if the engine cannot deliver requests.
            locks.store()?;
        }
        let work = Work {
            context: &context,
            locks: &locks,
            request: &request,
            argv: &argv,
            held,
            on_revoke: recipe.on_revoke,
            hooks,
            on_skip: recipe.on_skip.clone(),
        };
        let code = hold_and_run(&work, &recipe).await;
        // The engine is flushed below; dropping the rest would only take time.
        std::mem::forget(locks);
        code.map(Next::Exit)
    })?;
    match next {
        Next::Exit(code) => Ok(code),
        // The enclosing run holds the lock and supervises its whole process group.
        Next::Exec(command) => Err(child::exec(command)),
    }
}

enum Next {
    Exit(i32),
    Exec(Command),
}

/// The first option given that needs a hold of its own, which a run within an enclosing one of the same lock does not have.
fn option_of_hold(
    request: &Request,
    recipe: &RunRecipes,
    hooks: &HookArgs,
) -> Option<&'static str> {
    let given = [
        ("--once-per", recipe.once_per.is_some()),
        ("--at-least", request.at_least.is_some()),
        ("--max-hold", request.max_hold.is_some()),
        ("--on-revoke", recipe.on_revoke.is_some()),
        ("--on-acquire", hooks.on_acquire.is_some()),
        ("--on-lost", hooks.on_lost.is_some()),
    ];
    given
        .iter()
        .find(|(_, given)| *given)
        .map(|(name, _)| *name)
}

fn held_by_outer(request: &Request, option: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "{option} needs a hold of its own, but an enclosing `leasehold run` holds the lock"
        ),
    )
    .advise(format!(
        "give {option} to the outer run, or use another name"
    ))
    .on(&request.name)
}

/// The lease that CMD runs under.
enum Hold {
    Lease(Lease),
    Once(Box<PeriodRun>),
}

impl Hold {
    fn lease(&self) -> &Lease {
        match self {
            Hold::Lease(lease) => lease,
            Hold::Once(run) => run.lease(),
        }
    }

    /// Releases the lock of a CMD that has ended.
    async fn release(self, succeeded: bool) {
        let recorded = match self {
            Hold::Lease(lease) => return work::release(lease).await,
            Hold::Once(run) if succeeded => run.succeeded().await,
            Hold::Once(run) => run.failed().await,
        };
        if let Err(error) = recorded {
            output::warn(&format!(
                "warning: {error}; it may run again in this period"
            ));
        }
    }

    /// Leaves the lock of a CMD that may still run to its TTL: the next holder must not enter before.
    fn detach(self) {
        match self {
            Hold::Lease(lease) => lease.detach(),
            Hold::Once(run) => run.detach(),
        };
    }
}

async fn hold_and_run(work: &Work<'_>, recipe: &RunRecipes) -> Outcome {
    let mut console = Console::open()?;
    let hold = match acquire(work, recipe, &mut console).await {
        Ok(Some(hold)) => hold,
        Ok(None) => {
            work.run_hook(Event::Skipped, None).await;
            return Ok(recipe.exit_if_skipped.unwrap_or(0).into());
        }
        Err(failure) => {
            if matches!(&failure, Failure::Locks(error) if error.kind() == ErrorKind::TimedOut) {
                work.run_hook(Event::Skipped, None).await;
            }
            return Err(failure);
        }
    };
    let token = Some(hold.lease().token().get());
    let end = match work.run_acquire_hook(hold.lease()).await {
        Ok(None) => work.run(hold.lease(), &mut console).await,
        Ok(Some(end)) => Ok(end),
        Err(failure) => Err(failure),
    };
    let state = hold.lease().state();
    let lasted = !matches!(state, LeaseState::Lost(_));
    match &end {
        Ok(End::StillRuns { .. }) => hold.detach(),
        Ok(End::Exited(0)) => hold.release(lasted).await,
        _ => hold.release(false).await,
    }
    let end = end?;
    if !lasted || !matches!(end, End::Exited(_)) {
        work.run_hook(Event::Lost, token).await;
    }
    match (end, state) {
        (End::Exited(_), LeaseState::Lost(reason)) => {
            let what = format!("the lease was lost before the command ended: {reason}");
            Err(work.lost(what))
        }
        (End::Exited(code), _) => Ok(code),
        (End::Terminated(what), _) => Err(work.lost(what)),
        (End::StillRuns { what, why, groups }, _) => Err(work.still_runs(what, &why, groups)),
    }
}

/// `None` if CMD has already run in this period.
async fn acquire(
    work: &Work<'_>,
    recipe: &RunRecipes,
    console: &mut Console,
) -> Outcome<Option<Hold>> {
    let Work {
        locks,
        request,
        context,
        ..
    } = work;
    let signals = &mut console.signals;
    let Some(period) = recipe.once_per else {
        let lease = waiting::acquire(locks, request, signals, context.json).await?;
        return Ok(Some(Hold::Lease(lease)));
    };
    let mut once = request.to(locks).once_per(period);
    if recipe.retry_failed {
        once = once.retry_failed();
    }
    let begin = once.begin();
    match waiting::until_acquired(locks, request, signals, context.json, begin).await? {
        PeriodTurn::Ours(run) => Ok(Some(Hold::Once(Box::new(run)))),
        PeriodTurn::Taken(ran) => {
            report_skipped(context, request, &ran);
            Ok(None)
        }
    }
}

/// Prints to stderr: stdout is CMD's.
fn report_skipped(context: &Context, request: &Request, ran: &Ran) {
    let (by, name) = (&ran.by, &request.name);
    if context.json {
        let skipped = json!({"skipped": {
            "lock": name.as_str(),
            "ran_by": {"owner": by.label, "host": by.host, "pid": by.pid},
            "ago_ms": millis(ran.ago),
            "next_in_ms": millis(ran.next_in),
        }});
        eprintln!("{skipped}");
    } else {
        let (by, ago, next) = (who(by), age(ran.ago), age(ran.next_in));
        output::warn(&format!(
            "not run: {name} was run by {by} {ago} ago; it may run again in {next}"
        ));
    }
}
