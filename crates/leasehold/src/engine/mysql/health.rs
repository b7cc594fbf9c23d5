//! Whether a server can be trusted with locks, and what to know about it.

use super::failure::{self, unfit};
use super::server::{Lane, Server};
use crate::error::Result;

const QUESTION: &str = "SELECT VERSION(), @@GLOBAL.read_only, @@GLOBAL.innodb_flush_log_at_trx_commit, \
    (SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%')";

/// Refuses a server that cannot serve; what its user should know of one that can.
pub(crate) async fn check(server: &Server) -> Result<Vec<String>> {
    let answer = server.call(Lane::Begin, QUESTION, Vec::new()).await?;
    let row = answer.first()?;
    let version: String = row.get(0).unwrap_or_default();
    if is_too_old(&version) {
        return Err(unfit(format!("the server is version {version}"))
            .advise("use MySQL 8 or newer, or MariaDB 10.6 or newer"));
    }
    // Some users may write all the same; that is seen when they do.
    if row.get(1) == Some(1) {
        may_write(server).await?;
    }
    let mut warnings = Vec::new();
    if row.get(2) != Some(1) {
        warnings.push(
            "the server does not wait for its disk at each commit (innodb_flush_log_at_trx_commit is not 1): a power cut can lose a \
             lock that was just granted"
                .to_owned(),
        );
    }
    let replicas: i64 = row.get(3).unwrap_or(0);
    if replicas > 0 {
        warnings.push(format!(
            "the server has {replicas} replica(s) that may lag: a failover can lose a lock that was just granted; check the \
             fencing token"
        ));
    }
    Ok(warnings)
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
async fn may_write(server: &Server) -> Result<()> {
    let write = "DELETE FROM leasehold_listeners WHERE id = ''";
    match server.call(Lane::Begin, write, Vec::new()).await {
        Ok(_) => Ok(()),
        // There are no tables yet: the attempt to make them tells.
        Err(error) if failure::code(&error) == Some(failure::NO_TABLE) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
