//! The files that a URL names for TLS.

use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

/// What is in them.
pub(crate) struct Certificates {
    pub(crate) ca: Option<Vec<u8>>,
    /// Our certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// By the options `ca`, `cert` and `key` of a URL with this scheme; `None` for any other scheme.
    pub(crate) fn of(url: &EngineUrl, scheme: &str) -> Result<Option<Self>> {
        let files = ["ca", "cert", "key"].map(|option| url.option(option));
        if url.scheme != scheme {
            return match files {
                [None, None, None] => Ok(None),
                _ => Err(invalid("certificates are for TLS").advise(format!("write {scheme}://…"))),
            };
        }
        let [ca, cert, key] = files;
        Ok(Some(Self {
            ca: ca.map(certificates).transpose()?,
            identity: match (cert, key) {
                (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
                (None, None) => None,
                _ => {
                    return Err(
                        invalid("a certificate and its key go together").advise("give both")
                    );
                }
            },
        }))
    }
}

/// A file without any would mean that nobody is trusted.
pub(crate) fn certificates(file: &str) -> Result<Vec<u8>> {
    let read = read(file)?;
    match String::from_utf8_lossy(&read).contains("BEGIN CERTIFICATE") {
        true => Ok(read),
        false => Err(invalid(format!("there are no certificates in {file:?}"))
            .advise("give a PEM file with the certificates to trust")),
    }
}

fn read(file: &str) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|cause| {
        invalid(format!("the file {file:?} cannot be read"))
            .advise("check its name and who may read it")
            .caused_by(cause)
    })
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, what)
}
