//! Where leasehold servers are, and how they are used.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::{DRIVER, Http};
use crate::engine::certificates::Certificates;
use crate::engine::{Engine, tls};
use crate::error::{Error, Result};
use crate::url::{EngineUrl, Server, check_times, invalid};

/// The options of `http:` URLs.
pub(crate) const OPTIONS: &[(&str, &str)] = &[
    ("token", "the access token; better in a file"),
    ("token_file", "a file with the access token"),
    ("timeout", "how long to wait for an answer, 5s"),
    ("connect_timeout", "how long to wait for a connection, 2s"),
    ("ca", "a file with the certificates to trust; https: only"),
    ("cert", "a file with our certificate; https: only"),
    ("key", "a file with its key; https: only"),
];

/// Locks through leasehold servers: where they are, and all that an `http:` URL can say.
///
/// ```no_run
/// use std::time::Duration;
///
/// use leasehold::Locks;
/// use leasehold::engine::http::HttpConfig;
///
/// # async fn example() -> leasehold::Result<()> {
/// let config = HttpConfig::new("locks-1.internal", 7654)
///     .server("locks-2.internal", 7654)
///     .token("secret")
///     .timeout(Duration::from_secs(3));
/// let locks = Locks::new(config.connect().await?);
/// # let _ = locks;
/// // The same from a URL.
/// let config: HttpConfig = "http://:secret@locks-1.internal:7654,locks-2.internal:7654?timeout=3s".parse()?;
/// # let _ = config;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HttpConfig {
    pub(super) servers: Vec<Server>,
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// What stands before `/v1` in the path.
    pub(super) path: String,
    pub(super) token: Option<String>,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    given: Option<String>,
}

impl fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpConfig({})", self.location())
    }
}

/// From a URL.
impl FromStr for HttpConfig {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        Self::from_url(&DRIVER.parse(url)?)
    }
}

impl HttpConfig {
    /// The server at this host and port, without TLS.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        Self::at(vec![Server { host, port }])
    }

    fn at(servers: Vec<Server>) -> Self {
        Self {
            servers,
            tls: None,
            path: String::new(),
            token: None,
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            given: None,
        }
    }

    pub(super) fn from_url(url: &EngineUrl) -> Result<Self> {
        let default_port = if url.scheme == "https" { 443 } else { 80 };
        let default = Self::at(url.servers(default_port)?);
        let tls = Certificates::of(url, "https")?;
        Ok(Self {
            tls: tls.map(|tls| client_config(&tls)).transpose()?,
            path: url.path.trim_end_matches('/').to_owned(),
            token: token(url)?,
            timeout: url.duration("timeout")?.unwrap_or(default.timeout),
            connect_timeout: url
                .duration("connect_timeout")?
                .unwrap_or(default.connect_timeout),
            given: Some(url.to_string()),
            ..default
        })
    }

    /// Another server over the same engine. Requests go to the first one that answers.
    #[must_use]
    pub fn server(mut self, host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        self.servers.push(Server { host, port });
        self
    }

    /// The access token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// What stands before `/v1` in the paths of a server behind a proxy, such as `/locks`; nothing by default.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.path = format!("/{}", path.trim_matches('/'));
        if self.path == "/" {
            self.path.clear();
        }
        self
    }

    /// Connects over TLS, as configured. HTTP/2 is negotiated by ALPN, whatever the configuration says of that.
    #[must_use]
    pub fn tls(mut self, config: ClientConfig) -> Self {
        self.tls = Some(Arc::new(http2_only(config)));
        self
    }

    /// How long to wait for an answer; 5 seconds by default.
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

    /// Connects, and asks for the capabilities of the engine behind the server. [`Locks::new`](crate::Locks::new) makes locks of the engine.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if a time is zero or the token cannot be sent; `Unreachable` if no server answers; `Denied` if it
    /// refuses the token or its certificate is not trusted; `EngineUnfit` if it is no leasehold server, or one of another version.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the connection.
    pub async fn connect(self) -> Result<Arc<dyn Engine>> {
        check_times(&[
            ("timeout", self.timeout),
            ("connect_timeout", self.connect_timeout),
        ])?;
        let location = self.location();
        let connected = Http::connect(self).await;
        let engine = connected.map_err(|error| error.during("connect", location))?;
        Ok(Arc::new(engine))
    }

    /// The URL, without the token.
    pub(super) fn location(&self) -> String {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let servers: Vec<_> = self.servers.iter().map(Server::to_string).collect();
        format!("{scheme}://{}{}", servers.join(","), self.path)
    }
}

