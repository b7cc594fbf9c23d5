//! Where an etcd cluster is, and how it is used.

use std::sync::Arc;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::member::Reach;
use super::{DRIVER, Etcd};
use crate::engine::certificates::Certificates;
use crate::engine::config::{Login, by_url, setters};
use crate::engine::{Engine, connect_to};
use crate::error::Result;
use crate::url::{EngineUrl, Server, check_times, invalid};

/// The options of `etcd:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("prefix", "what stands before every lock's name, leasehold/"),
    (
        "timeout",
        "how long to go on asking one endpoint after the other, 5s",
    ),
    (
        "attempt_timeout",
        "how long to wait for one endpoint before the next is asked, 500ms",
    ),
    ("ca", "a file with the certificates to trust; etcds: only"),
    ("cert", "a file with our certificate; etcds: only"),
    ("key", "a file with its key; etcds: only"),
];

const PORT: u16 = 2379;

/// The configuration of the etcd engine: everything that an `etcd:` URL can say.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::etcd::EtcdConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = EtcdConfig::new("etcd-1.internal", 2379)
///     .member("etcd-2.internal", 2379)
///     .member("etcd-3.internal", 2379)
///     .login("app", "secret")
///     .prefix("app/")
///     .timeout(Duration::from_secs(3));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: EtcdConfig =
///     "etcd://app:secret@etcd-1.internal,etcd-2.internal,etcd-3.internal?prefix=app/&timeout=3s".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EtcdConfig {
    members: Vec<Server>,
    tls: Option<ClientTlsConfig>,
    /// The URL that it is from, if it was not changed since.
    url: Option<String>,
    pub(crate) prefix: String,
    pub(crate) login: Option<Login>,
    pub(crate) timeout: Duration,
    pub(crate) attempt_timeout: Duration,
}

/// One member, at 127.0.0.1:2379.
impl Default for EtcdConfig {
    fn default() -> Self {
        Self::new("127.0.0.1", PORT)
    }
}

by_url!(EtcdConfig);

