//! What a ZooKeeper URL says.

use std::time::Duration;

use super::layout::Layout;
use super::path::Root;
use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

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

/// Where locks are if the URL does not say; made if it is not there.
const OWN_ROOT: &str = "/leasehold";

#[derive(Clone)]
pub(crate) struct Settings {
    /// As the client library wants it: `host:port,host:port`.
    pub(crate) servers: String,
    pub(crate) location: String,
    pub(crate) login: Option<String>,
    pub(crate) root: Root,
    /// Whether the root is ours to make.
    pub(crate) makes_root: bool,
    pub(crate) session_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) layout: Layout,
    #[cfg(feature = "zookeeper-tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settings({})", self.location)
    }
}

impl Settings {
    pub(crate) fn from_url(url: &EngineUrl) -> Result<Self> {
        let path = match url.path.as_str() {
            "" => OWN_ROOT,
            path => path,
        };
        check_path(path)?;
        Ok(Self {
            servers: servers(url)?,
            location: url.to_string(),
            login: login(url)?,
            root: Root::new(path),
            makes_root: url.path.is_empty(),
            session_timeout: time(url, "session_timeout", Duration::from_secs(10))?,
            timeout: time(url, "timeout", Duration::from_secs(5))?,
            layout: layout(url)?,
            #[cfg(feature = "zookeeper-tls")]
            tls: super::tls::from_url(url)?,
        })
    }
}

fn servers(url: &EngineUrl) -> Result<String> {
    if url.hosts.is_empty() {
        return Err(invalid("a zookeeper: URL names the servers").advise(EXAMPLE));
    }
    for host in &url.hosts {
        let port = match host.rsplit_once(':') {
            Some((_, port)) if !port.contains(']') => port,
            _ => "2181",
        };
        if port.parse::<u16>().is_ok_and(|port| port > 0) && !host.starts_with(':') {
            continue;
        }
        return Err(invalid(format!("{host:?} is not a host and a port")).advise(EXAMPLE));
    }
    Ok(url.hosts.join(","))
}

const EXAMPLE: &str = "write zookeeper://h1:2181,h2:2181,h3:2181/path";

fn login(url: &EngineUrl) -> Result<Option<String>> {
    match (&url.user, &url.password) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) if !user.contains(':') => {
            Ok(Some(format!("{user}:{password}")))
        }
        _ => Err(
            invalid("a digest has a user without a colon, and a password")
                .advise("write zookeeper://user:password@host"),
        ),
    }
}

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

fn time(url: &EngineUrl, name: &str, otherwise: Duration) -> Result<Duration> {
    match url.duration(name)? {
        None => Ok(otherwise),
        Some(time) if time.is_zero() || time > Duration::from_secs(86_400) => {
            Err(invalid(format!("the option {name} is out of range"))
                .advise("give a time such as 10s"))
        }
        Some(time) => Ok(time),
    }
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

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}
