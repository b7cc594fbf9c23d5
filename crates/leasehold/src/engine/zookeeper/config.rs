//! Where a ZooKeeper ensemble is, and how it is used.

use std::sync::Arc;
use std::time::Duration;

use super::layout::Layout;
use super::path::Root;
use super::{DRIVER, ZooKeeper};
use crate::engine::config::{Login, by_url, setters};
use crate::engine::{Engine, connect_to};
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, check_times, invalid};

/// The options of `zookeeper:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    (
        "session_timeout",
        "after how long of silence the servers end the session and free its locks, 10s",
    ),
    ("timeout", "how long to wait for an answer, 5s"),
    (
        "layout",
        "whose locks the nodes are named like: kazoo, curator or curator-rw; kazoo",
    ),
    #[cfg(feature = "zookeeper-tls")]
    (
        "ca",
        "a file with the certificates to trust; zookeepers: only",
    ),
    #[cfg(feature = "zookeeper-tls")]
    ("cert", "a file with our certificate; zookeepers: only"),
    #[cfg(feature = "zookeeper-tls")]
    ("key", "a file with its key; zookeepers: only"),
];

/// Where locks are unless it is said; made if it is not there.
const OWN_ROOT: &str = "/leasehold";

const PORT: u16 = 2181;

/// The configuration of the ZooKeeper engine: everything that a `zookeeper:` URL can say.
///
/// The engine opens sessions of its own and does not accept a client of yours, since locks depend on when a session begins and ends.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::zookeeper::ZookeeperConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = ZookeeperConfig::new("zk-1.internal", 2181)
///     .server("zk-2.internal", 2181)
///     .server("zk-3.internal", 2181)
///     .path("/locks")
///     .session_timeout(Duration::from_secs(6));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: ZookeeperConfig =
///     "zookeeper://zk-1.internal,zk-2.internal,zk-3.internal/locks?session_timeout=6s".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ZookeeperConfig {
    /// As the client library wants it: `host:port,host:port`.
    pub(crate) servers: String,
    /// The URL that it is from, if it was not changed since.
    pub(super) url: Option<String>,
    pub(crate) login: Option<Login>,
    pub(crate) root: Root,
    /// Whether the root is ours to make.
    pub(crate) makes_root: bool,
    pub(crate) session_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) layout: Layout,
    #[cfg(feature = "zookeeper-tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
}

/// One server, at 127.0.0.1:2181.
impl Default for ZookeeperConfig {
    fn default() -> Self {
        Self::new("127.0.0.1", PORT)
    }
}

by_url!(ZookeeperConfig);

