//! For the user's own tables: a column that keeps the highest token, a trigger that refuses lower ones, and the token in a
//! statement.
//!
//! ```
//! use leasehold::guard::sql::{Dialect, FenceTable};
//!
//! let fence = FenceTable::new(Dialect::Postgres, "orders")?;
//! println!("{}", fence.install()); // run it once, as the table's owner
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! From then on an `UPDATE` that sets the column to a lower token fails in the database, whoever sends it. An `UPDATE` that
//! does not name the column at all passes: fence all writers, or none is safe. So do a `DELETE`, and an `INSERT` of a row that is not there: there is
//! no earlier token to compare with. `docs/fencing.md` says how to cover those.
//!
//! Where the locks are kept in the same database, a [`CheckSql`] needs neither column nor trigger.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// The column that keeps the highest token, unless another is named.
pub const COLUMN: &str = "fencing_token";

/// The SQLSTATE with which the trigger on PostgreSQL refuses a stale token, and the [check](CheckSql) of a lease one that holds the lock no more.
pub const POSTGRES_STALE: &str = "LH409";

/// How the trigger on PostgreSQL begins what it says; its function is known by it.
const POSTGRES_SAYS: &str = "stale fencing token";

/// The SQLSTATE that the trigger on MySQL raises for a stale token; it has none of our own.
pub const MYSQL_STALE: &str = "45000";

/// Whose SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    Mysql,
}

impl FromStr for Dialect {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" | "mariadb" => Ok(Self::Mysql),
            _ => Err(invalid(format!("there is no fence for {text:?} tables"))
                .advise("use postgres or mysql")),
        }
    }
}

impl Dialect {
    /// The identifier in quotes, so that it can be nothing else.
    fn quote(self, identifier: &str) -> String {
        match self {
            Self::Postgres => format!("\"{}\"", identifier.replace('"', "\"\"")),
            Self::Mysql => format!("`{}`", identifier.replace('`', "``")),
        }
    }

    /// The text as a literal.
    fn literal(self, text: &str) -> String {
        let text = text.replace('\'', "''");
        match self {
            Self::Postgres => format!("'{text}'"),
            Self::Mysql => format!("'{}'", text.replace('\\', "\\\\")),
        }
    }

    /// The longest identifier that it takes, in bytes.
    fn longest(self) -> usize {
        match self {
            Self::Postgres => 63,
            Self::Mysql => 64,
        }
    }
}

/// A table of the user's that is to refuse stale writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceTable {
    dialect: Dialect,
    schema: Option<String>,
    table: String,
    column: String,
}

impl FenceTable {
    /// The table, as `table` or `schema.table`.
    pub fn new(dialect: Dialect, table: &str) -> Result<Self> {
        let (schema, table) = match table.split_once('.') {
            Some((schema, table)) => (Some(identifier(dialect, schema)?), table),
            None => (None, table),
        };
        Ok(Self {
            dialect,
            schema,
            table: identifier(dialect, table)?,
            column: COLUMN.to_owned(),
        })
    }

    /// Keeps the token in this column instead of `fencing_token`.
    pub fn column(mut self, column: &str) -> Result<Self> {
        self.column = identifier(self.dialect, column)?;
        Ok(self)
    }

    fn qualified(&self, name: &str) -> String {
        let name = self.dialect.quote(name);
        match &self.schema {
            Some(schema) => format!("{}.{name}", self.dialect.quote(schema)),
            None => name,
        }
    }

    /// A name that belongs to this table, cut to what the database takes.
    fn named(&self, ending: &str) -> String {
        let mut room = self.dialect.longest() - ending.len();
        while !self.table.is_char_boundary(room.min(self.table.len())) {
            room -= 1;
        }
        format!("{}{ending}", &self.table[..room.min(self.table.len())])
    }

    /// MySQL's triggers, for UPDATE, INSERT and DELETE. Their names belong to the whole database: none may be that of a trigger of the user's, or
    /// of another table whose name is as long.
    fn mysql_triggers(&self) -> [String; 3] {
        ["update", "insert", "delete"].map(|event| self.qualified(&self.mysql_name(event)))
    }

    /// Variables of a session, for when and with which token it last inserted into this table.
    fn mysql_variables(&self) -> (String, String) {
        let variable = |what| format!("@{}", self.dialect.quote(&self.mysql_name(what)));
        (variable("at"), variable("token"))
    }

