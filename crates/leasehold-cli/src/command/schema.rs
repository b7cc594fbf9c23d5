//! `leasehold schema`: the very text that the engine runs itself where it may.

use leasehold::engine::{mysql, postgres};

use crate::args::{SchemaArgs, SqlEngine};
use crate::exit::Outcome;
use crate::output;

pub(super) fn schema(args: SchemaArgs) -> Outcome {
    let sql = match args.engine {
        SqlEngine::Postgres => {
            let schema = args.schema.as_deref().unwrap_or(postgres::DEFAULT_SCHEMA);
            postgres::schema::sql(schema)?
        }
        SqlEngine::Mysql => {
            let table = args.table.as_deref().unwrap_or(mysql::DEFAULT_TABLE);
            mysql::schema::sql(table)?
        }
    };
    output::raw(sql.as_bytes())?;
    Ok(0)
}
