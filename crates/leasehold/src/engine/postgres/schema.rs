//! The tables and functions: one text, whether the engine makes them or an operator does.

use std::fmt::Write;

use tokio_postgres::error::SqlState;

use super::failure;
use super::server::{Lane, Server, cell};
use super::settings::{DEFAULT_SCHEMA, check_schema};
use crate::error::{Error, ErrorKind, Result};

/// The layout of the tables and functions that this version uses.
pub(crate) const LAYOUT: i32 = 1;

/// The SQL that makes leasehold's tables and functions in this schema, or brings older ones up to date.
pub fn sql(schema: &str) -> Result<String> {
    check_schema(schema)?;
    let text = [
        include_str!("sql/tables.sql"),
        include_str!("sql/turns.sql"),
        include_str!("sql/queue.sql"),
        include_str!("sql/acquire.sql"),
        include_str!("sql/release.sql"),
        include_str!("sql/renew.sql"),
        include_str!("sql/listen.sql"),
        include_str!("sql/records.sql"),
        include_str!("sql/check_lease.sql"),
        include_str!("sql/layout.sql"),
    ]
    .join("\n");
    Ok(match schema == DEFAULT_SCHEMA {
        true => text,
        false => text
            .replace("SCHEMA leasehold", &format!("SCHEMA \"{schema}\""))
            .replace("'leasehold'", &format!("'\"{schema}\"'"))
            .replace("leasehold.", &format!("\"{schema}\".")),
    })
}

/// Finds the tables as they should be, or makes them so.
pub(crate) async fn ensure(server: &Server) -> Result<()> {
    match found(server).await? {
        Some(LAYOUT) => return Ok(()),
        Some(newer) if newer > LAYOUT => {
            return Err(failure::newer_layout(format!(
                "the tables have layout {newer}, and this version of leasehold knows {LAYOUT}"
            )));
        }
        Some(_) | None => {}
    }
    // Many processes may start at once: one of them does it, and for the others it is done.
    let mut script = String::new();
    let _ = writeln!(script, "SELECT pg_advisory_xact_lock(1818583923, -1);");
    script.push_str(&sql(server.schema())?);
    match server.run_script(Lane::Begin, &script).await {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Denied => Err(may_not_create(server, &error)),
        Err(error) => Err(error),
    }
}

/// The layout that is there; `None` if there is none.
async fn found(server: &Server) -> Result<Option<i32>> {
    let query = format!("SELECT version FROM {}.layout", server.quoted_schema());
    match server.ask(Lane::Begin, &query).await? {
        Ok(rows) => rows.first().map(|row| cell(row, 0)).transpose(),
        Err(cause)
            if cause.code().is_some_and(|code| {
                *code == SqlState::UNDEFINED_TABLE || *code == SqlState::INVALID_SCHEMA_NAME
            }) =>
        {
            Ok(None)
        }
        Err(cause) => Err(failure::of_call(cause)),
    }
}

fn may_not_create(server: &Server, error: &Error) -> Error {
    let schema = server.schema();
    Error::new(
        ErrorKind::Denied,
        format!("leasehold's tables are missing or old, and this user may not make them: {}", error.what()),
    )
    .advise(format!(
        "let someone who may run the SQL that `leasehold schema postgres --schema {schema}` prints, and grant this user USAGE \
         on the schema and SELECT, INSERT, UPDATE and DELETE on its tables"
    ))
}
