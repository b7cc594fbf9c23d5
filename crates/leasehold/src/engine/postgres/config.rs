//! Where a PostgreSQL server is, and how it is used.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;
use rustls::ClientConfig;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::DRIVER;
use super::store::PostgresStore;
use crate::engine::Engine;
use crate::engine::config::{by_url, setters};
use crate::engine::sql::config::{
    self, Address, DEFAULT_POOL, check_pool, check_waits, is_plain_name, pool_size,
};
use crate::error::Result;
use crate::url::{EngineUrl, Server, invalid};

/// The options of `postgres:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("schema", "where the tables are, leasehold"),
    (
        "schema_owner",
        "a role that may own the tables besides this user, roles that it is a member of, superusers and the owner of the database",
    ),
    ("pool", "how many connections at most, 8"),
    ("timeout", "how long to wait for an answer, 5s"),
    ("connect_timeout", "how long to wait for a connection, 5s"),
    (
        "sslmode",
        "disable, prefer, require or verify-full, as elsewhere; prefer",
    ),
    (
        "sslrootcert",
        "a file with the certificates to trust; those of the system",
    ),
    (
        "pooler",
        "transaction or none, if there is one between us and the server that gives each transaction another session; found out",
    ),
    (
        "listen",
        "host:port of the server itself, to receive offers past a pooler",
    ),
    (
        "socket",
        "the folder of the server's socket, instead of a host",
    ),
];

/// What a schema is called unless the URL says otherwise.
pub const DEFAULT_SCHEMA: &str = "leasehold";

const PORT: u16 = 5432;
const DEFAULT_USER: &str = "postgres";

/// The configuration of the PostgreSQL engine: everything that a `postgres:` URL can say.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::postgres::PostgresConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = PostgresConfig::new("db.internal", 5432)
///     .login("app", "secret")
///     .database("shop")
///     .schema("locks")
///     .timeout(Duration::from_secs(2));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: PostgresConfig = "postgres://app:secret@db.internal/shop?schema=locks&timeout=2s".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    address: Address,
    /// Where to listen for offers, if not there.
    listen: Option<Server>,
    /// Without an address.
    login: Config,
    /// The URL that it is from, if it was not changed since.
    url: Option<String>,
    pub(crate) schema: String,
    /// Whom the user trusts with the tables and functions.
    pub(crate) schema_owner: Option<String>,
    pub(crate) pool: usize,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) trust: Trust,
    pub(crate) pooler: Pooler,
}

/// What stands between us and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pooler {
    Unknown,
    None,
    Transaction,
}

/// Whose certificates count.
#[derive(Clone)]
pub(crate) enum Trust {
    /// Encrypted, but with whom nobody knows.
    Anyone,
    System,
    File(String),
    /// As the program's own configuration of TLS says.
    Own(Arc<ClientConfig>),
}

/// How much longer than the server to wait, so that it can say itself why it gave up.
const GRACE: Duration = Duration::from_millis(500);

/// The server at 127.0.0.1:5432.
impl Default for PostgresConfig {
    fn default() -> Self {
        Self::new("127.0.0.1", PORT)
    }
}

by_url!(PostgresConfig);

