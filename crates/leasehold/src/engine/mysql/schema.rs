//! The tables and procedures: one text, whether the engine makes them or an operator does.

use mysql_async::prelude::Queryable;

use super::failure;
use super::server::{self, Lane, Server};
use super::settings::{DEFAULT_TABLE, check_table};
use crate::error::{Error, ErrorKind, Result};

/// The layout of the tables and procedures that this version uses.
pub(crate) const LAYOUT: i64 = 1;

const TABLES: &str = include_str!("sql/tables.sql");

/// Each with its text, those that are called by others first.
const PROCEDURES: &[(&str, &str)] = &[
    ("leasehold_wake", include_str!("sql/wake.sql")),
    ("leasehold_expire", include_str!("sql/expire.sql")),
    ("leasehold_admit", include_str!("sql/admit.sql")),
    ("leasehold_acquire", include_str!("sql/acquire.sql")),
    ("leasehold_release", include_str!("sql/release.sql")),
    ("leasehold_renew", include_str!("sql/renew.sql")),
    ("leasehold_look", include_str!("sql/look.sql")),
    ("leasehold_break_lock", include_str!("sql/break_lock.sql")),
    ("leasehold_pass_on", include_str!("sql/pass_on.sql")),
    ("leasehold_listen", include_str!("sql/listen.sql")),
    ("leasehold_sweep", include_str!("sql/sweep.sql")),
    ("leasehold_check_lease", include_str!("sql/check_lease.sql")),
];

const DONE: &str = "REPLACE INTO leasehold_layout (only_row, version) VALUES (1, 1)";

/// Their text is kept with the mode that it was written in.
const MODE: &str = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES'";

/// The SQL that makes leasehold's tables and procedures, or brings older ones up to date: for the `mysql` program.
pub fn sql(table: &str) -> Result<String> {
    check_table(table)?;
    let mut text = format!(
        "-- leasehold's tables and procedures for MySQL and MariaDB, layout {LAYOUT}. To run again does no harm.\n\
         --\n\
         -- A holder or a waiter is a row; nobody keeps a connection or a transaction open. All times are the server's.\n\n\
         {MODE};\n\n{TABLES}\nDELIMITER //\n\n"
    );
    for (name, body) in PROCEDURES {
        text.push_str(&format!(
            "DROP PROCEDURE IF EXISTS {name}//\n\n{body}//\n\n"
        ));
    }
    text.push_str(&format!("DELIMITER ;\n\n{DONE};\n"));
    Ok(named(&text, table))
}

fn named(text: &str, table: &str) -> String {
    match table == DEFAULT_TABLE {
        true => text.to_owned(),
        false => text.replace("leasehold_", &format!("{table}_")),
    }
}

/// The same, statement by statement.
fn statements(table: &str) -> Vec<String> {
    let tables = TABLES
        .split(";\n")
        .filter(|statement| !statement.trim().is_empty());
    let mut all: Vec<_> = std::iter::once(MODE)
        .chain(tables)
        .map(str::to_owned)
        .collect();
    for (name, body) in PROCEDURES {
        all.push(format!("DROP PROCEDURE IF EXISTS {name}"));
        all.push((*body).to_owned());
    }
    all.push(DONE.to_owned());
    all.iter().map(|text| named(text, table)).collect()
}

/// Finds the tables as they should be, or makes them so.
pub(crate) async fn ensure(server: &Server) -> Result<()> {
    if is_there(server).await? {
        return Ok(());
    }
    // Many processes may start at once: one of them does it, and for the others it is done.
    let turn = format!("'leasehold-schema:{}'", server.settings().table);
    // One of its own: of few connections none is left for the work.
    let mut waits = server::connect(server.settings()).await?;
    // Where there are no such locks, some may do it at once, which does no harm.
    let _ = waits.query_drop(format!("DO GET_LOCK({turn}, 20)")).await;
    if is_there(server).await? {
        return Ok(());
    }
    let made = server
        .run(Lane::GoOn, &statements(&server.settings().table))
        .await;
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Denied => Err(may_not_create(server, &error)),
        Err(error) => Err(error),
    }
    // The turn ends with its connection.
}

/// Whether the layout that is there is ours. A newer one is refused.
async fn is_there(server: &Server) -> Result<bool> {
    match found(server).await? {
        Some(LAYOUT) => Ok(true),
        Some(newer) if newer > LAYOUT => Err(failure::unfit(format!(
            "the tables have layout {newer}, and this version of leasehold knows {LAYOUT}"
        ))
        .advise("use a newer leasehold, or other tables: ?table=")),
        Some(_) | None => Ok(false),
    }
}

/// The layout that is there; `None` if there is none.
async fn found(server: &Server) -> Result<Option<i64>> {
    let version = "SELECT version FROM leasehold_layout";
    match server.call(Lane::Begin, version, Vec::new()).await {
        Ok(answer) => Ok(answer.rows.first().and_then(|row| row.get(0))),
        Err(error) if failure::code(&error) == Some(failure::NO_TABLE) => Ok(None),
        Err(error) => Err(error),
    }
}

fn may_not_create(server: &Server, error: &Error) -> Error {
    let table = &server.settings().table;
    Error::new(
        ErrorKind::Denied,
        format!("leasehold's tables are missing or old, and this user may not make them: {}", error.what()),
    )
    .advise(format!(
        "let someone who may run the SQL that `leasehold schema mysql --table {table}` prints, and grant this user SELECT, \
         INSERT, UPDATE, DELETE and EXECUTE on the database"
    ))
}
