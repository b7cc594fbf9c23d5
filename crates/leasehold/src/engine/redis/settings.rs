//! What a Redis URL says.

use std::time::Duration;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
};

use super::failure;
use crate::claim::Ttl;
use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

/// The options of `redis:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("prefix", "what stands before every lock's name, leasehold:"),
    ("db", "the number of the database, 0"),
    ("timeout", "how long to wait for an answer, 2s"),
    ("connect_timeout", "how long to wait for a connection, 2s"),
    (
        "max_ttl",
        "no lock is granted for longer, and a server that has restarted empty grants none until it has passed; off",
    ),
    (
        "wait_replicas",
        "a grant counts only when so many replicas have it, 0",
    ),
];

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) server: ConnectionInfo,
    pub(crate) location: String,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) wait_replicas: u32,
    /// Zero if a server that has restarted empty is trusted at once.
    pub(crate) max_ttl: Duration,
}

impl Settings {
    pub(crate) fn from_url(url: &EngineUrl) -> Result<Self> {
        let two_seconds = Duration::from_secs(2);
        Ok(Self {
            server: server(url, number(url, "db")?)?,
            location: url.to_string(),
            prefix: url.option("prefix").unwrap_or("leasehold:").to_owned(),
            timeout: url.duration("timeout")?.unwrap_or(two_seconds),
            connect_timeout: url.duration("connect_timeout")?.unwrap_or(two_seconds),
            wait_replicas: number(url, "wait_replicas")?.unwrap_or(0),
            max_ttl: match url.duration("max_ttl")? {
                Some(max_ttl) => Ttl::new(max_ttl)?.get(),
                None => Duration::ZERO,
            },
        })
    }
}

fn server(url: &EngineUrl, db: Option<u32>) -> Result<ConnectionInfo> {
    if url.scheme == "redis+unix" {
        if url.path.is_empty() {
            return Err(invalid("a redis+unix: URL names a socket".to_owned())
                .advise("write redis+unix:/run/redis/redis.sock"));
        }
        return with_login(ConnectionAddr::Unix(url.path.clone().into()), url, db);
    }
    let [host] = url.hosts.as_slice() else {
        let error = invalid("a redis: URL names one server".to_owned());
        return Err(
            error.advise("write redis://host:6379, or redlock://a:6379,b:6379,c:6379 for several")
        );
    };
    server_at(host, url.scheme == "rediss", url, db)
}

/// One server of those that a URL names.
pub(crate) fn server_at(
    host: &str,
    tls: bool,
    url: &EngineUrl,
    db: Option<u32>,
) -> Result<ConnectionInfo> {
    let (host, port) = host_and_port(host)?;
    let address = match tls {
        true => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        },
        false => ConnectionAddr::Tcp(host, port),
    };
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
    with_login(address, url, db)
}

fn with_login(address: ConnectionAddr, url: &EngineUrl, db: Option<u32>) -> Result<ConnectionInfo> {
    let mut settings = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(db.unwrap_or(0).into())
        .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &url.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    let server = address
        .into_connection_info()
        .map_err(failure::of_request)?;
    Ok(server.set_redis_settings(settings))
}

fn host_and_port(text: &str) -> Result<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        None => 6379,
        Some(port) => port.parse().map_err(|_| {
            invalid(format!("{port:?} is not a port")).advise("write redis://host:6379")
        })?,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(
            invalid("the name of the host is missing".to_owned()).advise("write redis://host:6379")
        );
    }
    Ok((host.to_owned(), port))
}

/// An option as a whole number.
pub(crate) fn number(url: &EngineUrl, name: &str) -> Result<Option<u32>> {
    let Some(text) = url.option(name) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        invalid(format!("the option {name}={text} is not a number")).advise("give a whole number")
    })
}

pub(crate) fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}