impl PostgresConfig {
    /// The server at this host and port. Connections are encrypted if the server supports it, but its certificate is not verified: see
    /// [`verified_tls`](Self::verified_tls) and [`tls`](Self::tls).
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self::at(Address::Host(Server::new(host, port)))
    }

    /// The server whose Unix domain socket is in this folder.
    pub fn socket(folder: impl Into<String>) -> Self {
        Self::at(Address::Socket(folder.into()))
    }

    fn at(address: Address) -> Self {
        let mut login = Config::new();
        login
            .user(DEFAULT_USER)
            .application_name("leasehold")
            .ssl_mode(SslMode::Prefer);
        let five_seconds = Duration::from_secs(5);
        Self {
            address,
            listen: None,
            login,
            url: None,
            schema: DEFAULT_SCHEMA.to_owned(),
            schema_owner: None,
            pool: DEFAULT_POOL,
            timeout: five_seconds,
            connect_timeout: five_seconds,
            trust: Trust::Anyone,
            pooler: Pooler::Unknown,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let mut config = Self::at(Address::of(url, PORT)?);
        let (mode, trust) = tls(url)?;
        config.login.ssl_mode(mode);
        if let Some(user) = &url.user {
            config.login.user(user);
        }
        if let Some(password) = &url.password {
            config.login.password(password);
        }
        let database = url.path.trim_start_matches('/');
        if !database.is_empty() {
            config.login.dbname(database);
        }
        let schema = url.option("schema").unwrap_or(DEFAULT_SCHEMA).to_owned();
        check_schema(&schema)?;
        let listen = url.option("listen");
        url.set_duration("timeout", &mut config.timeout)?;
        url.set_duration("connect_timeout", &mut config.connect_timeout)?;
        Ok(Self {
            listen: listen
                .map(|host| url.parse_server(host, PORT))
                .transpose()?,
            url: Some(url.to_string()),
            schema,
            schema_owner: url.option("schema_owner").map(str::to_owned),
            pool: pool_size(url)?,
            trust,
            pooler: match url.option("pooler") {
                None => Pooler::Unknown,
                Some("none") => Pooler::None,
                Some("transaction") => Pooler::Transaction,
                Some(other) => {
                    return Err(invalid(format!("the option pooler={other} is not known"))
                        .advise("use transaction or none"));
                }
            },
            ..config
        })
    }

    /// Logs in with this user and password; as `postgres` by default.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login.user(user).password(password);
        self.url = None;
        self
    }

    /// Uses this database; by default the one that has the user's name.
    #[must_use]
    pub fn database(mut self, name: &str) -> Self {
        self.login.dbname(name);
        self.url = None;
        self
    }

    /// Connects over TLS only, with this configuration: the certificates to trust, the client's own certificate, and how host names are
    /// verified.
    #[must_use]
    pub fn tls(self, tls: Arc<ClientConfig>) -> Self {
        self.encrypted(SslMode::Require, Trust::Own(tls))
    }

    /// Where the tables are; the schema `leasehold` by default.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self.url = None;
        self
    }

    /// A role that may own the tables besides the user itself, roles that it is a member of, superusers and the owner of the database.
    #[must_use]
    pub fn schema_owner(mut self, role: impl Into<String>) -> Self {
        self.schema_owner = Some(role.into());
        self
    }

    setters! {
        /// How many connections at most, from 2 to 1000; 8 by default. A process that waits has one more.
        pool: usize,
        /// How long to wait for an answer; 5 seconds by default.
        timeout: Duration,
        /// How long to wait for a connection; 5 seconds by default.
        connect_timeout: Duration,
    }

    /// Whether there is a pooler between the client and the server that may give each transaction another session. Detected by default.
    #[must_use]
    pub fn transaction_pooler(mut self, is_there: bool) -> Self {
        self.pooler = match is_there {
            true => Pooler::Transaction,
            false => Pooler::None,
        };
        self
    }

    /// The address of the server itself, to receive notifications past a pooler.
    #[must_use]
    pub fn listen(mut self, host: impl Into<String>, port: u16) -> Self {
        self.listen = Some(Server::new(host, port));
        self.url = None;
        self
    }

    /// Connects, checks whether the server is fit for locks, and creates the tables if they are missing. Pass the result to
    /// [`Locks::new`](crate::Locks::new).
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if a time, a name, a number or a certificate cannot be used; `Unreachable`, `Denied` or `EngineUnfit` as the
    /// server answers: it must be PostgreSQL 13 or newer, not a standby, the database encoded as UTF8, and transactions read committed by default.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        check_pool(self.pool)?;
        self.connect_by(None).await
    }

    /// Connects with your own pool of the `deadpool-postgres` crate. All calls use its connections, with its login and TLS settings, and
    /// [`pool`](Self::pool) has no effect.
    ///
    /// This configuration must name the same server and database. The engine also opens two connections of its own: one at the start, to check the
    /// server, and one that receives notifications while claims are waiting, which cannot be shared.
    ///
    /// The rest of the program can use the pool too. A quarter of its connections, at least one, is reserved for renewals and releases; but if the
    /// program keeps all connections for a long time, renewals are delayed nevertheless. The pool must hand out connections that are not in a
    /// transaction, and whose default transactions are read committed and may write; one connection is checked at the start. Prepared statements are
    /// kept on them only with [`transaction_pooler(false)`](Self::transaction_pooler).
    ///
    /// ```no_run
    /// use deadpool_postgres::{Manager, Pool};
    /// use leasehold::Locks;
    /// use leasehold::engine::postgres::PostgresConfig;
    /// use tokio_postgres::NoTls;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = "postgres://app:secret@db.internal/shop";
    /// let pool = Pool::builder(Manager::new(server.parse()?, NoTls)).max_size(8).build()?;
    /// let config: PostgresConfig = server.parse()?;
    /// let locks = Locks::new(config.connect_with(pool).await?);
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and `InvalidConfig` if the pool has fewer than 2 connections, leads to another server or database, or
    /// its connections are read-only, inside a transaction, or have another isolation level than read committed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the pool usable; a connection that still waits for an answer may be closed.
    pub async fn connect_with(self, pool: Pool) -> Result<Arc<dyn Engine>> {
        self.connect_by(Some(pool)).await
    }

    async fn connect_by(self, pool: Option<Pool>) -> Result<Arc<dyn Engine>> {
        check_schema(&self.schema)?;
        check_waits(self.timeout, self.connect_timeout)?;
        config::connect(self.location(), PostgresStore::connect(self, pool)).await
    }

    /// A URL without the password, for messages.
    pub(crate) fn location(&self) -> String {
        if let Some(url) = &self.url {
            return url.clone();
        }
        let user = self.login.get_user().unwrap_or(DEFAULT_USER);
        let database = self.login.get_dbname().unwrap_or(user);
        let schema = &self.schema;
        match &self.address {
            Address::Host(server) => {
                format!("postgres://{user}@{server}/{database}?schema={schema}")
            }
            Address::Socket(folder) => {
                format!("postgres:/{database}?schema={schema}&socket={folder}")
            }
        }
    }

    /// How to connect.
    pub(crate) fn server(&self) -> Config {
        self.login_at(&self.address)
    }

    /// The same where notifications are received.
    pub(crate) fn listening(&self) -> Config {
        match &self.listen {
            Some(server) => self.login_at(&Address::Host(server.clone())),
            None => self.server(),
        }
    }

    pub(crate) fn listens_elsewhere(&self) -> bool {
        self.listen.is_some()
    }

    /// What distinguishes one listener from others. A secret: the password is in it.
    pub(crate) fn listens_to(&self) -> String {
        let trust = match &self.trust {
            // The listener keeps it, so no other is there.
            Trust::Own(tls) => format!("{:p}", Arc::as_ptr(tls)),
            Trust::Anyone => "anyone".to_owned(),
            Trust::System => "system".to_owned(),
            Trust::File(path) => format!("file {path}"),
        };
        format!(
            "{:?} {:?} {} {:?} {trust}",
            self.listening(),
            self.login.get_password(),
            self.location(),
            (self.timeout, self.connect_timeout),
        )
    }

    fn login_at(&self, address: &Address) -> Config {
        let mut config = self.login.clone();
        config.connect_timeout(self.connect_timeout);
        match address {
            Address::Host(Server { host, port }) => {
                config.host(host).port(*port);
            }
            #[cfg(unix)]
            Address::Socket(folder) => {
                config.host_path(folder);
            }
            #[cfg(not(unix))]
            Address::Socket(folder) => {
                config.host(folder);
            }
        }
        config
    }

    /// For how long the server may wait for others, in its own unit.
    pub(crate) fn patience(&self) -> i64 {
        i64::try_from(self.timeout.as_millis())
            .unwrap_or(i64::MAX)
            .clamp(1, i32::MAX.into())
    }

    /// When to stop waiting for an answer.
    pub(crate) fn limit(&self) -> Duration {
        self.timeout + GRACE
    }
}