impl ZookeeperConfig {
    /// An ensemble with a server at this host and port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self::of(&[Server::new(host, port)])
    }

    fn of(servers: &[Server]) -> Self {
        let servers: Vec<_> = servers.iter().map(Server::to_string).collect();
        Self {
            servers: servers.join(","),
            url: None,
            login: None,
            root: Root::new(OWN_ROOT),
            makes_root: true,
            session_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            layout: Layout::Kazoo,
            #[cfg(feature = "zookeeper-tls")]
            tls: None,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let mut config = Self::of(&url.servers(PORT)?);
        if !url.path.is_empty() {
            check_path(&url.path)?;
            config = config.path(&url.path);
        }
        url.set_duration("session_timeout", &mut config.session_timeout)?;
        url.set_duration("timeout", &mut config.timeout)?;
        #[cfg(feature = "zookeeper-tls")]
        {
            config.tls = super::tls::from_url(url)?;
        }
        let config = Self {
            login: Login::of(url, no_digest)?,
            layout: layout(url)?,
            url: Some(url.to_string()),
            ..config
        };
        config.check_login()?;
        Ok(config)
    }

    /// Adds another server of the same ensemble. Name all of them, so that the engine can use the others if one is down.
    #[must_use]
    pub fn server(mut self, host: impl Into<String>, port: u16) -> Self {
        self.servers = format!("{},{}", self.servers, Server::new(host, port));
        self.url = None;
        self
    }

    /// Authenticates with the digest of this user and password. Only that user can use the nodes that are created.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login::new(user, password));
        self.url = None;
        self
    }

    /// The node under which the locks are, which must exist. By default it is `/leasehold`, which is created.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.root = Root::new(path);
        self.makes_root = false;
        self.url = None;
        self
    }

    setters! {
        /// After how long without contact the servers end the session and free its locks; 10 seconds by default. The servers have limits of their own.
        session_timeout: Duration,
        /// How long to wait for an answer, and for a connection; 5 seconds by default.
        timeout: Duration,
        /// Which library's naming of nodes to use; kazoo's by default.
        layout: Layout,
    }

    /// Connects over TLS with these options, which include the certificates to trust.
    #[cfg(feature = "zookeeper-tls")]
    #[must_use]
    pub fn tls(mut self, options: zookeeper_client::TlsOptions) -> Self {
        crate::engine::tls::install();
        self.tls = Some(options);
        self.url = None;
        self
    }

    /// Connects, and checks that the parent node of the locks exists. Pass the result to [`Locks::new`](crate::Locks::new).
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if an address, a path, a login or a time cannot be used; `Unreachable`, `Denied` or `EngineUnfit` as the servers answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        check_servers(&self.servers)?;
        check_path(self.root.node())?;
        self.check_login()?;
        check_times(&[
            ("timeout", self.timeout),
            ("session_timeout", self.session_timeout),
        ])?;
        let engine = connect_to(self.location(), ZooKeeper::open(self)).await?;
        Ok(Arc::new(engine))
    }

    /// A URL without the password, for messages.
    pub(crate) fn location(&self) -> String {
        if let Some(url) = &self.url {
            return url.clone();
        }
        #[cfg(feature = "zookeeper-tls")]
        let is_secure = self.tls.is_some();
        #[cfg(not(feature = "zookeeper-tls"))]
        let is_secure = false;
        let scheme = if is_secure { "zookeepers" } else { "zookeeper" };
        let (servers, root) = (&self.servers, self.root.node());
        match &self.login {
            Some(Login { user, .. }) => format!("{scheme}://{user}:***@{servers}{root}"),
            None => format!("{scheme}://{servers}{root}"),
        }
    }

    fn check_login(&self) -> Result<()> {
        match &self.login {
            Some(Login { user, .. }) if user.is_empty() || user.contains(':') => Err(no_digest()),
            _ => Ok(()),
        }
    }
}

fn no_digest() -> Error {
    invalid("a digest has a user without a colon, and a password")
        .advise("write zookeeper://user:password@host")
}

/// The client library would take a part of it for something else.
fn check_servers(servers: &str) -> Result<()> {
    let is_host = |server: &str| !server.starts_with(':') && !server.contains(['/', ' ', '@', '?']);
    match servers.split(',').find(|server| !is_host(server)) {
        Some(server) => Err(invalid(format!("{server:?} is not a host")).advise(EXAMPLE)),
        None => Ok(()),
    }
}

const EXAMPLE: &str = "write zookeeper://h1:2181,h2:2181,h3:2181/path";

fn check_path(path: &str) -> Result<()> {
    let rest = path.strip_suffix('/').unwrap_or(path);
    let good = |part: &str| {
        let odd = |c: char| {
            c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
        };
        !part.is_empty() && part != "." && part != ".." && !part.chars().any(odd)
    };
    if rest.is_empty()
        || rest
            .strip_prefix('/')
            .is_some_and(|path| path.split('/').all(good))
    {
        return Ok(());
    }
    Err(invalid(format!("{path:?} is not the path of a node")).advise(EXAMPLE))
}

fn layout(url: &EngineUrl) -> Result<Layout> {
    let Some(asked) = url.option("layout") else {
        return Ok(Layout::Kazoo);
    };
    let known = Layout::KNOWN.iter().find(|(name, _)| *name == asked);
    known.map(|(_, layout)| *layout).ok_or_else(|| {
        invalid(format!("there is no layout {asked:?}"))
            .advise("use kazoo, curator or curator-rw: like the other programs on the same locks")
    })
}
