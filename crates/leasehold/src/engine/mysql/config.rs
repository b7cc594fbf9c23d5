//! Where a MySQL or MariaDB server is, and how it is used.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, Pool, SslOpts};

use super::DRIVER;
use super::store::MysqlStore;
use crate::engine::Engine;
use crate::engine::certificates::certificates;
use crate::engine::config::{by_url, setters};
use crate::engine::sql::config::{
    self, Address, DEFAULT_POOL, SslMode, check_pool, check_waits, is_plain_name, pool_size,
};
use crate::error::Result;
use crate::url::{EngineUrl, Server, invalid};

/// The options of `mysql:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    (
        "table",
        "what the names of the tables begin with, leasehold",
    ),
    ("pool", "how many connections at most, 8"),
    ("timeout", "how long to wait for an answer, 5s"),
    ("connect_timeout", "how long to wait for a connection, 5s"),
    ("sslmode", "disable, prefer, require or verify-full; prefer"),
    (
        "sslrootcert",
        "a file with the certificates to trust; those of the public authorities",
    ),
    (
        "socket",
        "the path of the server's socket, instead of a host",
    ),
];

/// What the tables' names begin with unless the URL says otherwise.
pub const DEFAULT_TABLE: &str = "leasehold";

const PORT: u16 = 3306;
const DEFAULT_USER: &str = "root";

/// The configuration of the MySQL and MariaDB engine: everything that a `mysql:` URL can say.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::mysql::MysqlConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = MysqlConfig::new("db.internal", 3306, "shop")
///     .login("app", "secret")
///     .table("locks")
///     .timeout(Duration::from_secs(2));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: MysqlConfig = "mysql://app:secret@db.internal/shop?table=locks&timeout=2s".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MysqlConfig {
    address: Address,
    database: String,
    user: String,
    password: Option<String>,
    /// The URL that it is from, if it was not changed since.
    url: Option<String>,
    pub(crate) tls: Tls,
    pub(crate) table: String,
    pub(crate) pool: usize,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

/// Whether connections are encrypted.
#[derive(Clone, Debug)]
pub(crate) enum Tls {
    No,
    /// If the server can.
    Prefer(SslOpts),
    Yes(SslOpts),
}

by_url!(MysqlConfig);

/// What every session begins with. Lock waits on the server are short, and a call that was rolled back because of one is repeated by the client. The isolation
/// level is read committed: with repeatable reads, a statement that locks rows would lock the gaps between them too.
pub(crate) const SESSION: [&str; 2] = [
    "SET SESSION autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
];

impl MysqlConfig {
    /// This database of the server at this host and port. Connections are encrypted if the server supports it, but its certificate is not verified: see
    /// [`verified_tls`](Self::verified_tls) and [`tls`](Self::tls).
    pub fn new(host: impl Into<String>, port: u16, database: impl Into<String>) -> Self {
        let server = Server::new(host, port);
        Self::at(Address::Host(server), database.into())
    }

    /// This database of the server that listens on the Unix domain socket at this path.
    pub fn socket(path: impl Into<String>, database: impl Into<String>) -> Self {
        Self::at(Address::Socket(path.into()), database.into())
    }

    fn at(address: Address, database: String) -> Self {
        let five_seconds = Duration::from_secs(5);
        Self {
            address,
            database,
            user: DEFAULT_USER.to_owned(),
            password: None,
            url: None,
            tls: Tls::Prefer(anyone()),
            table: DEFAULT_TABLE.to_owned(),
            pool: DEFAULT_POOL,
            timeout: five_seconds,
            connect_timeout: five_seconds,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let table = url.option("table").unwrap_or(DEFAULT_TABLE).to_owned();
        check_table(&table)?;
        let database = match url.path.trim_start_matches('/') {
            "" => return Err(url.invalid("a mysql: URL names a database")),
            database => database,
        };
        let mut config = Self::at(Address::of(url, PORT)?, database.to_owned());
        url.set_duration("timeout", &mut config.timeout)?;
        url.set_duration("connect_timeout", &mut config.connect_timeout)?;
        Ok(Self {
            user: url.user.clone().unwrap_or(config.user),
            password: url.password.clone(),
            url: Some(url.to_string()),
            tls: tls(url)?,
            table,
            pool: pool_size(url)?,
            ..config
        })
    }

    /// Logs in with this user and password; as `root` without a password by default.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = user.into();
        self.password = Some(password.into());
        self.url = None;
        self
    }

