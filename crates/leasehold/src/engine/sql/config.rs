//! Options that are the same with every database.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::engine::RowEngine;
use super::store::RowStore;
use crate::engine::{Engine, connect_to};
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, check_times, invalid};

/// How many connections unless it is said.
pub(crate) const DEFAULT_POOL: usize = 8;

/// How many connections a URL asks for.
pub(crate) fn pool_size(url: &EngineUrl) -> Result<usize> {
    let Some(text) = url.option("pool") else {
        return Ok(DEFAULT_POOL);
    };
    let size = text.parse().map_err(|_| no_pool(text))?;
    check_pool(size)?;
    Ok(size)
}

/// Two at least, since releases and renewals never wait behind attempts.
pub(crate) fn check_pool(size: usize) -> Result<()> {
    match (2..=1000).contains(&size) {
        true => Ok(()),
        false => Err(no_pool(size)),
    }
}

fn no_pool(size: impl Display) -> Error {
    invalid(format!("the option pool={size} cannot be used"))
        .advise("give a whole number from 2 to 1000")
}

pub(crate) fn check_waits(timeout: Duration, connect_timeout: Duration) -> Result<()> {
    check_times(&[("timeout", timeout), ("connect_timeout", connect_timeout)])
}

/// The engine over a store that is being connected.
pub(crate) async fn connect<S: RowStore>(
    location: String,
    connecting: impl Future<Output = Result<S>>,
) -> Result<Arc<dyn Engine>> {
    let store = connect_to(location, connecting).await?;
    Ok(Arc::new(RowEngine::new(store)))
}

/// Where the one server is.
#[derive(Debug, Clone)]
pub(crate) enum Address {
    Host(Server),
    Socket(String),
}

impl Address {
    /// The one that a URL names.
    pub(crate) fn of(url: &EngineUrl, default_port: u16) -> Result<Self> {
        match (url.option("socket"), url.hosts.is_empty()) {
            (None, _) => Ok(Self::Host(url.server(default_port)?)),
            (Some(path), true) => Ok(Self::Socket(path.to_owned())),
            (Some(_), false) => Err(url.invalid("a URL names one server: a host, or a socket")),
        }
    }
}

/// Whether a name needs no escape anywhere in the text of functions and procedures.
pub(crate) fn is_plain_name(name: &str, most: usize) -> bool {
    let mut letters = name.bytes();
    let begins_well = letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
    begins_well
        && name.len() <= most
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
}

/// Whether connections are encrypted, and whether the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyFull,
}

impl SslMode {
    /// As elsewhere, `require` checks the certificate if `sslrootcert` names who signs it.
    pub(crate) fn of(url: &EngineUrl) -> Result<Self> {
        match url.option("sslmode").unwrap_or("prefer") {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" if url.option("sslrootcert").is_none() => Ok(Self::Require),
            "require" | "verify-full" => Ok(Self::VerifyFull),
            other => Err(invalid(format!("the option sslmode={other} is not known"))
                .advise("use disable, prefer, require or verify-full")),
        }
    }
}
