//! `leasehold schema`: what the engine itself does where it has the rights to, as SQL or as commands.

use leasehold::Registry;

use crate::args::{SchemaArgs, SqlEngine};
use crate::exit::Outcome;
use crate::output;

pub(super) fn schema(args: SchemaArgs) -> Outcome {
    let (scheme, name) = match args.engine {
        SqlEngine::Postgres => ("postgres", args.schema),
        SqlEngine::Mysql => ("mysql", args.table),
        SqlEngine::Dynamodb => ("dynamodb", args.table),
    };
    let sql = Registry::builtin().schema(scheme, name.as_deref())?;
    output::bytes(sql.as_bytes())?;
    Ok(0)
}
