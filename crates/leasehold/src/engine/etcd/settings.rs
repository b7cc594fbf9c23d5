//! What an etcd URL says.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::engine::certificates::Certificates;
use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

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

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) location: String,
    pub(crate) prefix: String,
    pub(crate) login: Option<Login>,
    pub(crate) timeout: Duration,
    pub(crate) attempt_timeout: Duration,
}

#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// Without the password.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settings({})", self.location)
    }
}

impl Settings {
    pub(crate) fn from_url(url: &EngineUrl) -> Result<Self> {
        if !url.path.trim_matches('/').is_empty() {
            let path = &url.path;
            return Err(invalid(format!(
                "an etcd: URL has no path, but this one has {path:?}"
            ))
            .advise("write etcd://host:2379?prefix=locks/"));
        }
        if url.hosts.is_empty() {
            return Err(invalid("an etcd: URL names one endpoint or more")
                .advise("write etcd://a:2379,b:2379,c:2379"));
        }
        let attempt_timeout = positive(url, "attempt_timeout", Duration::from_millis(500))?;
        let tls = tls(url)?;
        let endpoint = |host: &String| endpoint(host, tls.as_ref(), attempt_timeout);
        Ok(Self {
            endpoints: url.hosts.iter().map(endpoint).collect::<Result<_>>()?,
            location: url.to_string(),
            prefix: url.option("prefix").unwrap_or("leasehold/").to_owned(),
            login: login(url)?,
            timeout: positive(url, "timeout", Duration::from_secs(5))?,
            attempt_timeout,
        })
    }
}

fn positive(url: &EngineUrl, option: &str, default: Duration) -> Result<Duration> {
    match url.duration(option)? {
        Some(time) if time.is_zero() => Err(invalid(format!("the option {option} is zero"))
            .advise("give it some time, such as 500ms")),
        time => Ok(time.unwrap_or(default)),
    }
}

fn login(url: &EngineUrl) -> Result<Option<Login>> {
    match (&url.user, &url.password) {
        (Some(user), Some(password)) => Ok(Some(Login {
            user: user.clone(),
            password: password.clone(),
        })),
        (None, None) => Ok(None),
        _ => Err(invalid("a user and a password go together")
            .advise("write etcd://user:password@host:2379")),
    }
}

fn endpoint(host: &str, tls: Option<&ClientTlsConfig>, patience: Duration) -> Result<Endpoint> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
    let address = match has_port {
        true => format!("{scheme}://{host}"),
        false => format!("{scheme}://{host}:2379"),
    };
    let wrong = |cause| {
        invalid(format!("{host:?} is not the address of an endpoint"))
            .advise("write etcd://host:2379")
            .caused_by(cause)
    };
    let endpoint = Endpoint::from_shared(address)
        .map_err(wrong)?
        .connect_timeout(patience)
        .tcp_nodelay(true);
    match tls {
        Some(tls) => endpoint.tls_config(tls.clone()).map_err(|cause| {
            invalid("the certificates cannot be used")
                .advise("give PEM files: ?ca=…&cert=…&key=…")
                .caused_by(cause)
        }),
        None => Ok(endpoint),
    }
}

fn tls(url: &EngineUrl) -> Result<Option<ClientTlsConfig>> {
    let Some(Certificates { ca, identity }) = Certificates::of(url, "etcds")? else {
        return Ok(None);
    };
    crate::engine::tls::install();
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

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}
