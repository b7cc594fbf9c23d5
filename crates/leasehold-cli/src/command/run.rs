//! `leasehold run`: a command under a lock.

use std::process::Command;

use leasehold::recipe::{Ran, Run, Turn};
use leasehold::{Error, ErrorKind, Lease, LeaseState, LeaseView};
use serde_json::json;

use super::{Context, block_on};
use crate::args::{RunArgs, RunRecipes};
use crate::child;
use crate::exit::Outcome;
use crate::held::Held;
use crate::output::{self, age::age, lock::millis, table::who};
use crate::request::Request;
use crate::supervise::End;
use crate::waiting;
use crate::work::{self, Seat, Work};

pub(super) fn run(context: Context, args: RunArgs) -> Outcome {
    let held = Held::inherited()?;
    let outermost = held.outermost();
    let (request, recipe, words) = Request::of_run(args, outermost.as_ref())?;
    let next = block_on(async {
        let mut locks = context.connect().await?;
        if let Some(outermost) = outermost {
            locks = locks.on_behalf_of(outermost)?;
        }
        let outer = held.covering(&request, &locks.location())?;
        if let Some(outer) = outer {
            if recipe.once_per.is_some() {
                return Err(taken_by_outer(&request).into());
            }
            outer.verify(&locks, &request).await?;
            let mut command = child::command(&words);
            work::tell(
                &mut command,
                &context,
                &request,
                outer.claim(),
                outer.token(),
            );
            return Ok(Next::Become(command));
        }
        if recipe.on_revoke.is_some() {
            // Said before CMD runs, not when nobody hears.
            locks.store()?;
        }
        let work = Work {
            context: &context,
            locks: &locks,
            request: &request,
            words: &words,
            held,
            on_revoke: recipe.on_revoke,
        };
        let code = hold_and_run(&work, &recipe).await;
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

fn taken_by_outer(request: &Request) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "an enclosing `leasehold run` holds it, and --once-per must take it itself",
    )
    .advise("give --once-per to the outer run, or use another name")
    .on(&request.name)
}

/// What CMD runs under.
enum Hold {
    Lease(Lease),
    Once(Box<Run>),
}

impl Hold {
    fn lease(&self) -> &LeaseView {
        match self {
            Hold::Lease(lease) => lease,
            Hold::Once(run) => run,
        }
    }

    async fn give_back(self, succeeded: bool) {
        let taken_down = match self {
            Hold::Lease(lease) => return work::give_back(lease).await,
            Hold::Once(run) if succeeded => run.succeeded().await,
            Hold::Once(run) => run.failed().await,
        };
        if let Err(error) = taken_down {
            output::warn(&format!(
                "warning: {error}; it may run again in this period"
            ));
        }
    }
}

async fn hold_and_run(work: &Work<'_>, recipe: &RunRecipes) -> Outcome {
    let mut seat = Seat::take()?;
    let Some(hold) = obtain(work, recipe, &mut seat).await? else {
        return Ok(0);
    };
    let (end, _) = work.under(hold.lease(), seat).await;
    let state = hold.lease().state();
    let lasted = !matches!(state, LeaseState::Lost(_));
    hold.give_back(matches!(end, Ok(End::ByItself(0))) && lasted)
        .await;
    match (end?, state) {
        (End::ByItself(code), LeaseState::Held | LeaseState::Uncertain) => Ok(code),
        (End::ByItself(_), LeaseState::Lost(reason)) => {
            let what = format!("the lease was lost before the command ended: {reason}");
            Err(work.lost(what))
        }
        (End::ByUs(why), _) => Err(work.lost(format!("the command was ended because {why}"))),
    }
}

/// `None` if it was done already in this period.
async fn obtain(work: &Work<'_>, recipe: &RunRecipes, seat: &mut Seat) -> Outcome<Option<Hold>> {
    let Work {
        locks,
        request,
        context,
        ..
    } = work;
    let signals = &mut seat.signals;
    let Some(period) = recipe.once_per else {
        let lease = waiting::obtain(locks, request, signals, context.json).await?;
        return Ok(Some(Hold::Lease(lease)));
    };
    let mut once = request.to(locks).once_per(period);
    if recipe.retry_failed {
        once = once.retry_failed();
    }
    let begin = once.begin();
    match waiting::until_obtained(locks, request, signals, context.json, begin).await? {
        Turn::Ours(run) => Ok(Some(Hold::Once(Box::new(run)))),
        Turn::Taken(ran) => {
            say(context, request, &ran);
            Ok(None)
        }
    }
}

/// On stderr: stdout is CMD's.
fn say(context: &Context, request: &Request, ran: &Ran) {
    let (by, name) = (&ran.by, &request.name);
    if context.json {
        let skipped = json!({"skipped": {
            "lock": name.as_str(),
            "ran_by": {"owner": by.owner, "host": by.host, "pid": by.pid},
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
