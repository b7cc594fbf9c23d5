//! Where a Redis server is, and how it is used.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redis::{
    ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, TlsCertificates,
};

use super::connector::Target;
use super::{DRIVER, Redis, SCHEME, failure};
use crate::claim::Ttl;
use crate::engine::doctor::{self, Finding};
use crate::engine::{Engine, tls};
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, check_times, invalid};

/// The options of `redis:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("prefix", "what stands before every lock's name, leasehold:"),
    ("db", "the number of the database, 0"),
    ("timeout", "how long to wait for an answer, 2s"),
    ("connect_timeout", "how long to wait for a connection, 2s"),
    (
        "max_ttl",
        "no lock is granted for longer, and a server that has restarted grants none until it has passed; off",
    ),
    (
        "wait_replicas",
        "a grant or a renewal counts only when so many replicas have it, 0",
    ),
];

pub(crate) const PORT: u16 = 6379;
pub(crate) const DEFAULT_PREFIX: &str = "leasehold:";

/// The configuration of the Redis engine for one server: everything that a `redis:` URL can say.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::redis::RedisConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = RedisConfig::new("redis.internal", 6379)
///     .login("app", "secret")
///     .prefix("app:")
///     .timeout(Duration::from_millis(500));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: RedisConfig = "redis://app:secret@redis.internal?prefix=app:&timeout=500ms".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedisConfig {
    pub(super) server: Endpoint,
    pub(super) tls: Option<TlsCertificates>,
    pub(crate) location: String,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) wait_replicas: u32,
    /// Zero if a server that has restarted is trusted at once.
    pub(crate) max_ttl: Duration,
}

/// The server at 127.0.0.1:6379.
impl Default for RedisConfig {
    fn default() -> Self {
        Self::new("127.0.0.1", PORT)
    }
}

/// From a URL.
impl FromStr for RedisConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::from_url(&DRIVER.parse(url)?)
    }
}

