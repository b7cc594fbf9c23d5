//! Where the nodes of a deployment are, and how they are used.

use std::collections::HashSet;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redis::TlsCertificates;

use super::{DRIVER, Redlock};
use crate::claim::Ttl;
use crate::engine::Engine;
use crate::engine::doctor::Finding;
use crate::engine::redis::config::{DEFAULT_PREFIX, Endpoint, PORT, adopt, server_at};
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, check_times, invalid};

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

/// How locks are kept on several independent Redis servers: where they are, and all that a `redlock:` URL can say.
///
/// ```no_run
/// use leasehold::Locks;
/// use leasehold::engine::redlock::RedlockConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = RedlockConfig::new([("a", 6379), ("b", 6379), ("c", 6379)]).prefix("app:");
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: RedlockConfig = "redlock://a,b,c?prefix=app:".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedlockConfig {
    nodes: Vec<(String, Endpoint)>,
    tls: Option<TlsCertificates>,
    pub(super) location: String,
    quorum: Option<usize>,
    pub(super) max_ttl: Duration,
    pub(super) node_timeout: Duration,
    drift: f64,
    pub(super) prefix: String,
}

/// From a URL.
impl FromStr for RedlockConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::from_url(&DRIVER.parse(url)?)
    }
}

impl RedlockConfig {
    /// The servers at these hosts and ports, without TLS.
    pub fn new<H: Into<String>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Self {
        let nodes = nodes.into_iter().map(|(host, port)| Server {
            host: host.into(),
            port,
        });
        let nodes = nodes.map(|server| (server.to_string(), Endpoint::tcp(server)));
        let nodes: Vec<_> = nodes.collect();
        let location = format!("redlock://{}", addresses(&nodes));
        Self::at(nodes, location)
    }

    fn at(nodes: Vec<(String, Endpoint)>, location: String) -> Self {
        Self {
            nodes,
            tls: None,
            location,
            quorum: None,
            max_ttl: Duration::from_secs(60),
            node_timeout: Duration::from_millis(250),
            drift: 0.01,
            prefix: DEFAULT_PREFIX.to_owned(),
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let db = url.number("db")?;
        let tls = url.scheme == "redlocks";
        let nodes: Vec<_> = url
            .servers(PORT)?
            .into_iter()
            .map(|server| Ok((server.to_string(), server_at(server, tls, url, db)?)))
            .collect::<Result<_>>()?;
        let quorum = quorum(url.option("quorum"), nodes.len())?;
        let default = Self::at(nodes, url.to_string());
        let max_ttl = url.duration("max_ttl")?.map(Ttl::new).transpose()?;
        let node_timeout = url.duration("node_timeout")?;
        Ok(Self {
            quorum: Some(quorum),
            max_ttl: max_ttl.map_or(default.max_ttl, Ttl::get),
            node_timeout: node_timeout.unwrap_or(default.node_timeout),
            drift: drift(url.option("drift"))?,
            prefix: url.option("prefix").unwrap_or(DEFAULT_PREFIX).to_owned(),
            ..default
        })
    }

    /// Whether a password goes to one of the nodes in the clear.
    pub(super) fn cleartext(&self) -> Finding {
        let nodes = self.nodes.iter().map(|(_, node)| node.cleartext());
        let worst = nodes.max_by_key(|finding| finding.weight);
        worst.unwrap_or_else(|| Finding::unknown("cleartext", "there are no nodes"))
    }

    fn each(mut self, change: impl Fn(Endpoint) -> Endpoint) -> Self {
        let nodes = self.nodes.into_iter();
        let nodes = nodes.map(|(address, node)| (address, change(node)));
        self.nodes = nodes.collect();
        self
    }

    /// Logs in to every node with this user and password. An empty user is the server's default user.
    #[must_use]
    pub fn login(self, user: &str, password: &str) -> Self {
        self.each(|node| node.login(Some(user), Some(password)))
    }

    /// Uses the database with this number on every node; 0 by default.
    #[must_use]
    pub fn database(self, number: u32) -> Self {
        self.each(|node| node.database(number))
    }

    /// Connects over TLS, and trusts these certificates. Without a root certificate the machine's own are trusted.
    #[must_use]
    pub fn tls(mut self, certificates: TlsCertificates) -> Self {
        self.tls = Some(certificates);
        self.location = self.location.replacen("redlock://", "redlocks://", 1);
        self.each(Endpoint::over_tls)
    }

    /// How many nodes must agree; a majority by default, and no fewer.
    #[must_use]
    pub fn quorum(mut self, nodes: usize) -> Self {
        self.quorum = Some(nodes);
        self
    }

    /// Grants no lock for longer, and none by a node that has restarted until this time has passed. It must be the same for all clients; one minute
    /// by default.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Ttl) -> Self {
        self.max_ttl = max_ttl.get();
        self
    }

    /// How long to wait for one node; 250 milliseconds by default.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// By how much of a TTL the clocks of nodes and clients may drift apart: 0.01, the default, to 0.5.
    #[must_use]
    pub fn drift(mut self, share: f64) -> Self {
        self.drift = share;
        self
    }