/// What `sslmode` and `sslrootcert` say in a URL.
impl PostgresConfig {
    /// Connects without TLS: `sslmode=disable`.
    #[must_use]
    pub fn without_tls(self) -> Self {
        self.encrypted(SslMode::Disable, Trust::Anyone)
    }

    /// Connects over TLS only, and trusts whoever answers: `sslmode=require`.
    #[must_use]
    pub fn unverified_tls(self) -> Self {
        self.encrypted(SslMode::Require, Trust::Anyone)
    }

    /// Connects over TLS only, and verifies the server with the certificates of the system: `sslmode=verify-full`.
    #[must_use]
    pub fn verified_tls(self) -> Self {
        self.encrypted(SslMode::Require, Trust::System)
    }

    /// Connects over TLS only, and verifies the server with the certificates in this PEM file: `sslrootcert`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the file cannot be read, or has no certificates in it.
    pub fn verified_tls_by(self, file: impl Into<String>) -> Result<Self> {
        let trust = Trust::File(file.into());
        super::tls::connector(&trust)?;
        Ok(self.encrypted(SslMode::Require, trust))
    }

    fn encrypted(mut self, mode: SslMode, trust: Trust) -> Self {
        self.login.ssl_mode(mode);
        self.trust = trust;
        self.url = None;
        self
    }
}

fn tls(url: &EngineUrl) -> Result<(SslMode, Trust)> {
    let roots = match url.option("sslrootcert") {
        Some(file) => Trust::File(file.to_owned()),
        None => Trust::System,
    };
    Ok(match config::SslMode::of(url)? {
        config::SslMode::Disable => (SslMode::Disable, Trust::Anyone),
        config::SslMode::Prefer => (SslMode::Prefer, Trust::Anyone),
        config::SslMode::Require => (SslMode::Require, Trust::Anyone),
        config::SslMode::VerifyFull => (SslMode::Require, roots),
    })
}

/// The name is part of the text of functions.
pub(crate) fn check_schema(name: &str) -> Result<()> {
    let is_the_servers = name
        .get(..3)
        .is_some_and(|first| first.eq_ignore_ascii_case("pg_"));
    match is_plain_name(name, 63) && !is_the_servers {
        true => Ok(()),
        false => Err(
            invalid(format!("{name:?} cannot be the name of the schema"))
                .advise("use letters, digits and _, not beginning with a digit or pg_, 63 at most"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_schemas() {
        for fine in ["leasehold", "_a1", "My_Locks", &"x".repeat(63)] {
            assert!(check_schema(fine).is_ok(), "{fine}");
        }
        for bad in [
            "",
            "1a",
            "a-b",
            "a.b",
            "a\"b",
            "a$$b",
            "é",
            "pg_a",
            "PG_a",
            &"x".repeat(64),
        ] {
            assert!(check_schema(bad).is_err(), "{bad}");
        }
    }
}