impl RedisConfig {
    /// The server at this host and port, without TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let server = Server {
            host: host.into(),
            port,
        };
        let location = format!("redis://{server}");
        Self::at(Endpoint::tcp(server), location)
    }

    /// The server that listens on the Unix domain socket at this path.
    pub fn socket(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let location = format!("redis+unix:{}", path.display());
        Self::at(Endpoint::socket(path), location)
    }

    pub(super) fn at(server: Endpoint, location: String) -> Self {
        let two_seconds = Duration::from_secs(2);
        Self {
            server,
            tls: None,
            location,
            prefix: DEFAULT_PREFIX.to_owned(),
            timeout: two_seconds,
            connect_timeout: two_seconds,
            wait_replicas: 0,
            max_ttl: Duration::ZERO,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let server = server(url, url.number("db")?)?;
        Self::with_options(server, url)
    }

    pub(super) fn with_options(server: Endpoint, url: &EngineUrl) -> Result<Self> {
        let default = Self::at(server, url.to_string());
        let connect_timeout = url.duration("connect_timeout")?;
        let max_ttl = url.duration("max_ttl")?.map(Ttl::new).transpose()?;
        Ok(Self {
            prefix: url.option("prefix").unwrap_or(DEFAULT_PREFIX).to_owned(),
            timeout: url.duration("timeout")?.unwrap_or(default.timeout),
            connect_timeout: connect_timeout.unwrap_or(default.connect_timeout),
            wait_replicas: url.number("wait_replicas")?.unwrap_or(0),
            max_ttl: max_ttl.map_or(Duration::ZERO, Ttl::get),
            ..default
        })
    }

    /// Logs in with this user and password. An empty user is the server's default user.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.server = self.server.login(Some(user), Some(password));
        self
    }

    /// Uses the database with this number; 0 by default.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        self.server = self.server.database(number);
        self
    }

    /// Connects over TLS, and trusts these certificates. Without a root certificate the machine's own are trusted.
    #[must_use]
    pub fn tls(mut self, certificates: TlsCertificates) -> Self {
        self.server = self.server.over_tls();
        self.location = self.location.replacen("redis://", "rediss://", 1);
        self.tls = Some(certificates);
        self
    }

    /// The prefix of all keys; `leasehold:` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long to wait for an answer; 2 seconds by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long to wait for a connection; 2 seconds by default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Confirms a grant or a renewal only when this many replicas have received it; 0 by default.
    #[must_use]
    pub fn wait_replicas(mut self, replicas: u32) -> Self {
        self.wait_replicas = replicas;
        self
    }

    /// The longest TTL of a lock. A server that has restarted grants no locks until this time has passed. Off by default.
    #[must_use]
    pub fn max_ttl(mut self, max_ttl: Ttl) -> Self {
        self.max_ttl = max_ttl.get();
        self
    }

    /// Connects, and checks whether the server is fit for locks. Pass the result to [`Locks::new`](crate::Locks::new).
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if a time is zero or a certificate cannot be read; `Unreachable`, `Denied` or `EngineUnfit` as the server
    /// answers: it must be Redis 6.2 or newer, not a replica, and not in cluster mode.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        let client = self.client()?;
        self.connect_by(SCHEME, client).await
    }

    pub(super) fn client(&self) -> Result<redis::Client> {
        self.server.open(self.tls.as_ref())
    }

    pub(super) async fn connect_by(
        self,
        scheme: &'static str,
        target: impl Into<Target>,
    ) -> Result<Arc<dyn Engine>> {
        self.check()?;
        let location = self.location.clone();
        let connected = Redis::connect(self, scheme, target.into()).await;
        let engine = connected.map_err(|error| error.during("connect", location))?;
        Ok(Arc::new(engine))
    }

    pub(super) fn check(&self) -> Result<()> {
        check_times(&[
            ("timeout", self.timeout),
            ("connect_timeout", self.connect_timeout),
        ])
    }

    /// Connects with your own client of the `redis` crate, version 1: its address, database, login and TLS settings are used instead of
    /// those of this configuration.
    ///
    /// The client must use RESP3. The engine opens its own connection with it, since messages to waiters arrive on the connection that carries the
    /// requests, and the engine must know when that connection is replaced. That is why it does not accept a `MultiplexedConnection` or a
    /// `ConnectionManager`: their messages go to whoever created them, and the latter reconnects without notice.
    ///
    /// ```no_run
    /// use leasehold::Locks;
    /// use leasehold::engine::redis::RedisConfig;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::engine::redis::redis; // or the crate itself, in the same version
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/3?protocol=resp3")?;
    /// let engine = RedisConfig::default().prefix("app:").connect_with(client).await?;
    /// let locks = Locks::new(engine);
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and `InvalidConfig` if the client speaks RESP2.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect_with(mut self, client: redis::Client) -> Result<Arc<dyn Engine>> {
        self.location = adopt(&client)?;
        self.connect_by(SCHEME, client).await
    }

    /// For how long a grant or a renewal can be relied on. A renewal may ask for more than max_ttl; but a server that
    /// forgets it grants the lock again after that time.
    pub(crate) fn validity(&self, ttl: Ttl) -> Duration {
        match Ttl::new(self.max_ttl) {
            Ok(max_ttl) => ttl.min(max_ttl).validity(),
            // There is none.
            Err(_) => ttl.validity(),
        }
    }
}

fn server(url: &EngineUrl, db: Option<u32>) -> Result<Endpoint> {
    if url.scheme == "redis+unix" {
        if url.path.is_empty() {
            return Err(invalid("a redis+unix: URL names a socket")
                .advise("write redis+unix:/run/redis/redis.sock"));
        }
        let socket = Endpoint::socket(&url.path);
        let socket = socket.login(url.user.as_deref(), url.password.as_deref());
        return Ok(socket.database(db.unwrap_or(0)));
    }
    if url.hosts.len() > 1 {
        return Err(invalid("a redis: URL names one server")
            .advise("write redis://host:6379, or redlock://a:6379,b:6379,c:6379 for several"));
    }
    server_at(url.server(PORT)?, url.scheme == "rediss", url, db)
}

/// One server of those that a URL names.
pub(crate) fn server_at(
    server: Server,
    tls: bool,
    url: &EngineUrl,
    db: Option<u32>,
) -> Result<Endpoint> {
    let db = match url.path.trim_matches('/') {
        "" => db,
        path if db.is_some() => {
            return Err(invalid(format!(
                "the database is given twice, as /{path} and as an option"
            ))
            .advise("give it once"));
        }
        path => Some(path.parse::<u32>().map_err(|_| {
            invalid(format!("{path:?} is not the number of a database"))
                .advise("write redis://host:6379/0")
        })?),
    };
    let server = Endpoint::tcp(server)
        .login(url.user.as_deref(), url.password.as_deref())
        .database(db.unwrap_or(0));
    Ok(match tls {
        true => server.over_tls(),
        false => server,
    })
}

