//! Whether a server can be trusted with locks, and what to know about it.

use std::collections::HashMap;

use super::failure::{cluster, unfit};
use super::node::Node;
use crate::error::Result;

/// The oldest version that has all that the scripts need.
const OLDEST: (u32, u32) = (6, 2);

/// Refuses a server that cannot serve; returns what its user should know.
pub(crate) async fn check(node: &Node, wait_replicas: u32) -> Result<Vec<String>> {
    let info: String = node.send(redis::cmd("INFO").arg("everything")).await?;
    judge(&Info::parse(&info), wait_replicas)
}

struct Info<'a>(HashMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    fn parse(text: &'a str) -> Self {
        Self(
            text.lines()
                .filter_map(|line| line.trim_end().split_once(':'))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }
}

fn judge(info: &Info<'_>, wait_replicas: u32) -> Result<Vec<String>> {
    let version = info.get("redis_version");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
        return Err(unfit(format!("the server is Redis {version}")).advise("use 6.2 or newer"));
    }
    if info.get("cluster_enabled") == "1" {
        return Err(cluster());
    }
    if info.get("role") == "slave" {
        let primary = format!("{}:{}", info.get("master_host"), info.get("master_port"));
        return Err(unfit("the server is a read-only replica")
            .advise(format!("connect to its primary, {primary}")));
    }
    let mut warnings = Vec::new();
    let policy = info.get("maxmemory_policy");
    if info.number("maxmemory") > 0 && policy != "noeviction" {
        warnings.push(format!(
            "the server may drop locks when its memory is full (maxmemory-policy {policy}): set it to noeviction"
        ));
    }
    let replicas = info.number("connected_slaves");
    if replicas > 0 && wait_replicas == 0 {
        warnings.push(format!(
            "the server has {replicas} replica(s): a failover can lose a lock that was just granted, so use it for \
             efficiency only, or set ?wait_replicas=, and check the fencing token"
        ));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn judged(text: &str) -> Result<Vec<String>> {
        judge(&Info::parse(text), 0)
    }

    #[test]
    fn what_a_server_says_of_itself() {
        let fine = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert!(judged(fine).unwrap().is_empty());
        for unfit in [
            "redis_version:6.0.9\r\nrole:master",
            "redis_version:7.2.0\r\ncluster_enabled:1",
            "redis_version:7.2.0\r\nrole:slave\r\nmaster_host:h\r\nmaster_port:1",
        ] {
            let error = judged(unfit).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::EngineUnfit);
            assert!(error.advice().is_some());
        }
        let evicts = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\nconnected_slaves:1";
        assert_eq!(judged(evicts).unwrap().len(), 2);
    }
}
