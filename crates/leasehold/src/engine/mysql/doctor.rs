//! What the settings of a MySQL or MariaDB server mean for locks.

use std::collections::HashMap;
use std::time::Duration;

use super::client::Client;
use super::health;
use crate::claim::Ttl;
use crate::engine::doctor::{self, Finding};
use crate::engine::sql::doctor::{connections, idle_timeout};
use crate::engine::sql::store::Lane;

/// Those of the session are those of every new one.
const SETTINGS: &str =
    "SHOW VARIABLES WHERE variable_name IN ('version', 'wait_timeout', 'max_connections')";

const STATUS: &str = "SHOW STATUS WHERE variable_name IN ('Threads_connected', 'Ssl_cipher')";

const CLOCK: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";

pub(super) async fn findings(client: &Client, ttl: Ttl) -> Vec<Finding> {
    let mut findings = match health::check(client).await {
        Ok(findings) => findings,
        Err(error) => vec![Finding::refused(&error)],
    };
    let settings = ask(client, SETTINGS).await;
    let status = ask(client, STATUS).await;
    let number = |name: &str| settings.get(name)?.parse::<u64>().ok();
    let used = status.get("Threads_connected");
    let opts = client.config().opts(None);
    findings.extend([
        Finding::of("server", settings.get("version"), |version| {
            Finding::good("server", version)
        }),
        idle_timeout(
            "wait_timeout",
            number("wait_timeout").map(Duration::from_secs),
            ttl,
            "SET GLOBAL wait_timeout = 28800",
        ),
        connections(
            used.and_then(|used| used.parse().ok()),
            number("max_connections"),
        ),
        clock(client).await,
        Finding::of("cleartext", status.get("Ssl_cipher"), |cipher| {
            let has_password = opts.pass().is_some_and(|password| !password.is_empty());
            doctor::cleartext([opts.ip_or_hostname()], !cipher.is_empty(), has_password)
        }),
    ]);
    findings
}

/// Names and values; none if the user may not ask.
async fn ask(client: &Client, question: &str) -> HashMap<String, String> {
    let Ok(answer) = client.call(Lane::Attempts, question, Vec::new()).await else {
        return HashMap::new();
    };
    let rows = answer.rows.iter();
    rows.filter_map(|row| Some((row.get(0)?, row.get(1)?)))
        .collect()
}

async fn clock(client: &Client) -> Finding {
    let before = doctor::now();
    let answer = client.call(Lane::Attempts, CLOCK, Vec::new()).await;
    let said = answer.ok().and_then(|answer| answer.first().ok()?.get(0));
    Finding::of("clock", said, |said| {
        doctor::clock_offset(before, said, doctor::now())
    })
}