/// Where one server is, and how to log in there.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    address: ConnectionAddr,
    settings: RedisConnectionInfo,
}

impl Endpoint {
    pub(crate) fn tcp(Server { host, port }: Server) -> Self {
        Self::new(ConnectionAddr::Tcp(host, port))
    }

    fn socket(path: impl AsRef<Path>) -> Self {
        Self::new(ConnectionAddr::Unix(path.as_ref().to_owned()))
    }

    fn new(address: ConnectionAddr) -> Self {
        let settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        Self { address, settings }
    }

    /// How to log in at a server that is yet to be found.
    pub(super) fn nowhere() -> Self {
        Self::tcp(Server {
            host: String::new(),
            port: 0,
        })
    }

    /// The same login on another server.
    pub(super) fn moved_to(&self, server: &Server) -> Self {
        let Self { address, settings } = self.clone();
        let moved = Self {
            settings,
            ..Self::tcp(server.clone())
        };
        match address {
            ConnectionAddr::TcpTls { .. } => moved.over_tls(),
            _ => moved,
        }
    }

    pub(crate) fn login(mut self, user: Option<&str>, password: Option<&str>) -> Self {
        if let Some(user) = user.filter(|user| !user.is_empty()) {
            self.settings = self.settings.set_username(user);
        }
        if let Some(password) = password {
            self.settings = self.settings.set_password(password);
        }
        self
    }

    pub(crate) fn database(mut self, number: u32) -> Self {
        self.settings = self.settings.set_db(number.into());
        self
    }

    pub(crate) fn over_tls(mut self) -> Self {
        if let ConnectionAddr::Tcp(host, port) = self.address {
            self.address = ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            };
        }
        self
    }

    /// Whether a password goes there in the clear.
    pub(crate) fn cleartext(&self) -> Finding {
        let has_password = self.settings.password().is_some();
        match &self.address {
            ConnectionAddr::Tcp(host, _) => doctor::cleartext([host.as_str()], false, has_password),
            ConnectionAddr::TcpTls { host, .. } => {
                doctor::cleartext([host.as_str()], true, has_password)
            }
            _ => Finding::good("cleartext", "a socket of this machine"),
        }
    }

    /// A client that has yet to connect.
    pub(crate) fn open(&self, certificates: Option<&TlsCertificates>) -> Result<redis::Client> {
        if let ConnectionAddr::TcpTls { .. } = self.address {
            tls::install();
        }
        let server = self.address.clone().into_connection_info();
        let server = server.map_err(failure::of_connect)?;
        let server = server.set_redis_settings(self.settings.clone());
        let Some(certificates) = certificates else {
            return redis::Client::open(server).map_err(failure::of_connect);
        };
        redis::Client::build_with_tls(server, certificates.clone()).map_err(|cause| {
            invalid("the certificates for TLS cannot be used")
                .advise("give a host, and certificates and keys in PEM format")
                .caused_by(cause)
        })
    }
}

/// A server that takes the place of another has been up for long, and may lack what was granted a moment before.
pub(super) fn no_max_ttl(with: &str) -> Error {
    let what =
        format!("max_ttl cannot be used with {with}: a failover forgets locks without a restart");
    invalid(what).advise("leave it out; for locks that survive the loss of a server use redlock:")
}

/// Whether the connections that a user's client makes are fit for locks; returns where they lead, for messages.
pub(crate) fn adopt(client: &redis::Client) -> Result<String> {
    let server = client.get_connection_info();
    if !server.redis_settings().protocol().supports_resp3() {
        let what =
            "the client speaks RESP2, in which no messages to waiters can come between answers";
        return Err(invalid(what).advise(
            "add ?protocol=resp3 to the URL that it is opened with, or use RedisConnectionInfo::set_protocol",
        ));
    }
    let scheme = match server.addr() {
        ConnectionAddr::TcpTls { .. } => {
            tls::install();
            "rediss://"
        }
        ConnectionAddr::Unix(_) => "redis+unix:",
        _ => "redis://",
    };
    Ok(match server.redis_settings().db() {
        0 => format!("{scheme}{}", server.addr()),
        db => format!("{scheme}{}?db={db}", server.addr()),
    })
}
