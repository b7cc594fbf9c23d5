//! Whether a server can be trusted with locks, and what to know about it.

use std::collections::HashMap;

use super::client::Client;
use super::failure::{self, unfit};
use crate::engine::doctor::Finding;
use crate::engine::sql::store::Lane;
use crate::error::{Error, Result};

const QUESTION: &str = "SELECT VERSION(), @@GLOBAL.read_only, @@GLOBAL.innodb_flush_log_at_trx_commit, \
    (SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'), \
    @@GLOBAL.log_bin, @@GLOBAL.sync_binlog";

/// Variables that show a cluster. A server without one does not know these variables at all.
const CLUSTER: &str = "SHOW VARIABLES WHERE variable_name IN ('wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')";

/// Refuses a server that cannot serve; what is found of one that can.
pub(crate) async fn check(client: &Client) -> Result<Vec<Finding>> {
    let answer = client.call(Lane::Attempts, CLUSTER, Vec::new()).await?;
    let variables = answer
        .rows
        .iter()
        .filter_map(|row| Some((row.get(0)?, row.get(1)?)));
    if let Some(error) = several_primaries(&variables.collect()) {
        return Err(error);
    }
    let answer = client.call(Lane::Attempts, QUESTION, Vec::new()).await?;
    let row = answer.first()?;
    let version: String = row.get(0).unwrap_or_default();
    if is_too_old(&version) {
        return Err(unfit(format!("the server is version {version}"))
            .advise("use MySQL 8 or newer, or MariaDB 10.6 or newer"));
    }
    // Some users may write all the same; that is seen when they do.
    if row.get(1) == Some(1) {
        may_write(client).await?;
    }
    let mut findings = vec![flush(row.get(2))];
    if row.get(4) == Some(1) {
        findings.push(binary_log(row.get(5)));
    }
    findings.push(replicas(row.get(3).unwrap_or(0)));
    Ok(findings)
}

/// 3 is MariaDB's own, and waits more often still.
fn flush(setting: Option<i64>) -> Finding {
    Finding::of("flush", setting, |setting| {
        let seen = format!("innodb_flush_log_at_trx_commit is {setting}");
        match setting {
            1 | 3 => Finding::good("flush", seen),
            _ => Finding::efficiency("flush", seen)
                .means("the server does not wait for its disk at each commit: a power cut can lose a lock that was just granted")
                .fix("SET GLOBAL innodb_flush_log_at_trx_commit = 1, and the same in its configuration"),
        }
    })
}

/// After a crash, the server rolls back what its binary log has lost.
fn binary_log(setting: Option<i64>) -> Finding {
    Finding::of("binary_log", setting, |setting| {
        let seen = format!("sync_binlog is {setting}");
        match setting {
            1 => Finding::good("binary_log", seen),
            _ => Finding::efficiency("binary_log", seen)
                .means("the server does not wait for its binary log at each commit: a power cut can lose a lock that was just granted")
                .fix("SET GLOBAL sync_binlog = 1, and the same in its configuration"),
        }
    })
}

fn replicas(replicas: i64) -> Finding {
    match replicas {
        0 => Finding::good("replicas", "none that the user can see"),
        _ => Finding::efficiency("replicas", format!("{replicas} replica(s)"))
            .means("the server has replicas that may lag: a failover can lose a lock that was just granted")
            .fix("check the fencing token at the resource"),
    }
}

/// Why a node that takes writes beside others cannot serve: it locks rows for itself alone, so that two nodes may grant one lock at once, and
/// one of them takes the grant back after it was answered.
fn several_primaries(variables: &HashMap<String, String>) -> Option<Error> {
    let is = |name: &str, value: &str| {
        let found = variables.get(name);
        found.is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    let refused = |what: &str| {
        unfit(format!(
            "the server is a node of {what}, where several nodes take writes, and locks do not hold"
        ))
    };
    if is("wsrep_on", "ON") && !is("wsrep_provider", "none") {
        return Some(refused("a Galera cluster").advise(
            "keep the locks on a server of its own (it may be a small one), or use another engine: etcd, ZooKeeper, PostgreSQL",
        ));
    }
    if is("group_replication_single_primary_mode", "OFF") {
        return Some(refused("a replication group with many primaries").advise(
            "switch the group to a single primary (group_replication_switch_to_single_primary_mode), or keep the locks on a server of its own",
        ));
    }
    None
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version
        .split(['.', '-'])
        .map_while(|part| part.parse().ok());
    let version_number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version.contains("MariaDB") {
        true => version_number < (10, 6),
        false => version_number < (8, 0),
    }
}

/// Whether this user may write on a server that is read-only for others.
async fn may_write(client: &Client) -> Result<()> {
    let write = "DELETE FROM leasehold_listeners WHERE id = ''";
    match client.call(Lane::Attempts, write, Vec::new()).await {
        Ok(_) => Ok(()),
        // There are no tables yet: the attempt to make them shows it.
        Err(error) if failure::code(&error) == Some(failure::NO_TABLE) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_writes_beside_others_is_refused() {
        let refused = |variables: &[(&str, &str)]| {
            let variables = variables.iter().copied();
            let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
            several_primaries(&owned.collect()).map(|error| error.to_string())
        };
        let galera = ("wsrep_provider", "/usr/lib/galera/libgalera_smm.so");
        for (variables, contains) in [
            (&[("wsrep_on", "ON"), galera][..], "Galera"),
            (&[("wsrep_on", "on"), galera], "Galera"),
            // What some forks do not show is no reason to trust them.
            (&[("wsrep_on", "ON")], "Galera"),
            (
                &[("group_replication_single_primary_mode", "OFF")],
                "many primaries",
            ),
            (
                &[
                    ("wsrep_on", "OFF"),
                    ("group_replication_single_primary_mode", "OFF"),
                ],
                "many primaries",
            ),
        ] {
            let said = refused(variables);
            assert!(
                said.as_deref().is_some_and(|said| said.contains(contains)),
                "{variables:?}: {said:?}"
            );
        }
        for fine in [
            &[][..],
            &[("wsrep_on", "OFF"), ("wsrep_provider", "none")],
            &[("wsrep_on", "OFF"), galera],
            &[("wsrep_on", "ON"), ("wsrep_provider", "none")],
            &[("group_replication_single_primary_mode", "ON")],
        ] {
            assert_eq!(refused(fine), None, "{fine:?}");
        }
    }

    #[test]
    fn versions_that_are_too_old() {
        for old in ["5.7.44-log", "10.5.29-MariaDB", "5.5.5", "nonsense"] {
            assert!(is_too_old(old), "{old}");
        }
        for fine in [
            "8.0.36",
            "8.4.2-commercial",
            "9.1.0",
            "10.6.1-MariaDB-log",
            "11.4.2-MariaDB",
        ] {
            assert!(!is_too_old(fine), "{fine}");
        }
    }
}