    /// What stands before every lock's name in the names of keys; `leasehold:` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Connects to as many nodes as are there; a quorum of them must be. [`Locks::new`](crate::Locks::new) makes locks of the engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if there are no nodes, one is named twice, or a value is out of its range; `Unreachable`, `Denied` or
    /// `EngineUnfit` as the nodes answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        let clients = self.clients()?;
        self.connect_by(clients).await
    }

    /// Connects with clients of the `redis` crate, version 1, that the program has already, one for each node, instead of the nodes of this
    /// configuration. What such a client must allow: see [`RedisConfig::connect_with`](crate::engine::redis::RedisConfig::connect_with).
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and `InvalidConfig` if a client speaks RESP2.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect_with(
        mut self,
        clients: impl IntoIterator<Item = redis::Client>,
    ) -> Result<Arc<dyn Engine>> {
        let mut nodes = Vec::new();
        for client in clients {
            let location = adopt(&client)?;
            let (_, address) = location.split_once("://").unwrap_or(("", &location));
            nodes.push((address.to_owned(), client));
        }
        self.location = format!("redlock://{}", addresses(&nodes));
        self.connect_by(nodes).await
    }

    pub(super) fn clients(&self) -> Result<Vec<(String, redis::Client)>> {
        let open = |(address, node): &(String, Endpoint)| {
            Ok((address.clone(), node.open(self.tls.as_ref())?))
        };
        self.nodes.iter().map(open).collect()
    }

    async fn connect_by(self, nodes: Vec<(String, redis::Client)>) -> Result<Arc<dyn Engine>> {
        check_nodes(&nodes)?;
        let quorum = self.quorum.unwrap_or(majority(nodes.len()));
        check_quorum(quorum, nodes.len())?;
        check_drift(self.drift)?;
        check_times(&[("node_timeout", self.node_timeout)])?;
        let location = self.location.clone();
        let connected = Redlock::connect(self, nodes, quorum).await;
        let engine = connected.map_err(|error| error.during("connect", location))?;
        Ok(Arc::new(engine))
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

fn addresses<T>(nodes: &[(String, T)]) -> String {
    let addresses: Vec<_> = nodes.iter().map(|(address, _)| address.as_str()).collect();
    addresses.join(",")
}

fn check_nodes(nodes: &[(String, redis::Client)]) -> Result<()> {
    let advice = "name each server once, three or five of them";
    let mut seen = HashSet::new();
    match nodes.iter().find(|(address, _)| !seen.insert(address)) {
        Some((twice, _)) => {
            Err(invalid(format!("the server {twice} is named twice")).advise(advice))
        }
        None if nodes.is_empty() => Err(invalid("no servers are named").advise(advice)),
        None => Ok(()),
    }
}

fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// Two quorums must share a node, so no less than a majority.
fn check_quorum(quorum: usize, nodes: usize) -> Result<usize> {
    match (majority(nodes)..=nodes).contains(&quorum) {
        true => Ok(quorum),
        false => Err(bad_quorum(quorum, nodes)),
    }
}

fn quorum(text: Option<&str>, nodes: usize) -> Result<usize> {
    let text = text.unwrap_or("majority");
    let quorum = match text {
        "majority" => Some(majority(nodes)),
        "all" => Some(nodes),
        text => match text.strip_prefix("majority+") {
            Some(more) => more.parse().ok().map(|more: usize| majority(nodes) + more),
            None => text.parse().ok(),
        },
    };
    check_quorum(quorum.unwrap_or(0), nodes).map_err(|_| bad_quorum(text, nodes))
}

fn bad_quorum(quorum: impl Display, nodes: usize) -> Error {
    let majority = majority(nodes);
    let what = format!("quorum={quorum} is not possible with {nodes} nodes");
    invalid(what).advise(format!(
        "use majority, majority+1, …, all, or {majority} to {nodes}"
    ))
}

fn drift(text: Option<&str>) -> Result<f64> {
    let text = text.unwrap_or("1%");
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.parse().ok());
    check_drift(percent.unwrap_or(0.0) / 100.0).map_err(|_| bad_drift(text))
}

fn check_drift(share: f64) -> Result<f64> {
    match (0.01..=0.5).contains(&share) {
        true => Ok(share),
        false => Err(bad_drift(share)),
    }
}

fn bad_drift(drift: impl Display) -> Error {
    invalid(format!("drift={drift} is not possible")).advise("use 1% to 50%")
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
        let url = crate::engine::redlock::DRIVER
            .parse("redlock://a,b,c?max_ttl=2s&drift=10%25")
            .unwrap();
        let config = RedlockConfig::from_url(&url).unwrap();
        let validity = |seconds| config.validity(Ttl::new(Duration::from_secs(seconds)).unwrap());
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
            let url = crate::engine::redlock::DRIVER.parse(bad).unwrap();
            let error = RedlockConfig::from_url(&url).unwrap_err();
            assert!(error.advice().is_some(), "{bad}: {error}");
        }
    }
}
