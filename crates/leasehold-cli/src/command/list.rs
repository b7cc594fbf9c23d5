//! `leasehold list`: all locks in use.

use console::Term;
use leasehold::Claimant;
use leasehold::recipe::Deadlock;
use serde_json::json;

use super::Context;
use crate::args::ListArgs;
use crate::exit::Outcome;
use crate::output::{self, lock::LockJson, table};

pub(super) async fn list(context: Context, args: ListArgs) -> Outcome {
    let locks = context.connect().await?;
    if args.deadlocks {
        let found = locks.deadlocks(args.prefix).await?;
        return print_deadlocks(&found, context.json);
    }
    let found = locks.list(args.prefix).await?;
    if context.json {
        for lock in &found {
            output::json_line(&LockJson::of(lock))?;
        }
        return Ok(0);
    }
    let lines = table::of_locks(&found).lines(width(&Term::stdout()));
    output::line(&lines.join("\n"))?;
    Ok(0)
}

fn print_deadlocks(found: &[Deadlock], json: bool) -> Outcome {
    for Deadlock { edges: waits, .. } in found {
        if json {
            let name =
                |who: &Claimant| json!({"owner": who.label, "host": who.host, "pid": who.pid});
            let steps = waits.iter().map(|wait| {
                json!({
                    "waiter": name(&wait.who),
                    "lock": wait.lock.as_str(),
                    "holder": name(&wait.held_by),
                    "token": wait.token.get(),
                })
            });
            output::json_line(&json!({"deadlock": steps.collect::<Vec<_>>()}))?;
        } else {
            output::line("deadlock:")?;
            for wait in waits {
                let (waiter, holder) = (table::who(&wait.who), table::who(&wait.held_by));
                output::line(&format!(
                    "  {waiter} waits for {}, held by {holder}",
                    wait.lock
                ))?;
            }
        }
    }
    if found.is_empty() && !json {
        output::line("no deadlocks")?;
    }
    Ok(0)
}

/// The width of the terminal; unlimited if stdout is not one.
pub(super) fn width(term: &Term) -> usize {
    match term.is_term() {
        true => usize::from(term.size().1),
        false => usize::MAX,
    }
}
