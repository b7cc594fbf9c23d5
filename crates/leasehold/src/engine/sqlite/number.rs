//! Whole numbers as SQLite stores them: with a sign. The versions of rusqlite differ in whether they convert those without one.

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};

pub(super) struct Number(pub(super) u64);

impl ToSql for Number {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let number = i64::try_from(self.0);
        number
            .map(ToSqlOutput::from)
            .map_err(|cause| rusqlite::Error::ToSqlConversionFailure(cause.into()))
    }
}

impl FromSql for Number {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let number = value.as_i64()?;
        let unsigned = u64::try_from(number).map(Number);
        unsigned.map_err(|_| FromSqlError::OutOfRange(number))
    }
}
