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
//! does not name the column at all passes: fence all writers, or none is safe.
//!
//! Where the locks are kept in the same database, a [`CheckSql`] needs neither column nor trigger.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::FencingToken;

/// The column that keeps the highest token, unless another is named.
pub const COLUMN: &str = "fencing_token";

/// The SQLSTATE that the trigger on PostgreSQL raises for a stale token.
pub const POSTGRES_STALE: &str = "LH409";

/// The SQLSTATE that the trigger on MySQL raises for a stale token; it has none of our own.
pub const MYSQL_STALE: &str = "45000";

/// Whose SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    /// The statements that install the column and the trigger, one by one. They may be run again.
    pub fn install_statements(&self) -> Vec<String> {
        let table = self.qualified(&self.table);
        let column = self.dialect.quote(&self.column);
        let trigger = self.named("_fence");
        match self.dialect {
            Dialect::Postgres => {
                let function = self.qualified(&trigger);
                // What ends the function's text must not stand in it.
                let mut end = "$fence$".to_owned();
                while column.contains(&end) {
                    end.insert(1, '_');
                }
                let trigger = self.dialect.quote(&trigger);
                vec![
                    format!(
                        "ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT 0;"
                    ),
                    format!(
                        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS {end}\n\
                         BEGIN\n\
                         \x20 IF NEW.{column} IS NULL OR NEW.{column} < OLD.{column} THEN\n\
                         \x20   RAISE EXCEPTION 'stale fencing token %: % has written already', NEW.{column}, OLD.{column}\n\
                         \x20     USING ERRCODE = '{POSTGRES_STALE}', HINT = 'The lease was lost; give up the work.';\n\
                         \x20 END IF;\n\
                         \x20 RETURN NEW;\n\
                         END {end};"
                    ),
                    format!("DROP TRIGGER IF EXISTS {trigger} ON {table};"),
                    format!(
                        "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {function}();"
                    ),
                ]
            }
            Dialect::Mysql => {
                let trigger = self.qualified(&trigger);
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
                vec![
                    // MySQL has no ADD COLUMN IF NOT EXISTS.
                    format!(
                        "SET @leasehold_add = (SELECT IF(COUNT(*) = 0, {add}, 'DO 0') FROM information_schema.columns \
                         WHERE table_schema = {schema} AND table_name = {table_text} AND column_name = {column_text});"
                    ),
                    "PREPARE leasehold_add FROM @leasehold_add;".to_owned(),
                    "EXECUTE leasehold_add;".to_owned(),
                    "DEALLOCATE PREPARE leasehold_add;".to_owned(),
                    format!("DROP TRIGGER IF EXISTS {trigger};"),
                    format!(
                        "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW\n\
                         IF NEW.{column} < OLD.{column} THEN\n\
                         \x20 SIGNAL SQLSTATE '{MYSQL_STALE}' SET MESSAGE_TEXT = {says};\n\
                         END IF;"
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
                format!(
                    "DROP TRIGGER IF EXISTS {} ON {table};",
                    self.dialect.quote(&trigger)
                ),
                format!("DROP FUNCTION IF EXISTS {qualified}();"),
                format!("ALTER TABLE {table} DROP COLUMN IF EXISTS {column};"),
            ],
            Dialect::Mysql => vec![
                format!("DROP TRIGGER IF EXISTS {qualified};"),
                format!("ALTER TABLE {table} DROP COLUMN {column};"),
            ],
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