impl EtcdConfig {
    /// A cluster with a member at this host and port, without TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self::of(vec![Server::new(host, port)])
    }

    fn of(members: Vec<Server>) -> Self {
        Self {
            members,
            tls: None,
            url: None,
            prefix: "leasehold/".to_owned(),
            login: None,
            timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_millis(500),
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        if !url.path.trim_matches('/').is_empty() {
            let path = &url.path;
            return Err(invalid(format!(
                "an etcd: URL has no path, but this one has {path:?}"
            ))
            .advise("write etcd://host:2379?prefix=locks/"));
        }
        let mut config = Self::of(url.servers(PORT)?);
        config.tls = tls(url)?;
        if let Some(prefix) = url.option("prefix") {
            config = config.prefix(prefix);
        }
        url.set_duration("timeout", &mut config.timeout)?;
        url.set_duration("attempt_timeout", &mut config.attempt_timeout)?;
        config.login = Login::of(url, || {
            invalid("a user and a password go together")
                .advise("write etcd://user:password@host:2379")
        })?;
        config.url = Some(url.to_string());
        Ok(config)
    }

    /// Adds another member of the same cluster. Name all of them, so that the engine can use the others if one is down.
    #[must_use]
    pub fn member(mut self, host: impl Into<String>, port: u16) -> Self {
        self.members.push(Server::new(host, port));
        self.url = None;
        self
    }

    /// Connects over TLS with these certificates.
    #[must_use]
    pub fn tls(mut self, tls: ClientTlsConfig) -> Self {
        self.tls = Some(tls);
        self.url = None;
        self
    }

    /// Logs in with this user and password.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login::new(user, password));
        self.url = None;
        self
    }

    /// The prefix of all keys; `leasehold/` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self.url = None;
        self
    }

    setters! {
        /// How long to try one member after the other; 5 seconds by default.
        timeout: Duration,
        /// How long to wait for one member before the next is tried; half a second by default, and longer after each round.
        attempt_timeout: Duration,
    }

    /// Connects, and checks whether the cluster is fit for locks. Pass the result to [`Locks::new`](crate::Locks::new).
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if an address, a time or a certificate cannot be used; `Unreachable`, `Denied` or `EngineUnfit` as the cluster answers: it
    /// must be etcd 3.4 or newer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        let members = self.members()?;
        self.connect_by(members).await
    }

    /// Connects with your own channel: its address, TLS settings and limits are used instead of those of this configuration, whose members
    /// only appear in messages. The login, the prefix and the timeouts are those of this configuration.
    ///
    /// The channel can balance between members, and the rest of the program can use it too. It must allow long-lived streams, one for each engine, and
    /// enough concurrent requests that renewals are not delayed: limits on concurrency or rate apply to them too. It must also detect connections that
    /// were lost silently, for example because a firewall dropped them: set `http2_keep_alive_interval`.
    ///
    /// ```no_run
    /// use leasehold::Locks;
    /// use leasehold::engine::etcd::EtcdConfig;
    /// use tonic::transport::Channel;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let channel = Channel::from_static("http://etcd.internal:2379").connect_lazy();
    /// let config = EtcdConfig::new("etcd.internal", 2379).prefix("app/");
    /// let locks = Locks::new(config.connect_with(channel).await?);
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect); `EngineUnfit` if something else than etcd answers. A server that closes the connection without an answer is
    /// `Unreachable`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the channel as it is.
    pub async fn connect_with(self, channel: Channel) -> Result<Arc<dyn Engine>> {
        self.connect_by(vec![Reach::Given(channel)]).await
    }

    async fn connect_by(self, members: Vec<Reach>) -> Result<Arc<dyn Engine>> {
        check_times(&[
            ("timeout", self.timeout),
            ("attempt_timeout", self.attempt_timeout),
        ])?;
        let engine = connect_to(self.location(), Etcd::connect(self, members)).await?;
        Ok(Arc::new(engine))
    }

    /// A URL without the password, for messages.
    pub(crate) fn location(&self) -> String {
        if let Some(url) = &self.url {
            return url.clone();
        }
        let scheme = match self.tls {
            Some(_) => "etcds",
            None => "etcd",
        };
        let members: Vec<_> = self.members.iter().map(Server::to_string).collect();
        let (members, prefix) = (members.join(","), &self.prefix);
        match &self.login {
            Some(Login { user, .. }) => format!("{scheme}://{user}:***@{members}?prefix={prefix}"),
            None => format!("{scheme}://{members}?prefix={prefix}"),
        }
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn hosts(&self) -> Vec<&str> {
        let members = self.members.iter();
        members.map(|member| member.host.as_str()).collect()
    }

    /// How to reach each member.
    pub(super) fn members(&self) -> Result<Vec<Reach>> {
        let members = self.members.iter().map(|member| {
            let endpoint = endpoint(member, self.tls.as_ref(), self.attempt_timeout)?;
            Ok(Reach::By(Box::new(endpoint)))
        });
        members.collect()
    }
}

fn endpoint(
    server: &Server,
    tls: Option<&ClientTlsConfig>,
    patience: Duration,
) -> Result<Endpoint> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let wrong = |cause| {
        invalid(format!("{server} is not the address of an endpoint"))
            .advise("write etcd://host:2379")
            .caused_by(cause)
    };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{server}"))
        .map_err(wrong)?
        .connect_timeout(patience)
        .tcp_nodelay(true);
    let Some(tls) = tls else {
        return Ok(endpoint);
    };
    crate::engine::tls::install();
    endpoint.tls_config(tls.clone()).map_err(|cause| {
        invalid("the certificates cannot be used")
            .advise("give PEM files: ?ca=…&cert=…&key=…")
            .caused_by(cause)
    })
}

fn tls(url: &EngineUrl) -> Result<Option<ClientTlsConfig>> {
    let Some(Certificates { ca, identity }) = Certificates::of(url, "etcds")? else {
        return Ok(None);
    };
    let mut tls = ClientTlsConfig::new();
    tls = match ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
        None => tls.with_native_roots(),
    };
    if let Some((cert, key)) = identity {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    Ok(Some(tls))
}
