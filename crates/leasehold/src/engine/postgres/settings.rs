//! What a PostgreSQL URL says.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use crate::engine::rows::pool_size;
use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

/// The options of `postgres:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("schema", "where the tables are, leasehold"),
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
        "host:port of the server itself, to hear of hand-overs past a pooler",
    ),
    (
        "socket",
        "the folder of the server's socket, instead of a host",
    ),
];

/// What a schema is called unless the URL says otherwise.
pub const DEFAULT_SCHEMA: &str = "leasehold";

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) server: Config,
    /// Where to listen for hand-overs.
    pub(crate) listen: Config,
    pub(crate) location: String,
    pub(crate) schema: String,
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Trust {
    /// Encrypted, but with whom nobody knows.
    Anyone,
    System,
    File(String),
}

/// How much longer than the server to wait, so that it can say itself why it gave up.
const GRACE: Duration = Duration::from_millis(500);

impl Settings {
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

    pub(crate) fn from_url(url: &EngineUrl) -> Result<Self> {
        let schema = url.option("schema").unwrap_or(DEFAULT_SCHEMA).to_owned();
        check_schema(&schema)?;
        let connect_timeout = patience(url, "connect_timeout")?;
        let (mode, trust) = tls(url)?;
        let mut server = login(url, mode, connect_timeout);
        let mut listen = server.clone();
        match (url.option("socket"), url.hosts.as_slice()) {
            (Some(folder), []) => at_socket(&mut server, folder),
            (None, [host]) => at(&mut server, host)?,
            _ => {
                return Err(invalid("a postgres: URL names one server".to_owned())
                    .advise("write postgres://host:5432/database"));
            }
        }
        match url.option("listen") {
            Some(host) => at(&mut listen, host)?,
            None => listen = server.clone(),
        }
        Ok(Self {
            server,
            listen,
            location: url.to_string(),
            schema,
            pool: pool_size(url)?,
            timeout: patience(url, "timeout")?,
            connect_timeout,
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
        })
    }
}

fn patience(url: &EngineUrl, option: &str) -> Result<Duration> {
    let time = url.duration(option)?.unwrap_or(Duration::from_secs(5));
    match time < Duration::from_millis(1) {
        true => Err(invalid(format!("the option {option} is too short"))
            .advise("give a millisecond at least")),
        false => Ok(time),
    }
}

fn login(url: &EngineUrl, mode: SslMode, connect_timeout: Duration) -> Config {
    let mut config = Config::new();
    let user = url.user.as_deref().unwrap_or("postgres");
    let database = match url.path.trim_start_matches('/') {
        "" => user,
        database => database,
    };
    config
        .user(user)
        .dbname(database)
        .application_name("leasehold")
        .ssl_mode(mode)
        .connect_timeout(connect_timeout);
    if let Some(password) = &url.password {
        config.password(password);
    }
    config
}

fn at(config: &mut Config, host: &str) -> Result<()> {
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (host, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.starts_with('/') {
        return Err(invalid("the name of the host is missing".to_owned())
            .advise("write postgres://host:5432/database"));
    }
    let port = match port {
        None => 5432,
        Some(port) => port.parse().map_err(|_| {
            invalid(format!("{port:?} is not a port")).advise("write postgres://host:5432/database")
        })?,
    };
    config.host(host).port(port);
    Ok(())
}

fn at_socket(config: &mut Config, folder: &str) {
    #[cfg(unix)]
    config.host_path(folder);
    #[cfg(not(unix))]
    config.host(folder);
}

fn tls(url: &EngineUrl) -> Result<(SslMode, Trust)> {
    let roots = match url.option("sslrootcert") {
        Some(file) => Trust::File(file.to_owned()),
        None => Trust::System,
    };
    match url.option("sslmode").unwrap_or("prefer") {
        "disable" => Ok((SslMode::Disable, Trust::Anyone)),
        "prefer" => Ok((SslMode::Prefer, Trust::Anyone)),
        "require" if url.option("sslrootcert").is_none() => Ok((SslMode::Require, Trust::Anyone)),
        "require" | "verify-full" => Ok((SslMode::Require, roots)),
        other => Err(invalid(format!("the option sslmode={other} is not known"))
            .advise("use disable, prefer, require or verify-full")),
    }
}

/// The name stands in the text of functions: only what needs no escape anywhere.
pub(crate) fn check_schema(name: &str) -> Result<()> {
    let mut letters = name.bytes();
    let begins_well = letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    let is_the_servers = name
        .get(..3)
        .is_some_and(|first| first.eq_ignore_ascii_case("pg_"));
    if begins_well
        && !is_the_servers
        && name.len() <= 63
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
    {
        return Ok(());
    }
    Err(
        invalid(format!("{name:?} cannot be the name of the schema"))
            .advise("use letters, digits and _, not beginning with a digit or pg_, 63 at most"),
    )
}

pub(crate) fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
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
