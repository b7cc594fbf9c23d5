//! How the tables and functions are created: by the engine, or by an operator from the same text.

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::client::{Client, cell};
use super::config::{DEFAULT_SCHEMA, check_schema};
use super::failure;
use crate::engine::sql::failure::{may_not_create, newer_layout};
use crate::engine::sql::store::Lane;
use crate::error::{ErrorKind, Result};

/// The layout of the tables and functions that this version uses.
pub(crate) const LAYOUT: i32 = 2;

/// The SQL that creates leasehold's tables and functions in this schema, or brings older ones up to date.
pub fn sql(schema: &str) -> Result<String> {
    check_schema(schema)?;
    let text = [
        include_str!("sql/tables.sql"),
        include_str!("sql/turns.sql"),
        include_str!("sql/queue.sql"),
        include_str!("sql/sweep.sql"),
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

/// Creates the tables and functions, unless they are there with this layout.
pub(crate) async fn ensure(client: &Client) -> Result<()> {
    check_owners(client).await?;
    match found(client).await? {
        Some(LAYOUT) => return Ok(()),
        Some(newer) if newer > LAYOUT => {
            return Err(newer_layout(
                newer.into(),
                LAYOUT.into(),
                failure::OTHER_SCHEMA,
            ));
        }
        Some(_) | None => {}
    }
    let script = once(client.schema())?;
    let created = client.run_script(Lane::Attempts, &script).await?;
    match created.map_err(failure::of_call) {
        // Another role may have created the schema meanwhile.
        Ok(()) => check_owners(client).await,
        Err(error) if error.kind() == ErrorKind::Denied => Err(may_not_create(
            &error,
            format!(
                "let someone who may run the SQL that `leasehold schema postgres --schema {}` prints, and grant this user USAGE \
                 on the schema and SELECT, INSERT, UPDATE and DELETE on its tables",
                client.schema()
            ),
        )),
        Err(error) => Err(error),
    }
}

/// The same, but only if the tables do not have this layout yet. Many processes may start at once: one of them creates the tables, and those that have
/// waited for it do nothing, since to create them again would block calls that take locks already.
fn once(schema: &str) -> Result<String> {
    let all = sql(schema)?;
    Ok(format!(
        "SELECT pg_catalog.pg_advisory_xact_lock(1818583923, -1);\n\
         DO $once$\n\
         BEGIN\n\
         \x20 IF pg_catalog.to_regclass('\"{schema}\".layout') IS NOT NULL THEN\n\
         \x20   PERFORM FROM \"{schema}\".layout WHERE version = {LAYOUT};\n\
         \x20   IF FOUND THEN\n\
         \x20     RETURN;\n\
         \x20   END IF;\n\
         \x20 END IF;\n\
         \x20 EXECUTE $all$\n{all}\n$all$;\n\
         END\n\
         $once$;"
    ))
}

/// An owner of the schema, or of a table or function in it, that is not trusted. (A superuser is a member of every role; that does not make every owner trusted
/// for it.)
const STRANGER: &str = "
    SELECT owner.rolname::pg_catalog.text
    FROM pg_catalog.pg_roles me, pg_catalog.pg_database db, pg_catalog.pg_namespace n, pg_catalog.pg_roles owner
    WHERE me.rolname = current_user AND db.datname = pg_catalog.current_database() AND n.nspname = $1
      AND (owner.oid = n.nspowner
        OR owner.oid IN (SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid)
        OR owner.oid IN (SELECT p.proowner FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid))
      AND owner.oid <> me.oid AND NOT owner.rolsuper AND owner.rolname <> $2
      AND (me.rolsuper OR (owner.oid <> db.datdba AND NOT pg_catalog.pg_has_role(me.oid, owner.oid, 'MEMBER')))
    LIMIT 1";

/// Functions, and triggers on tables, run with the rights of the user that takes a lock: so their owners must be trusted.
async fn check_owners(client: &Client) -> Result<()> {
    let schema = client.schema();
    let trusted = client.config().schema_owner.as_deref().unwrap_or("");
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&schema, Type::NAME), (&trusted, Type::NAME)];
    let asked = client.ask(Lane::Attempts, STRANGER, &parameters).await?;
    let rows = asked.map_err(failure::of_call)?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let owner: String = cell(row, 0)?;
    Err(failure::unfit(format!(
        "the schema {schema:?}, or something in it, belongs to {owner:?}, whose functions would run with the rights of this user"
    ))
    .advise(format!(
        "if you trust that role, say ?schema_owner={owner}; otherwise use another schema (?schema=), or let an administrator change the owner"
    )))
}

/// The layout of the tables; `None` if there are none.
async fn found(client: &Client) -> Result<Option<i32>> {
    let query = format!("SELECT version FROM {}.layout", client.quoted_schema());
    match client.ask(Lane::Attempts, &query, &[]).await? {
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
