//! `leasehold list`: all locks in use.

use console::Term;

use super::Context;
use crate::args::ListArgs;
use crate::exit::Outcome;
use crate::output::{self, lock::LockJson, table};

pub(super) async fn list(context: Context, args: ListArgs) -> Outcome {
    let locks = context.connect().await?;
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

/// How wide a line may be; as wide as it likes if nobody looks.
pub(super) fn width(term: &Term) -> usize {
    match term.is_term() {
        true => usize::from(term.size().1),
        false => usize::MAX,
    }
}
