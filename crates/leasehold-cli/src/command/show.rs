//! `leasehold show`: one lock, its holders and its queue.

use console::Term;
use leasehold::LockInfo;

use super::Context;
use crate::args::ShowArgs;
use crate::exit::Outcome;
use crate::output::{self, lock::LockJson, table};

pub(super) async fn show(context: Context, args: ShowArgs) -> Outcome {
    let name = leasehold::LockName::new(&args.name)?;
    let locks = context.connect().await?;
    let lock = locks.inspect(&name).await?;
    match context.json {
        true => output::json_line(&LockJson::of(&lock))?,
        false => output::line(&describe(&lock))?,
    }
    Ok(0)
}

fn describe(lock: &LockInfo) -> String {
    let width = super::list::width(&Term::stdout());
    if lock.holders.is_empty() && lock.waiters.is_empty() {
        return format!("{} is free", lock.name);
    }
    let mut lines = table::of_locks(std::slice::from_ref(lock)).lines(width);
    for holder in &lock.holders {
        if let Some(reason) = &holder.reason {
            let who = table::who(&holder.claimant);
            lines.push(format!("reason of {who}: {}", table::printable(reason)));
        }
    }
    if !lock.waiters.is_empty() {
        lines.push(String::new());
        lines.extend(table::of_waiters(&lock.waiters).lines(width));
    }
    lines.join("\n")
}