    /// Connects over TLS only, with these options: the certificates to trust, and the client's own certificate.
    #[must_use]
    pub fn tls(self, tls: SslOpts) -> Self {
        self.encrypted(Tls::Yes(tls))
    }

    /// What the names of the tables and procedures begin with; `leasehold` by default.
    #[must_use]
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self.url = None;
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

    /// Connects, checks whether the server is fit for locks, and creates the tables if they are missing. Pass the result to
    /// [`Locks::new`](crate::Locks::new).
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if a time, a name or a number cannot be used; `Unreachable`, `Denied` or `EngineUnfit` as the server answers: it must be
    /// MySQL 8 or MariaDB 10.6 or newer, and neither read-only nor one of several primaries.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connections.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        check_pool(self.pool)?;
        self.connect_by(None).await
    }

    /// Connects with your own pool of the `mysql_async` crate. All calls use its connections, with its login and TLS settings, and
    /// [`pool`](Self::pool) has no effect.
    ///
    /// This configuration must name the same server and database. The engine also opens two connections of its own: one at the start, to check the
    /// server, and one that learns of hand-overs while claims are waiting, which cannot be shared. The pool and this configuration should log in as the same
    /// user, since only that user may wake this connection.
    ///
    /// The rest of the program can use the pool too. A quarter of its connections, at least one, is reserved for renewals and releases; but if the
    /// program keeps all connections for a long time, renewals are delayed nevertheless. Each time the engine takes a connection from the pool, it sets
    /// the isolation level and the timeouts that it needs, which costs two round trips a call. The pool must reset connections when they are returned, as
    /// it does by default (`PoolOpts::with_reset_connection`).
    ///
    /// ```no_run
    /// use leasehold::Locks;
    /// use leasehold::engine::mysql::MysqlConfig;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = "mysql://app:secret@db.internal/shop";
    /// let pool = mysql_async::Pool::from_url(server)?;
    /// let config: MysqlConfig = server.parse()?;
    /// let locks = Locks::new(config.connect_with(pool).await?);
    /// # let _ = locks;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect), and `InvalidConfig` if the pool has fewer than 2 connections, does not reset them, or leads to another server
    /// or database.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the pool usable; it closes a connection that still waits for an answer.
    pub async fn connect_with(self, pool: Pool) -> Result<Arc<dyn Engine>> {
        self.connect_by(Some(pool)).await
    }

    async fn connect_by(self, pool: Option<Pool>) -> Result<Arc<dyn Engine>> {
        check_table(&self.table)?;
        check_waits(self.timeout, self.connect_timeout)?;
        config::connect(self.location(), MysqlStore::connect(self, pool)).await
    }

    /// A URL without the password, for messages.
    pub(crate) fn location(&self) -> String {
        if let Some(url) = &self.url {
            return url.clone();
        }
        let (user, database, table) = (&self.user, &self.database, &self.table);
        match &self.address {
            Address::Host(server) => format!("mysql://{user}@{server}/{database}?table={table}"),
            Address::Socket(path) => format!("mysql:/{database}?table={table}&socket={path}"),
        }
    }

    /// How to connect, encrypted or not.
    pub(crate) fn opts(&self, ssl: Option<&SslOpts>) -> Opts {
        self.builder().ssl_opts(ssl.cloned()).into()
    }

    fn builder(&self) -> OptsBuilder {
        let opts = OptsBuilder::default()
            .user(Some(&self.user))
            .pass(self.password.as_deref())
            .db_name(Some(&self.database))
            .prefer_socket(false)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .init(SESSION.to_vec());
        match &self.address {
            Address::Socket(path) => opts.socket(Some(path)),
            Address::Host(Server { host, port }) => opts.ip_or_hostname(host).tcp_port(*port),
        }
    }

    pub(crate) fn database(&self) -> &str {
        &self.database
    }

    /// What distinguishes one listener from others. A secret: the password is in it.
    pub(crate) fn listens_to(&self) -> String {
        format!("{:?} {:?} {}", self.builder(), self.tls, self.table)
    }
}