    fn mysql_name(&self, what: &str) -> String {
        let name = format!("{}_leasehold_{what}", self.table);
        match name.len() <= self.dialect.longest() {
            true => name,
            false => self.named(&format!("_{:08x}_leasehold_{what}", hash(&self.table))),
        }
    }

    /// A statement for PostgreSQL that fails if a function or a trigger of the fence's name is there that is not the fence of this column. One
    /// that belongs to neither the table's owner nor this user could be changed by somebody else later.
    fn refuse_others(&self) -> String {
        let name = self.named("_fence");
        let [function, table, trigger, says, column] = [
            format!("{}()", self.qualified(&name)),
            self.qualified(&self.table),
            name,
            POSTGRES_SAYS.to_owned(),
            format!("NEW.{} ", self.dialect.quote(&self.column)),
        ]
        .map(|text| self.dialect.literal(&text));
        let body = format!(
            "DECLARE\n\
             \x20 v_function pg_catalog.oid := pg_catalog.to_regprocedure({function});\n\
             BEGIN\n\
             \x20 IF EXISTS (SELECT FROM pg_catalog.pg_proc p, pg_catalog.pg_class c, pg_catalog.pg_roles me\n\
             \x20   WHERE p.oid = v_function AND c.oid = pg_catalog.to_regclass({table}) AND me.rolname = current_user\n\
             \x20     AND (pg_catalog.strpos(p.prosrc, {says}) = 0 OR pg_catalog.strpos(p.prosrc, {column}) = 0\n\
             \x20       OR (p.proowner <> c.relowner AND p.proowner <> me.oid)))\n\
             \x20 OR EXISTS (SELECT FROM pg_catalog.pg_trigger t\n\
             \x20   WHERE t.tgrelid = pg_catalog.to_regclass({table}) AND t.tgname = {trigger} AND t.tgfoid IS DISTINCT FROM v_function)\n\
             \x20 THEN\n\
             \x20   RAISE EXCEPTION 'there is a function or a trigger % already that is not this fence', {trigger}\n\
             \x20     USING ERRCODE = 'duplicate_object';\n\
             \x20 END IF;\n\
             END"
        );
        format!("DO {};", dollar_quoted(&body))
    }