fn token(url: &EngineUrl) -> Result<Option<String>> {
    let file = url.option("token_file").map(|file| -> Result<String> {
        let read = std::fs::read_to_string(file).map_err(|cause| {
            invalid(format!("the file {file:?} cannot be read"))
                .advise("check its name and who may read it")
                .caused_by(cause)
        })?;
        Ok(read.trim().to_owned())
    });
    let option = url.option("token").map(|token| Ok(token.to_owned()));
    let password = url.password.clone().map(Ok);
    let mut given = [file, option, password].into_iter().flatten();
    let token = given.next().transpose()?;
    if given.next().is_some() {
        return Err(invalid("the access token is given twice").advise("give it once"));
    }
    if url.user.is_some() && token.is_none() {
        return Err(invalid("a user needs an access token")
            .advise("write http://:TOKEN@host, or name a file: ?token_file=…"));
    }
    match token {
        Some(token) if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(invalid("the access token cannot be used")
                .advise("give it as `leasehold token new` printed it"))
        }
        token => Ok(token),
    }
}

fn client_config(files: &Certificates) -> Result<Arc<ClientConfig>> {
    tls::install();
    let mut roots = RootCertStore::empty();
    match &files.ca {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(ca) => {
            for certificate in CertificateDer::pem_slice_iter(ca) {
                let certificate = certificate.map_err(unusable)?;
                roots.add(certificate).map_err(unusable)?;
            }
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let config = match &files.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(cert)
                .collect::<Result<_, _>>()
                .map_err(unusable)?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(unusable)?;
            config.with_client_auth_cert(chain, key).map_err(unusable)?
        }
    };
    Ok(Arc::new(http2_only(config)))
}

fn http2_only(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn unusable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    invalid("the certificates cannot be used")
        .advise("give PEM files: ?ca=…&cert=…&key=…")
        .caused_by(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn urls_name_servers_path_and_token() {
        let config: HttpConfig = "http://:s3cret@a:1,b/locks/?timeout=1s".parse().unwrap();
        let servers: Vec<_> = config.servers.iter().map(Server::to_string).collect();
        assert_eq!(servers, ["a:1", "b:80"]);
        assert_eq!(config.path, "/locks");
        assert_eq!(config.token.as_deref(), Some("s3cret"));
        assert_eq!(config.timeout, Duration::from_secs(1));
        let secure: HttpConfig = "https://a?token=s3cret".parse().unwrap();
        assert_eq!(secure.servers[0].port, 443);
        assert!(secure.tls.is_some());
        for config in [config, secure] {
            assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
        }
    }

    #[test]
    fn bad_urls_are_refused_with_advice() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "\n").unwrap();
        let empty = format!("http://a?token_file={}", empty.display());
        for bad in [
            "http:",
            "http://me@a",
            "http://a?token=",
            "http://a?token=a%20b",
            "http://:x@a?token=y",
            "http://a?token_file=/none",
            "http://a?ca=/none",
            "https://a?ca=/none",
            "https://a?cert=/none",
            empty.as_str(),
        ] {
            let error = bad.parse::<HttpConfig>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
            assert!(error.advice().is_some(), "{bad}: {error}");
        }
    }
}
