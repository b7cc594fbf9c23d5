//! Whether a server can be trusted with locks, and what to know about it.

use std::collections::HashMap;

use super::client::Client;
use super::failure::{cluster, other_layout, unfit};
use super::keys::Keys;
use crate::engine::doctor::Finding;
use crate::error::Result;

/// The oldest version that has all that the scripts need.
const OLDEST: (u32, u32) = (6, 2);

/// Refuses a server that cannot serve; what is found of one that can. Without `wait_replicas`, replicas do not matter.
pub(crate) async fn check(client: &Client, wait_replicas: Option<u32>) -> Result<Vec<Finding>> {
    let info = Info::ask(client).await?;
    match info.get("cluster_enabled") {
        Some("1") => Err(cluster()),
        _ => judge(&info, wait_replicas),
    }
}

/// The same for a node of a cluster.
pub(crate) async fn check_node(client: &Client, wait_replicas: u32) -> Result<Vec<Finding>> {
    judge(&Info::ask(client).await?, Some(wait_replicas))
}

/// Refuses a server where an older version of this library keeps its locks under the same prefix, in another way: neither would see the
/// other's tokens and queues.
pub(crate) async fn check_layout(client: &Client, keys: &Keys) -> Result<()> {
    let register = keys.register(0);
    let kind: String = client.send(redis::cmd("TYPE").arg(register)).await?;
    match kind.as_str() {
        "none" | "zset" => Ok(()),
        _ => Err(other_layout()),
    }
}

/// What is found of a server that is one of several, and is to write nothing to disk.
pub(crate) async fn check_persistence(client: &Client) -> Result<Finding> {
    let info = Info::ask(client).await?;
    let appends = info.get("aof_enabled") == Some("1");
    // Not every user may ask.
    let asked: Result<HashMap<String, String>> = client
        .send(redis::cmd("CONFIG").arg("GET").arg("save"))
        .await;
    let saves = asked.is_ok_and(|told| told.values().any(|when| !when.is_empty()));
    let on: Vec<_> = [("save", saves), ("appendonly", appends)]
        .into_iter()
        .filter_map(|(setting, on)| on.then_some(setting))
        .collect();
    if on.is_empty() {
        return Ok(Finding::good("persistence", "off"));
    }
    Ok(Finding::warning("persistence", format!("{} on", on.join(", ")))
        .means(
            "the server writes its memory to disk, which is of no use here: it waits for max_ttl after a restart \
             whatever it remembers, and locks of long ago are taken until they expire",
        )
        .fix("CONFIG SET save \"\", CONFIG SET appendonly no, and the same in redis.conf"))
}

/// What a server says of itself.
pub(crate) struct Info(HashMap<String, String>);

impl Info {
    pub(crate) async fn ask(client: &Client) -> Result<Self> {
        let info: String = client.send(redis::cmd("INFO").arg("everything")).await?;
        Ok(Self::parse(&info))
    }

    fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'));
        let owned = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self(owned.collect())
    }

    /// Managed services leave some fields out.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

fn judge(info: &Info, wait_replicas: Option<u32>) -> Result<Vec<Finding>> {
    let version = info.get("redis_version").unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
        return Err(unfit(format!("the server is Redis {version}")).advise("use 6.2 or newer"));
    }
    if info.get("redis_mode") == Some("sentinel") {
        return Err(unfit("this is a sentinel, which keeps no locks")
            .advise("write redis+sentinel://host:26379/name, or name the server itself"));
    }
    if info.get("role") == Some("slave") {
        let [host, port] = ["master_host", "master_port"].map(|name| info.get(name).unwrap_or("?"));
        return Err(unfit("the server is a read-only replica")
            .advise(format!("connect to its primary, {host}:{port}")));
    }
    let mut findings = vec![eviction(info)];
    findings.extend(wait_replicas.map(|wanted| replicas(info, wanted)));
    Ok(findings)
}

fn eviction(info: &Info) -> Finding {
    let limit = info.number("maxmemory").zip(info.get("maxmemory_policy"));
    Finding::of("eviction", limit, |(limit, policy)| match (limit, policy) {
        (0, _) => Finding::good("eviction", "maxmemory 0"),
        (_, "noeviction") => Finding::good("eviction", "maxmemory-policy noeviction"),
        _ => Finding::efficiency("eviction", format!("maxmemory-policy {policy}"))
            .means("the server may drop locks when its memory is full")
            .fix("CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"),
    })
}

fn replicas(info: &Info, wait_replicas: u32) -> Finding {
    Finding::of(
        "replicas",
        info.number("connected_slaves"),
        |replicas| match (replicas, wait_replicas) {
            (0, _) => Finding::good("replicas", "none"),
            (_, 0) => Finding::efficiency("replicas", format!("{replicas} replica(s)"))
                .means("a failover can lose a lock that was just granted")
                .fix("add ?wait_replicas=1 to the URL, or check the fencing token at the resource"),
            _ => Finding::good(
                "replicas",
                format!("{replicas}, and a grant waits for {wait_replicas}"),
            ),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::doctor::Weight;
    use crate::error::ErrorKind;

    fn judged(text: &str) -> Result<Vec<Finding>> {
        let mut findings = judge(&Info::parse(text), Some(0))?;
        findings.retain(Finding::is_bad);
        Ok(findings)
    }

    #[test]
    fn what_a_server_says_of_itself() {
        let fine = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(judged(fine).unwrap(), []);
        let silent = judge(&Info::parse("redis_version:7.0.15"), Some(0)).unwrap();
        assert!(
            silent.iter().all(|found| found.weight == Weight::Unknown),
            "{silent:?}"
        );
        for unfit in [
            "redis_version:6.0.9\r\nrole:master",
            "redis_version:7.2.0\r\nredis_mode:sentinel",
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
