//! Where the nodes of a cluster are, and how they are used.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redis::TlsCertificates;

use super::{DRIVER, SCHEME};
use crate::engine::Engine;
use crate::engine::redis::Redis;
use crate::engine::redis::config::{Endpoint, PORT, RedisConfig, no_max_ttl};
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, invalid};

/// The options of `redis+cluster:` URLs.
pub(super) const OPTIONS: &[(&str, &str)] = &[
    ("prefix", "what stands before every lock's name, leasehold:"),
    ("timeout", "how long to wait for an answer, 2s"),
    ("connect_timeout", "how long to wait for a connection, 2s"),
    (
        "wait_replicas",
        "a grant or a renewal counts only when so many replicas have it, 0",
    ),
    (
        "max_ttl",
        "not with a cluster: a failover forgets locks without a restart",
    ),
];

/// How locks are kept on a Redis Cluster: where some of its nodes are, and all that a `redis+cluster:` URL can say.
///
/// ```no_run
/// use leasehold::Locks;
/// use leasehold::engine::redis::cluster::ClusterConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = ClusterConfig::new([("a", 6379), ("b", 6379), ("c", 6379)]).prefix("app:");
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: ClusterConfig = "redis+cluster://a,b,c?prefix=app:".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    seeds: Vec<Server>,
    /// How each node is used; where they all are, any of them says.
    node: RedisConfig,
}

/// From a URL.
impl FromStr for ClusterConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::from_url(&DRIVER.parse(url)?)
    }
}

impl ClusterConfig {
    /// The cluster of which these hosts and ports are nodes, without TLS. One is enough as long as it is up; the others are found.
    pub fn new<H: Into<String>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Self {
        let seeds = nodes.into_iter().map(|(host, port)| Server {
            host: host.into(),
            port,
        });
        let seeds: Vec<_> = seeds.collect();
        let addresses: Vec<_> = seeds.iter().map(Server::to_string).collect();
        let location = format!("redis+cluster://{}", addresses.join(","));
        Self {
            node: RedisConfig::at(Endpoint::nowhere(), location),
            seeds,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        if url.option("max_ttl").is_some() {
            return Err(no_max_ttl("a cluster"));
        }
        if !matches!(url.path.as_str(), "" | "/" | "/0") {
            let what = format!("a cluster has no databases, such as {}", url.path);
            return Err(invalid(what).advise("leave it out, and use ?prefix= to tell locks apart"));
        }
        let node = Endpoint::nowhere().login(url.user.as_deref(), url.password.as_deref());
        let node = match url.scheme.starts_with("rediss") {
            true => node.over_tls(),
            false => node,
        };
        Ok(Self {
            seeds: url.servers(PORT)?,
            node: RedisConfig::with_options(node, url)?,
        })
    }

    fn of_nodes(mut self, change: impl FnOnce(RedisConfig) -> RedisConfig) -> Self {
        self.node = change(self.node);
        self
    }

    /// Logs in to every node with this user and password. An empty user is the server's default user.
    #[must_use]
    pub fn login(self, user: &str, password: &str) -> Self {
        self.of_nodes(|node| node.login(user, password))
    }

    /// Connects over TLS, and trusts these certificates. Without a root certificate the machine's own are trusted.
    #[must_use]
    pub fn tls(mut self, certificates: TlsCertificates) -> Self {
        let location = self.node.location;
        self.node.location = location.replacen("redis+", "rediss+", 1);
        self.of_nodes(|node| node.tls(certificates))
    }

    /// What stands before every lock's name in the names of keys; `leasehold:` by default. With a hash tag in it all locks are in one slot.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.of_nodes(|node| node.prefix(prefix))
    }

    /// How long to wait for an answer, also while a slot moves from one node to another; 2 seconds by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.of_nodes(|node| node.timeout(timeout))
    }

    /// How long to wait for a connection; 2 seconds by default.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.of_nodes(|node| node.connect_timeout(timeout))
    }

    /// Counts a grant or a renewal only when so many replicas of its node have it; 0 by default.
    #[must_use]
    pub fn wait_replicas(self, replicas: u32) -> Self {
        self.of_nodes(|node| node.wait_replicas(replicas))
    }

    /// Connects to all primaries, and checks whether they can be trusted with locks. [`Locks::new`](crate::Locks::new) makes locks of the
    /// engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if there are no nodes, a time is zero, the prefix has half a hash tag or a certificate cannot be read;
    /// `Unreachable`, `Denied` or `EngineUnfit` as the nodes answer: they must be in cluster mode, and have all slots.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        if self.seeds.is_empty() {
            let advice = format!("write {}", DRIVER.example);
            return Err(invalid("no nodes are named").advise(advice));
        }
        self.node.check()?;
        let location = self.node.location.clone();
        let connected = Redis::connect_to_cluster(self.node, SCHEME, self.seeds).await;
        let engine = connected.map_err(|error| error.during("connect", location))?;
        Ok(Arc::new(engine))
    }
}
