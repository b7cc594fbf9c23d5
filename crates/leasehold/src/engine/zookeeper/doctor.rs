//! What an ensemble and its settings mean for locks.

use zookeeper_client::Permission;

use super::client::Session;
use super::{ZooKeeper, other_timeout};
use crate::engine::doctor::{self, Finding};

/// Where the servers keep the list of themselves.
const ENSEMBLE: &str = "/zookeeper/config";

pub(super) async fn findings(zookeeper: &ZooKeeper) -> Vec<Finding> {
    let config = &zookeeper.locks.config;
    let Ok(session) = zookeeper.locks.sessions.living().await else {
        return vec![Finding::unknown("settings", "the servers do not answer")];
    };
    vec![
        other_timeout(config.session_timeout, session.client.session_timeout()),
        ensemble(&session).await,
        permissions(&session, config.root.node(), config.login.is_some()).await,
        cleartext(config),
    ]
}

fn cleartext(config: &super::ZookeeperConfig) -> Finding {
    #[cfg(feature = "zookeeper-tls")]
    let tls = config.tls.is_some();
    #[cfg(not(feature = "zookeeper-tls"))]
    let tls = false;
    let has_password = config.login.is_some();
    let hosts = config.servers.split(',').map(|server| {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        host.trim_matches(['[', ']'])
    });
    doctor::cleartext(hosts, tls, has_password)
}

async fn ensemble(session: &Session) -> Finding {
    match session.read(|client| client.get_data(ENSEMBLE)).await {
        Ok((list, _)) => judge_ensemble(&String::from_utf8_lossy(&list)),
        Err(_) => Finding::unknown("ensemble", format!("{ENSEMBLE} cannot be read")),
    }
}

/// Lines such as `server.1=h:2888:3888:participant;2181`. A server that is alone lists none.
fn judge_ensemble(list: &str) -> Finding {
    let servers = list.lines().filter(|line| line.starts_with("server."));
    let voters = servers
        .filter(|line| !line.contains(":observer"))
        .count()
        .max(1);
    let seen = format!("{voters} voting server(s)");
    match voters {
        1..3 => Finding::warning("ensemble", seen)
            .means("if a server fails, no lock can be acquired or renewed")
            .fix("use three or five servers"),
        _ if voters.is_multiple_of(2) => Finding::warning("ensemble", seen)
            .means("as many servers may fail as with one less, and more can")
            .fix("use an odd number"),
        _ => Finding::good("ensemble", seen),
    }
}

/// Whether others may write below the root although this client logs in.
async fn permissions(session: &Session, root: &str, logs_in: bool) -> Finding {
    if !logs_in {
        return Finding::good(
            "permissions",
            "no user in the URL: all nodes are open to all",
        );
    }
    let Ok((entries, _)) = session.read(|client| client.get_acl(root)).await else {
        return Finding::unknown("permissions", format!("those of {root} cannot be read"));
    };
    let is_open = entries
        .iter()
        .any(|entry| entry.scheme() == "world" && entry.permission().has(Permission::CREATE));
    match is_open {
        true => Finding::warning("permissions", format!("anyone may create nodes in {root}"))
            .means("whoever reaches the servers can take part in the queues of the locks")
            .fix(format!(
                "zkCli.sh setAcl {root} auth::cdrwa, logged in as the user of the URL"
            )),
        false => Finding::good("permissions", format!("{root} is closed to others")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;

    #[test]
    fn three_voters_are_a_good_number() {
        let list = |voters: usize, observers: usize| {
            let voters = (0..voters).map(|nth| format!("server.{nth}=h:1:2:participant;3"));
            let observers = (0..observers).map(|nth| format!("server.9{nth}=h:1:2:observer;3"));
            let lines: Vec<_> = voters.chain(observers).collect();
            format!("{}\nversion=0", lines.join("\n"))
        };
        for (voters, observers, weight) in [
            (0, 0, Weight::Warning),
            (1, 2, Weight::Warning),
            (3, 0, Weight::Good),
            (3, 1, Weight::Good),
            (4, 0, Weight::Warning),
        ] {
            let finding = judge_ensemble(&list(voters, observers));
            assert_eq!(finding.weight, weight, "{finding}");
        }
    }
}