    /// The statements that install the column and the trigger, one by one. They may be run again.
    pub fn install_statements(&self) -> Vec<String> {
        let table = self.qualified(&self.table);
        let column = self.dialect.quote(&self.column);
        let trigger = self.named("_fence");
        match self.dialect {
            Dialect::Postgres => {
                let function = self.qualified(&trigger);
                let trigger = self.dialect.quote(&trigger);
                let body = format!(
                    "BEGIN\n\
                     \x20 IF NEW.{column} IS NULL OR NEW.{column} OPERATOR(pg_catalog.<) OLD.{column} THEN\n\
                     \x20   RAISE EXCEPTION '{POSTGRES_SAYS} %: % has written already', NEW.{column}, OLD.{column}\n\
                     \x20     USING ERRCODE = '{POSTGRES_STALE}', HINT = 'The lease was lost; give up the work.';\n\
                     \x20 END IF;\n\
                     \x20 RETURN NEW;\n\
                     END"
                );
                vec![
                    self.refuse_others(),
                    format!(
                        "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT 0;"
                    ),
                    format!(
                        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {};",
                        dollar_quoted(&body)
                    ),
                    format!("DROP TRIGGER IF EXISTS {trigger} ON {table};"),
                    format!(
                        "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();"
                    ),
                ]
            }
            Dialect::Mysql => {
                let [update, insert, delete] = self.mysql_triggers();
                let (at, token) = self.mysql_variables();
                let says = self
                    .dialect
                    .literal("stale fencing token: a later holder has written already");
                let schema = match &self.schema {
                    Some(schema) => self.dialect.literal(schema),
                    None => "DATABASE()".to_owned(),
                };
                let (table_text, column_text) = (
                    self.dialect.literal(&self.table),
                    self.dialect.literal(&self.column),
                );
                let add = self.dialect.literal(&format!(
                    "ALTER TABLE {table} ADD COLUMN {column} BIGINT NOT NULL DEFAULT 0"
                ));
                let refuse = |when: String| {
                    format!(
                        "IF {when} THEN\n\
                         \x20 SIGNAL SQLSTATE '{MYSQL_STALE}' SET MESSAGE_TEXT = {says};\n\
                         END IF;"
                    )
                };
                let stale_update = refuse(format!(
                    "NEW.{column} IS NULL OR NEW.{column} < OLD.{column}"
                ));
                let stale_replace = refuse(format!("{at} = NOW(6) AND {token} < OLD.{column}"));
                vec![
                    // MySQL has no ADD COLUMN IF NOT EXISTS.
                    format!(
                        "SET @leasehold_add = (SELECT IF(COUNT(*) = 0, {add}, 'DO 0') FROM information_schema.columns \
                         WHERE table_schema = {schema} AND table_name = {table_text} AND column_name = {column_text});"
                    ),
                    "PREPARE leasehold_add FROM @leasehold_add;".to_owned(),
                    "EXECUTE leasehold_add;".to_owned(),
                    "DEALLOCATE PREPARE leasehold_add;".to_owned(),
                    format!("DROP TRIGGER IF EXISTS {update};"),
                    format!(
                        "CREATE TRIGGER {update} BEFORE UPDATE ON {table} FOR EACH ROW\n{stale_update}"
                    ),
                    // A REPLACE inserts, and deletes what is in the way: a DELETE of the same statement as an INSERT. All triggers of a
                    // statement see the same time.
                    format!("DROP TRIGGER IF EXISTS {insert};"),
                    format!(
                        "CREATE TRIGGER {insert} BEFORE INSERT ON {table} FOR EACH ROW\n\
                         SET {at} = NOW(6), {token} = NEW.{column};"
                    ),
                    format!("DROP TRIGGER IF EXISTS {delete};"),
                    format!(
                        "CREATE TRIGGER {delete} BEFORE DELETE ON {table} FOR EACH ROW\n{stale_replace}"
                    ),
                ]
            }
        }
    }

    /// All of [`install_statements`](Self::install_statements) as one text, for `psql` or `mysql`.
    pub fn install(&self) -> String {
        let statements = self.install_statements();
        match self.dialect {
            Dialect::Postgres => format!("BEGIN;\n{}\nCOMMIT;\n", statements.join("\n")),
            // The trigger's body has semicolons of its own, which the mysql program would take for the end.
            Dialect::Mysql => statements.iter().fold(String::new(), |text, statement| {
                let statement = statement.trim_end_matches(';');
                if statement.contains(';') {
                    format!("{text}DELIMITER //\n{statement}//\nDELIMITER ;\n")
                } else {
                    format!("{text}{statement};\n")
                }
            }),
        }
    }

    /// The statements that take both away again.
    pub fn uninstall_statements(&self) -> Vec<String> {
        let table = self.qualified(&self.table);
        let column = self.dialect.quote(&self.column);
        let trigger = self.named("_fence");
        let qualified = self.qualified(&trigger);
        match self.dialect {
            Dialect::Postgres => vec![
                self.refuse_others(),
                format!(
                    "DROP TRIGGER IF EXISTS {} ON {table};",
                    self.dialect.quote(&trigger)
                ),
                format!("DROP FUNCTION IF EXISTS {qualified}();"),
                format!("ALTER TABLE {table} DROP COLUMN IF EXISTS {column};"),
            ],
            Dialect::Mysql => {
                let drop = |trigger| format!("DROP TRIGGER IF EXISTS {trigger};");
                let mut statements = self.mysql_triggers().map(drop).to_vec();
                statements.push(format!("ALTER TABLE {table} DROP COLUMN {column};"));
                statements
            }
        }
    }
}

/// A token that can stand in a statement: a number and a quoted column, so nothing in it can be taken for SQL.
///
/// ```
/// # use leasehold::{FencingToken, guard::sql::{Dialect, FenceSql}};
/// # let token = FencingToken::new(42).unwrap();
/// let fence = FenceSql::new(Dialect::Postgres, token); // or lease.fence_sql(Dialect::Postgres)
/// let update = format!("UPDATE orders SET state = $1, {} WHERE id = $2 AND {}", fence.set(), fence.holds());
/// assert_eq!(
///     update,
///     r#"UPDATE orders SET state = $1, "fencing_token" = 42 WHERE id = $2 AND "fencing_token" <= 42"#
/// );
/// ```
///
/// With `holds()` a stale write changes no row; without it, on a table with the trigger, it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceSql {
    column: String,
    token: FencingToken,
}