/// What `sslmode` and `sslrootcert` say in a URL.
impl MysqlConfig {
    /// Connects without TLS: `sslmode=disable`.
    #[must_use]
    pub fn without_tls(self) -> Self {
        self.encrypted(Tls::No)
    }

    /// Connects over TLS only, and trusts whoever answers: `sslmode=require`.
    #[must_use]
    pub fn unverified_tls(self) -> Self {
        self.encrypted(Tls::Yes(anyone()))
    }

    /// Connects over TLS only, and verifies the server with the certificates of the public authorities: `sslmode=verify-full`.
    #[must_use]
    pub fn verified_tls(self) -> Self {
        self.encrypted(Tls::Yes(SslOpts::default()))
    }

    /// Connects over TLS only, and verifies the server with the certificates in this PEM file: `sslrootcert`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the file cannot be read, or has no certificates in it.
    pub fn verified_tls_by(self, file: impl AsRef<str>) -> Result<Self> {
        let trusted = trusting(file.as_ref())?;
        Ok(self.encrypted(Tls::Yes(trusted)))
    }

    fn encrypted(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self.url = None;
        self
    }
}

/// Only the certificates in this file are trusted.
fn trusting(file: &str) -> Result<SslOpts> {
    Ok(SslOpts::default()
        .with_root_certs(vec![certificates(file)?.into()])
        .with_disable_built_in_roots(true))
}

/// Encrypted, but with whom nobody asks.
fn anyone() -> SslOpts {
    SslOpts::default()
        .with_danger_accept_invalid_certs(true)
        .with_danger_skip_domain_validation(true)
}

fn tls(url: &EngineUrl) -> Result<Tls> {
    let trusted = url.option("sslrootcert").map(trusting).transpose()?;
    Ok(match SslMode::of(url)? {
        SslMode::Disable => Tls::No,
        SslMode::Prefer => Tls::Prefer(anyone()),
        SslMode::Require => Tls::Yes(anyone()),
        SslMode::VerifyFull => Tls::Yes(trusted.unwrap_or_default()),
    })
}

/// The name is part of the text of procedures.
pub(crate) fn check_table(name: &str) -> Result<()> {
    match is_plain_name(name, 40) {
        true => Ok(()),
        false => Err(invalid(format!("tables' names cannot begin with {name:?}"))
            .advise("use letters, digits and _, not beginning with a digit, 40 at most")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_of_tables() {
        for fine in ["leasehold", "_a1", "My_Locks", &"x".repeat(40)] {
            assert!(check_table(fine).is_ok(), "{fine}");
        }
        for bad in ["", "1a", "a-b", "a.b", "a`b", "a'b", "é", &"x".repeat(41)] {
            assert!(check_table(bad).is_err(), "{bad}");
        }
    }

    /// One that checks the certificate must not share the listener of one that does not.
    #[test]
    fn other_sslmodes_have_other_listeners() {
        let listens_to = |mode: &str| {
            let url = format!("mysql://me@h/db?sslmode={mode}");
            let url = crate::engine::mysql::DRIVER.parse(&url).unwrap();
            MysqlConfig::from_url(&url).unwrap().listens_to()
        };
        let listeners = ["disable", "prefer", "require", "verify-full"].map(listens_to);
        for (nth, one) in listeners.iter().enumerate() {
            assert!(listeners[..nth].iter().all(|other| other != one));
        }
    }

    #[test]
    fn no_password_is_printed() {
        let url = crate::engine::mysql::DRIVER
            .parse("mysql://me:SECRET@h/db")
            .unwrap();
        let config = MysqlConfig::from_url(&url).unwrap();
        assert!(!format!("{config:?}").contains("SECRET"));
    }
}
