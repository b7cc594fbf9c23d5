//! How the tables and procedures are created: by the engine, or by an operator from the same text.

use mysql_async::prelude::Queryable;

use super::client::{self, Client};
use super::config::{DEFAULT_TABLE, check_table};
use super::failure;
use crate::engine::sql::failure::{may_not_create, newer_layout};
use crate::engine::sql::store::Lane;
use crate::error::{ErrorKind, Result};

/// The layout of the tables and procedures that this version uses.
pub(crate) const LAYOUT: i64 = 2;

const TABLES: &str = include_str!("sql/tables.sql");

/// The procedures with their texts, those that others call first.
const PROCEDURES: &[(&str, &str)] = &[
    ("leasehold_wake", include_str!("sql/wake.sql")),
    ("leasehold_tell_first", include_str!("sql/tell_first.sql")),
    ("leasehold_expire", include_str!("sql/expire.sql")),
    ("leasehold_admit", include_str!("sql/admit.sql")),
    ("leasehold_acquire", include_str!("sql/acquire.sql")),
    ("leasehold_release", include_str!("sql/release.sql")),
    ("leasehold_renew", include_str!("sql/renew.sql")),
    ("leasehold_look", include_str!("sql/look.sql")),
    (
        "leasehold_force_release",
        include_str!("sql/force_release.sql"),
    ),
    ("leasehold_offer_next", include_str!("sql/offer_next.sql")),
    ("leasehold_listen", include_str!("sql/listen.sql")),
    ("leasehold_sweep", include_str!("sql/sweep.sql")),
    ("leasehold_check_lease", include_str!("sql/check_lease.sql")),
    (
        "leasehold_write_record",
        include_str!("sql/write_record.sql"),
    ),
];

/// What several of these texts have in common: `{name}` in them stands for the text here. A part may contain the parts below it.
const PARTS: &[(&str, &str)] = &[
    // How a call begins and ends that decides who gets a lock. It declares variables, so it follows those of the procedure.
    ("{begin_decision}\n", include_str!("sql/begin_decision.sql")),
    ("{end_decision}\n", include_str!("sql/end_decision.sql")),
    // How every other call begins.
    ("{begin}\n", include_str!("sql/begin.sql")),
    // The time in microseconds since 1970.
    (
        "{now}",
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
    ),
    // Whether the connection of the listener `l` has the lock that shows that its process is alive.
    ("{life_of_l}", LIFE_OF_L),
    // The type of the id of a process that waits.
    (
        "{listener_id}",
        "CHAR(32) CHARACTER SET ascii COLLATE ascii_bin",
    ),
];

pub(super) const LIFE_OF_L: &str = "IS_USED_LOCK(CONCAT('leasehold-life:', l.id)) IS NOT NULL";

const DONE: &str = "REPLACE INTO leasehold_layout (only_row, version) VALUES (1, 2)";

/// A procedure keeps the SQL mode that it was created in.
const MODE: &str = "SET SESSION sql_mode = 'STRICT_TRANS_TABLES'";

/// The SQL that creates leasehold's tables and procedures, or brings older ones up to date: for the `mysql` program.
pub fn sql(table: &str) -> Result<String> {
    check_table(table)?;
    let mut text = format!(
        "-- leasehold's tables and procedures for MySQL and MariaDB, layout {LAYOUT}. It does no harm to run it again.\n\
         --\n\
         -- Holders and waiters are rows; neither keeps a connection or a transaction open. All times are the server's.\n\n\
         {MODE};\n\n{TABLES}\nDELIMITER //\n\n"
    );
    for (name, body) in PROCEDURES {
        text.push_str(&format!(
            "DROP PROCEDURE IF EXISTS {name}//\n\n{body}//\n\n"
        ));
    }
    text.push_str(&format!("DELIMITER ;\n\n{DONE};\n"));
    Ok(complete(&text, table))
}

/// A text with its parts put in, and the names of these tables and procedures.
fn complete(text: &str, table: &str) -> String {
    let mut text = text.to_owned();
    for (name, part) in PARTS {
        text = text.replace(name, part);
    }
    match table == DEFAULT_TABLE {
        true => text,
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
    all.iter().map(|text| complete(text, table)).collect()
}

/// Creates the tables and procedures, unless they are there with this layout.
pub(crate) async fn ensure(client: &Client) -> Result<()> {
    if is_there(client).await? {
        return Ok(());
    }
    // Many processes may start at once: one of them creates the tables, and the others wait for it.
    let turn = format!("'leasehold-schema:{}'", client.config().table);
    // A connection of its own, since the pool may be small.
    let mut waits = client::connect(client.config()).await?;
    // On a server without user-level locks several may do it at once, which does no harm.
    let _ = waits.query_drop(format!("DO GET_LOCK({turn}, 20)")).await;
    if is_there(client).await? {
        return Ok(());
    }
    let made = client
        .run(Lane::Upkeep, &statements(&client.config().table))
        .await;
    match made {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Denied => Err(may_not_create(
            &error,
            format!(
                "let someone who may run the SQL that `leasehold schema mysql --table {}` prints, and grant this user SELECT, \
                 INSERT, UPDATE, DELETE and EXECUTE on the database",
                client.config().table
            ),
        )),
        Err(error) => Err(error),
    }
    // The user-level lock ends with its connection.
}

/// Whether the tables have this layout. A newer one is refused.
async fn is_there(client: &Client) -> Result<bool> {
    match found(client).await? {
        Some(LAYOUT) => Ok(true),
        Some(newer) if newer > LAYOUT => Err(newer_layout(newer, LAYOUT, "other tables: ?table=")),
        Some(_) | None => Ok(false),
    }
}

/// The layout of the tables; `None` if there are none.
async fn found(client: &Client) -> Result<Option<i64>> {
    let version = "SELECT version FROM leasehold_layout";
    match client.call(Lane::Attempts, version, Vec::new()).await {
        Ok(answer) => Ok(answer.rows.first().and_then(|row| row.get(0))),
        Err(error) if failure::code(&error) == Some(failure::NO_TABLE) => Ok(None),
        Err(error) => Err(error),
    }
}
