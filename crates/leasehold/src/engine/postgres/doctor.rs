//! What the settings of a PostgreSQL server mean for locks.

use std::collections::HashMap;
use std::time::Duration;

use humantime::format_duration;
use tokio_postgres::Row;
use tokio_postgres::config::Host;

use super::client::{Client, cell};
use super::config::PostgresConfig;
use super::health;
use crate::claim::Ttl;
use crate::engine::doctor::{self, Finding};
use crate::engine::sql::doctor::{connections, idle_timeout};
use crate::engine::sql::store::Lane;

/// As they are for the user and the database of the URL.
const SETTINGS: &str = "SELECT name::pg_catalog.text, setting::pg_catalog.text FROM pg_catalog.pg_settings \
    WHERE name IN ('server_version', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', \
    'idle_session_timeout', 'statement_timeout', 'max_connections', 'superuser_reserved_connections')";

/// How many connections there are; how many standbys, and how many of those are synchronous, if this user may know.
const STATE: &str = "SELECT (SELECT pg_catalog.sum(numbackends)::pg_catalog.int8 FROM pg_catalog.pg_stat_database), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication), \
    (SELECT pg_catalog.count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_catalog.pg_stat_replication \
    HAVING pg_catalog.count(*) = pg_catalog.count(sync_state)), \
    (SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_catalog.pg_backend_pid())";

const CLOCK: &str = "SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::pg_catalog.int8";

type Settings = HashMap<String, String>;

pub(super) async fn findings(client: &Client, ttl: Ttl) -> Vec<Finding> {
    let config = client.config();
    let mut findings = match health::check(config).await {
        Ok(found) => found.findings,
        Err(error) => vec![Finding::refused(&error)],
    };
    let settings: Settings = match ask(client, SETTINGS).await {
        Some(rows) => rows
            .iter()
            .filter_map(|row| Some((cell(row, 0).ok()?, cell(row, 1).ok()?)))
            .collect(),
        None => Settings::new(),
    };
    let state = ask(client, STATE).await;
    let state = state.as_ref().and_then(|rows| rows.first());
    let count = |column| state.and_then(|row| cell::<Option<i64>>(row, column).ok()?);
    let setting = |name: &str| settings.get(name).map(String::as_str);
    let number = |name: &str| setting(name)?.parse::<u64>().ok();

    findings.extend([
        Finding::of("server", setting("server_version"), |version| {
            Finding::good("server", format!("PostgreSQL {version}"))
        }),
        Finding::of(
            "full_page_writes",
            setting("full_page_writes"),
            full_page_writes,
        ),
        Finding::of(
            "synchronous_commit",
            setting("synchronous_commit").zip(setting("synchronous_standby_names")),
            synchronous_commit,
        ),
        Finding::of(
            "synchronous_standbys",
            setting("synchronous_standby_names").map(|names| (names, count(1), count(2))),
            synchronous_standbys,
        ),
        // Servers before 14 have none.
        idle_timeout(
            "idle_session_timeout",
            number("idle_session_timeout")
                .or_else(|| setting("server_version").map(|_| 0))
                .map(Duration::from_millis),
            ttl,
            "ALTER ROLE … SET idle_session_timeout = 0",
        ),
        Finding::of("statement_timeout", number("statement_timeout"), |millis| {
            statement_timeout(millis, config.timeout)
        }),
        connections(
            count(0).and_then(|used| u64::try_from(used).ok()),
            number("max_connections").map(|all| {
                all.saturating_sub(number("superuser_reserved_connections").unwrap_or(0))
            }),
        ),
        clock(client).await,
        cleartext(config, state.and_then(|row| cell(row, 3).ok()?)),
    ]);
    findings
}

async fn ask(client: &Client, query: &str) -> Option<Vec<Row>> {
    client.ask(Lane::Attempts, query, &[]).await.ok()?.ok()
}

fn full_page_writes(setting: &str) -> Finding {
    let seen = format!("full_page_writes {setting}");
    match setting {
        "off" => Finding::efficiency("full_page_writes", seen)
            .means("a power cut can damage the tables of the locks")
            .fix("ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()"),
        _ => Finding::good("full_page_writes", seen),
    }
}

/// Off is no harm: the functions that grant locks switch it on.
fn synchronous_commit((setting, standbys): (&str, &str)) -> Finding {
    let seen = format!("synchronous_commit {setting}");
    match setting {
        "local" if !standbys.is_empty() => Finding::efficiency("synchronous_commit", seen)
            .means("grants do not wait for the standbys: a failover can lose a lock that was just granted")
            .fix("ALTER ROLE … SET synchronous_commit = on"),
        _ => Finding::good("synchronous_commit", seen),
    }
}

fn synchronous_standbys((names, all, synchronous): (&str, Option<i64>, Option<i64>)) -> Finding {
    const ID: &str = "synchronous_standbys";
    if names.is_empty() {
        return Finding::good(ID, "none are asked for");
    }
    match (all, synchronous) {
        (Some(0), _) | (_, Some(0)) => Finding::warning(
            ID,
            format!("synchronous_standby_names {names:?}, and none is connected"),
        )
        .means("commits wait until one is: no lock can be acquired")
        .fix("start a standby, or ALTER SYSTEM SET synchronous_standby_names = ''"),
        (_, Some(connected)) => Finding::good(ID, format!("{connected} connected")),
        (_, None) => Finding::unknown(ID, "the user may not see them (GRANT pg_read_all_stats)"),
    }
}

/// A call may wait for row locks for some time before it says so.
fn statement_timeout(millis: u64, needed: Duration) -> Finding {
    let seen = format!("statement_timeout {millis}");
    match millis == 0 || Duration::from_millis(millis) >= needed {
        true => Finding::good("statement_timeout", seen),
        false => Finding::warning("statement_timeout", seen)
            .means(format!(
                "the server ends calls before their own time limit of {}: under load, renewals fail",
                format_duration(needed)
            ))
            .fix("ALTER ROLE … SET statement_timeout = 0"),
    }
}

async fn clock(client: &Client) -> Finding {
    let before = doctor::now();
    let rows = ask(client, CLOCK).await;
    let said = rows
        .as_ref()
        .and_then(|rows| cell::<i64>(rows.first()?, 0).ok());
    Finding::of("clock", said, |said| {
        doctor::clock_offset(before, said.unsigned_abs(), doctor::now())
    })
}

fn cleartext(config: &PostgresConfig, tls: Option<bool>) -> Finding {
    let server = config.server();
    let Some(Host::Tcp(host)) = server.get_hosts().first() else {
        return Finding::good("cleartext", "a socket of this machine");
    };
    let has_password = server.get_password().is_some();
    Finding::of("cleartext", tls, |tls| {
        doctor::cleartext([host.as_str()], tls, has_password)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn standbys_that_nobody_may_see_are_unknown() {
        for (names, all, synchronous, weight) in [
            ("", Some(0), Some(0), Weight::Good),
            ("", None, None, Weight::Good),
            ("*", Some(0), None, Weight::Warning),
            ("*", Some(2), Some(0), Weight::Warning),
            ("*", Some(2), Some(1), Weight::Good),
            ("*", Some(2), None, Weight::Unknown),
        ] {
            let finding = synchronous_standbys((names, all, synchronous));
            assert_eq!(finding.weight, weight, "{finding}");
        }
    }
}
