//! Where the sentinels are, and how the server that they name is used.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redis::TlsCertificates;

use super::sentinels::Sentinels;
use super::{DRIVER, SCHEME};
use crate::engine::Engine;
use crate::engine::redis::config::{Endpoint, RedisConfig, no_max_ttl};
use crate::engine::redis::connector::Target;
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, invalid};

/// The options of `redis+sentinel:` URLs.
pub(super) const OPTIONS: &[(&str, &str)] = &[
    ("prefix", "what stands before every lock's name, leasehold:"),
    ("db", "the number of the database, 0"),
    ("timeout", "how long to wait for an answer, 2s"),
    ("connect_timeout", "how long to wait for a connection, 2s"),
    (
        "wait_replicas",
        "a grant or a renewal counts only when so many replicas have it, 1",
    ),
    (
        "sentinel_user",
        "the user at the sentinels, if they ask for one",
    ),
    ("sentinel_password", "the password at the sentinels"),
    (
        "max_ttl",
        "not with sentinels: a failover forgets locks without a restart",
    ),
];

const PORT: u16 = 26379;

/// How locks are kept on the Redis server that sentinels name: where they are, and all that a `redis+sentinel:` URL can say.
///
/// ```no_run
/// use leasehold::Locks;
/// use leasehold::engine::redis::sentinel::SentinelConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let sentinels = [("s1", 26379), ("s2", 26379), ("s3", 26379)];
/// let config = SentinelConfig::new(sentinels, "mymaster").login("app", "secret");
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: SentinelConfig = "redis+sentinel://app:secret@s1,s2,s3/mymaster".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct SentinelConfig {
    sentinels: Vec<(String, Endpoint)>,
    service: String,
    /// How the primary is used; where it is, the sentinels say.
    primary: RedisConfig,
}

/// From a URL.
impl FromStr for SentinelConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::from_url(&DRIVER.parse(url)?)
    }
}

impl SentinelConfig {
    /// The primary that the sentinels at these hosts and ports know by this name, without TLS.
    pub fn new<H: Into<String>>(
        sentinels: impl IntoIterator<Item = (H, u16)>,
        service: impl Into<String>,
    ) -> Self {
        let sentinels = sentinels.into_iter().map(|(host, port)| Server {
            host: host.into(),
            port,
        });
        let sentinels: Vec<_> = sentinels
            .map(|server| (server.to_string(), Endpoint::tcp(server)))
            .collect();
        let service = service.into();
        let addresses: Vec<_> = sentinels.iter().map(|(at, _)| at.as_str()).collect();
        let location = format!("redis+sentinel://{}/{service}", addresses.join(","));
        let primary = RedisConfig::at(Endpoint::nowhere(), location).wait_replicas(1);
        Self {
            sentinels,
            service,
            primary,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let service = url.path.trim_matches('/').to_owned();
        if url.option("max_ttl").is_some() {
            return Err(no_max_ttl("sentinels"));
        }
        let over_tls = |endpoint: Endpoint| match url.scheme.starts_with("rediss") {
            true => endpoint.over_tls(),
            false => endpoint,
        };
        let (user, password) = (url.option("sentinel_user"), url.option("sentinel_password"));
        let sentinels = url.servers(PORT)?.into_iter().map(|server| {
            let endpoint = Endpoint::tcp(server.clone()).login(user, password);
            (server.to_string(), over_tls(endpoint))
        });
        let sentinels = sentinels.collect();
        let primary = Endpoint::nowhere().login(url.user.as_deref(), url.password.as_deref());
        let primary = over_tls(primary).database(url.number("db")?.unwrap_or(0));
        let primary = RedisConfig::with_options(primary, url)?;
        Ok(Self {
            sentinels,
            service,
            primary: match url.option("wait_replicas") {
                None => primary.wait_replicas(1),
                Some(_) => primary,
            },
        })
    }

    fn of_primary(mut self, change: impl FnOnce(RedisConfig) -> RedisConfig) -> Self {
        self.primary = change(self.primary);
        self
    }

    fn of_sentinels(mut self, change: impl Fn(Endpoint) -> Endpoint) -> Self {
        let sentinels = self.sentinels.into_iter();
        let sentinels = sentinels.map(|(address, sentinel)| (address, change(sentinel)));
        self.sentinels = sentinels.collect();
        self
    }

    /// Logs in to the primary with this user and password. An empty user is the server's default user.
    #[must_use]
    pub fn login(self, user: &str, password: &str) -> Self {
        self.of_primary(|primary| primary.login(user, password))
    }

    /// Logs in to the sentinels with this user and password. An empty user is their default user.
    #[must_use]
    pub fn sentinel_login(self, user: &str, password: &str) -> Self {
        self.of_sentinels(|sentinel| sentinel.login(Some(user), Some(password)))
    }

    /// Uses the database with this number; 0 by default.
    #[must_use]
    pub fn database(self, number: u32) -> Self {
        self.of_primary(|primary| primary.database(number))
    }

    /// Connects over TLS, to the sentinels as well, and trusts these certificates. Without a root certificate the machine's own are
    /// trusted.
    #[must_use]
    pub fn tls(mut self, certificates: TlsCertificates) -> Self {
        let location = self.primary.location;
        self.primary.location = location.replacen("redis+", "rediss+", 1);
        self.of_primary(|primary| primary.tls(certificates))
            .of_sentinels(Endpoint::over_tls)
    }

    /// What stands before every lock's name in the names of keys; `leasehold:` by default.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.of_primary(|primary| primary.prefix(prefix))
    }

    /// How long to wait for an answer; 2 seconds by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.of_primary(|primary| primary.timeout(timeout))
    }

    /// How long to wait for a connection; 2 seconds by default.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.of_primary(|primary| primary.connect_timeout(timeout))
    }

    /// Counts a grant or a renewal only when so many replicas have it; 1 by default.
    #[must_use]
    pub fn wait_replicas(self, replicas: u32) -> Self {
        self.of_primary(|primary| primary.wait_replicas(replicas))
    }

    /// Connects to the primary, and checks whether it can be trusted with locks. [`Locks::new`](crate::Locks::new) makes locks of the engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if there are no sentinels, none of them knows the name, a time is zero or a certificate cannot be read;
    /// `Unreachable`, `Denied` or `EngineUnfit` as the sentinels and the primary answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        if self.sentinels.is_empty() {
            return Err(invalid("no sentinels are named").advise(example()));
        }
        if self.service.is_empty() || self.service.contains('/') {
            let what = format!("{:?} is not the name of a primary", self.service);
            return Err(invalid(what).advise(example()));
        }
        let sentinels = Sentinels::open(self.service, &self.sentinels, &self.primary)?;
        let target = Target::Primary(Arc::new(sentinels));
        self.primary.connect_by(SCHEME, target).await
    }
}

fn example() -> String {
    format!("write {}", DRIVER.example)
}