impl FenceSql {
    /// The token, for the column `fencing_token`.
    pub fn new(dialect: Dialect, token: FencingToken) -> Self {
        Self {
            column: dialect.quote(COLUMN),
            token,
        }
    }

    /// For another column.
    pub fn column(dialect: Dialect, column: &str, token: FencingToken) -> Result<Self> {
        Ok(Self {
            column: dialect.quote(&identifier(dialect, column)?),
            token,
        })
    }

    /// What stands behind `SET`.
    pub fn set(&self) -> String {
        format!("{} = {}", self.column, self.token)
    }

    /// What stands in `WHERE`: true for rows that no later holder has written.
    pub fn holds(&self) -> String {
        format!("{} <= {}", self.column, self.token)
    }
}

impl fmt::Display for FenceSql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.set())
    }
}

/// A statement for a transaction of the user's own, in the database that keeps the locks: it fails unless the lease is held, and then
/// nobody else is let in before the transaction has ended. From [`LeaseView::check_sql`](crate::LeaseView::check_sql).
///
/// On PostgreSQL it fails with [`POSTGRES_STALE`] and ends the transaction; on MySQL with [`MYSQL_STALE`], and the transaction is to be
/// rolled back. Renewals do not wait for it; a release does, so end the transaction first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckSql {
    statement: String,
    lock: LockName,
    token: FencingToken,
}

impl CheckSql {
    pub(crate) fn new(statement: String, lock: LockName, token: FencingToken) -> Self {
        Self {
            statement,
            lock,
            token,
        }
    }

    /// The statement, with places for two parameters.
    pub fn statement(&self) -> &str {
        &self.statement
    }

    /// The parameters: the lock's name and the token.
    pub fn parameters(&self) -> (&str, i64) {
        // A token is always below 2^53.
        let token = i64::try_from(self.token.get()).unwrap_or(i64::MAX);
        (self.lock.as_str(), token)
    }
}

/// For PostgreSQL: what ends the text must not stand in it.
fn dollar_quoted(text: &str) -> String {
    let mut end = "$fence$".to_owned();
    while text.contains(&end) {
        end.insert(1, '_');
    }
    format!("{end}\n{text} {end}")
}

fn identifier(dialect: Dialect, name: &str) -> Result<String> {
    let longest = dialect.longest();
    if name.is_empty() || name.len() > longest || name.chars().any(char::is_control) {
        return Err(
            invalid(format!("{name:?} cannot be the name of a table or column")).advise(format!(
                "use 1 to {longest} bytes without control characters"
            )),
        );
    }
    Ok(name.to_owned())
}

/// FNV-1a: the same for ever, since what was installed is to be found again.
fn hash(text: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, step)
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_can_be_nothing_else() {
        let odd = "x\"; DROP TABLE y; --";
        let sql = FenceTable::new(Dialect::Postgres, odd).unwrap().install();
        assert!(sql.contains("\"x\"\"; DROP TABLE y; --\""), "{sql}");
        let odd = "x`; DROP TABLE y; -- '\\";
        let sql = FenceTable::new(Dialect::Mysql, odd).unwrap().install();
        assert!(sql.contains("`x``; DROP TABLE y; -- '\\`"), "{sql}");
        let sql = FenceTable::new(Dialect::Postgres, "a.b").unwrap().install();
        assert!(sql.contains("ALTER TABLE \"a\".\"b\""), "{sql}");
        let column = FenceTable::new(Dialect::Postgres, "t")
            .unwrap()
            .column("x$fence$y")
            .unwrap();
        assert!(
            column.install().contains("AS $_fence$"),
            "{}",
            column.install()
        );
        for bad in ["", "a.", ".a", "a\nb", &"x".repeat(64)] {
            assert!(FenceTable::new(Dialect::Postgres, bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn long_names_are_cut_where_a_letter_ends() {
        let long = "é".repeat(31);
        let fence = FenceTable::new(Dialect::Postgres, &long).unwrap();
        assert!(fence.named("_fence").len() <= 63);
    }
}
