//! What a Redlock URL says.

use std::time::Duration;

use redis::ConnectionInfo;

use crate::claim::Ttl;
use crate::engine::redis::settings::{invalid, number, server_at};
use crate::error::Result;
use crate::url::EngineUrl;

/// The options of `redlock:` URLs.
pub(super) const OPTIONS: &[(&str, &str)] = &[
    (
        "quorum",
        "how many nodes must agree: majority, majority+1, …, all, or a number; majority",
    ),
    (
        "max_ttl",
        "no lock is granted for longer; the same for all clients; 60s",
    ),
    ("node_timeout", "how long to wait for one node, 250ms"),
    ("drift", "how much of a TTL the clocks may drift apart, 1%"),
    ("prefix", "what stands before every lock's name, leasehold:"),
    ("db", "the number of the database, 0"),
];

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) nodes: Vec<(String, ConnectionInfo)>,
    pub(super) location: String,
    pub(super) quorum: usize,
    pub(super) max_ttl: Duration,
    pub(super) node_timeout: Duration,
    pub(super) drift: f64,
    pub(super) prefix: String,
}

impl Settings {
    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let db = number(url, "db")?;
        let tls = url.scheme == "redlocks";
        let nodes = url
            .hosts
            .iter()
            .map(|host| Ok((host.clone(), server_at(host, tls, url, db)?)))
            .collect::<Result<Vec<_>>>()?;
        let mut distinct = url.hosts.clone();
        distinct.sort();
        distinct.dedup();
        if distinct.len() < nodes.len() {
            return Err(invalid("a node is named twice".to_owned())
                .advise("name each once: its vote would count double"));
        }
        if nodes.is_empty() {
            return Err(invalid("a redlock: URL names its nodes".to_owned())
                .advise("write redlock://a:6379,b:6379,c:6379"));
        }
        let max_ttl = url.duration("max_ttl")?.unwrap_or(Duration::from_secs(60));
        Ok(Self {
            location: url.to_string(),
            quorum: quorum(url.option("quorum"), nodes.len())?,
            nodes,
            max_ttl: Ttl::new(max_ttl)?.get(),
            node_timeout: url
                .duration("node_timeout")?
                .unwrap_or(Duration::from_millis(250)),
            drift: drift(url.option("drift"))?,
            prefix: url.option("prefix").unwrap_or("leasehold:").to_owned(),
        })
    }

    /// For how long a grant can be relied on. A renewal may ask for more than max_ttl; but a node that forgets it
    /// votes again after that time.
    pub(super) fn validity(&self, ttl: Ttl) -> Duration {
        let least = ttl.get().min(self.max_ttl);
        let drift = least.mul_f64(self.drift) + Duration::from_millis(2);
        least.saturating_sub(drift).min(ttl.validity())
    }

    /// No longer for one node than the TTL, which would then be of no use, or than a busy machine may need.
    pub(super) fn patience(&self, ttl: Ttl) -> Duration {
        const BUSY: Duration = Duration::from_millis(50);
        self.node_timeout.min(ttl.get().max(BUSY))
    }
}

/// Two quorums must share a node, so no less than a majority.
fn quorum(text: Option<&str>, nodes: usize) -> Result<usize> {
    let majority = nodes / 2 + 1;
    let quorum = match text.unwrap_or("majority") {
        "majority" => Some(majority),
        "all" => Some(nodes),
        text => match text.strip_prefix("majority+") {
            Some(more) => more.parse().ok().map(|more: usize| majority + more),
            None => text.parse().ok(),
        },
    };
    match quorum {
        Some(quorum) if (majority..=nodes).contains(&quorum) => Ok(quorum),
        _ => Err(invalid(format!(
            "quorum={} is not possible with {nodes} nodes",
            text.unwrap_or_default()
        ))
        .advise(format!(
            "use majority, majority+1, …, all, or {majority} to {nodes}"
        ))),
    }
}

fn drift(text: Option<&str>) -> Result<f64> {
    let text = text.unwrap_or("1%");
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    match percent {
        Some(percent) if (1.0..=50.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(invalid(format!("drift={text} is not possible")).advise("use 1% to 50%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums() {
        let table = [
            (None, 5, Some(3)),
            (Some("majority"), 3, Some(2)),
            (Some("majority+1"), 5, Some(4)),
            (Some("all"), 5, Some(5)),
            (Some("4"), 5, Some(4)),
            (Some("2"), 5, None),
            (Some("6"), 5, None),
            (Some("majority+3"), 5, None),
            (Some("most"), 5, None),
            (None, 1, Some(1)),
        ];
        for (text, nodes, expected) in table {
            assert_eq!(quorum(text, nodes).ok(), expected, "{text:?} of {nodes}");
        }
    }

    #[test]
    fn nobody_relies_on_a_grant_for_longer_than_nodes_remember() {
        let url = EngineUrl::parse("redlock://a,b,c?max_ttl=2s&drift=10%25").unwrap();
        let settings = Settings::from_url(&url).unwrap();
        let validity = |seconds| settings.validity(Ttl::new(Duration::from_secs(seconds)).unwrap());
        assert_eq!(validity(1), Duration::from_millis(898));
        assert_eq!(validity(60), Duration::from_millis(1798));
    }

    #[test]
    fn bad_urls_say_what_is_possible() {
        for bad in [
            "redlock:",
            "redlock://a,b,a",
            "redlock://a,b,c?quorum=1",
            "redlock://a,b,c?drift=0%",
            "redlock://a,b,c?max_ttl=48h",
            "redlock://a:x,b,c",
        ] {
            let url = EngineUrl::parse(bad).unwrap();
            let error = Settings::from_url(&url).unwrap_err();
            assert!(error.advice().is_some(), "{bad}: {error}");
        }
    }
}
