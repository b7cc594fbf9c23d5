//! `leasehold fence`: makes tables of the user's reject stale tokens.

use leasehold::guard::sql::FenceTable;
use serde_json::json;

use super::Context;
use crate::args::{FenceArgs, FenceCommand, FenceTableArgs};
use crate::exit::Outcome;
use crate::output;

pub(super) async fn fence(context: Context, args: FenceArgs) -> Outcome {
    match args.command {
        FenceCommand::Print { table, dialect } => {
            let fence = FenceTable::new(dialect, &table.table)?.column(&table.column)?;
            output::bytes(fence.install().as_bytes())?;
        }
        FenceCommand::Install(args) => {
            let locks = context.connect().await?;
            locks.fence_table(&args.table, Some(&args.column)).await?;
            report(&context, &args, "fenced")?;
        }
        FenceCommand::Remove(args) => {
            let locks = context.connect().await?;
            locks.unfence_table(&args.table, Some(&args.column)).await?;
            report(&context, &args, "not fenced")?;
        }
    }
    Ok(0)
}

fn report(context: &Context, args: &FenceTableArgs, what: &str) -> Outcome<()> {
    match context.json {
        true => output::json_line(&json!({
            "table": args.table,
            "column": args.column,
            "fenced": what == "fenced",
        })),
        false => output::line(what),
    }
}
