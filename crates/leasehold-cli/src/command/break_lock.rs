//! `leasehold break`: takes a lock away from its holder.

use std::io::{self, IsTerminal, Write};

use leasehold::{LockInfo, LockName, Released};
use serde_json::json;

use super::Context;
use crate::args::BreakArgs;
use crate::exit::{Outcome, unexpected};
use crate::output::{self, age::age, table::who};

pub(super) async fn break_lock(context: Context, args: BreakArgs) -> Outcome {
    let name = LockName::new(&args.name)?;
    let locks = context.connect().await?;
    let confirm = !args.yes && io::stdin().is_terminal();
    if args.once_per {
        let forgotten = locks.forget_run(&name).await?;
        match context.json {
            true => output::json_line(&json!({"name": name.as_str(), "forgotten": forgotten}))?,
            false => output::line(if forgotten { "forgotten" } else { "not run" })?,
        }
        return Ok(0);
    }
    let broken = if confirm && !confirmed(&locks.inspect(&name).await?)? {
        None
    } else {
        Some(locks.force_release(&name).await? == Released::Yes)
    };
    match context.json {
        true => output::json_line(&json!({
            "name": name.as_str(),
            "broken": broken.unwrap_or(false),
        }))?,
        false => output::line(match broken {
            Some(true) => "broken",
            Some(false) => "not held",
            None => "left as it is",
        })?,
    }
    Ok(0)
}

fn confirmed(lock: &LockInfo) -> Outcome<bool> {
    let holders: Vec<_> = lock
        .holders
        .iter()
        .map(|holder| format!("{} for {}", who(&holder.claimant), age(holder.held_for)))
        .collect();
    if holders.is_empty() {
        return Ok(true);
    }
    let question = format!(
        "{} is held by {}. Break it? [y/N] ",
        lock.name,
        holders.join(", ")
    );
    let mut stderr = io::stderr();
    let asked = stderr
        .write_all(question.as_bytes())
        .and_then(|()| stderr.flush());
    let mut answer = String::new();
    asked
        .and_then(|()| io::stdin().read_line(&mut answer))
        .map_err(|cause| unexpected("cannot ask for confirmation", cause))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
