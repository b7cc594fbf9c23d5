//! Whether a server can be trusted with locks, and what to know about it.

use super::failure::{self, read_only, unfit};
use super::server::{Lane, Server};
use crate::error::Result;

/// The oldest version that has all that the functions need.
const OLDEST: i32 = 130_000;

const QUESTION: &str = "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), \
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', current_setting('fsync'), \
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), pg_backend_pid()";

/// What is known of a server that can serve.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) warnings: Vec<String>,
    /// Two connections share a session: there is a pooler in between that gives each transaction another one.
    pub(crate) pooled: bool,
}

/// Refuses a server that cannot serve.
pub(crate) async fn check(server: &Server) -> Result<Found> {
    let rows = server.ask(Lane::Begin, QUESTION).await?;
    let rows = rows.map_err(failure::of_call)?;
    let row = rows.first().ok_or_else(|| failure::nonsense("no row"))?;
    let version: i32 = row.get(0);
    if version < OLDEST {
        return Err(
            unfit(format!("the server is PostgreSQL {}", version / 10_000))
                .advise("use 13 or newer"),
        );
    }
    let encoding: String = row.get(1);
    if encoding != "UTF8" {
        return Err(unfit(format!("the database is encoded as {encoding}"))
            .advise("use a database whose encoding is UTF8"));
    }
    if row.get(2) {
        return Err(read_only());
    }
    let mut warnings = Vec::new();
    if row.get::<_, String>(3) == "off" {
        warnings.push(
            "the server does not wait for its disk (fsync is off): a power cut can lose a lock that was granted, or all"
                .to_owned(),
        );
    }
    let standbys: i64 = row.get(5);
    if standbys > 0 && row.get::<_, String>(4).is_empty() {
        warnings.push(format!(
            "the server has {standbys} standby(s) that may lag: a failover can lose a lock that was just granted; set \
             synchronous_standby_names, or check the fencing token"
        ));
    }
    let mine: i32 = row.get(6);
    let rows = server.ask(Lane::GoOn, "SELECT pg_backend_pid()").await?;
    let rows = rows.map_err(failure::of_call)?;
    let pooled = rows.first().is_some_and(|row| row.get::<_, i32>(0) == mine);
    Ok(Found { warnings, pooled })
}
