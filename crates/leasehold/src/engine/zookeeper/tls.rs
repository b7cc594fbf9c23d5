//! `zookeepers://`: what a URL says of TLS.

use zookeeper_client::TlsOptions;

use crate::engine::certificates::Certificates;
use crate::error::{Error, ErrorKind, Result};
use crate::url::EngineUrl;

pub(crate) fn from_url(url: &EngineUrl) -> Result<Option<TlsOptions>> {
    let Some(Certificates { ca, identity }) = Certificates::of(url, "zookeepers")? else {
        return Ok(None);
    };
    crate::engine::tls::install();
    // The client library trusts nobody by itself, and servers of a cluster seldom have public certificates.
    let ca = ca.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidConfig,
            "nobody is trusted without a certificate",
        )
        .advise("name a file with the certificates to trust: ?ca=…")
    })?;
    let mut tls = TlsOptions::new().with_pem_ca(&text(ca)).map_err(unusable)?;
    if let Some((cert, key)) = identity {
        let (cert, key) = (text(cert), text(key));
        tls = tls.with_pem_identity(&cert, &key).map_err(unusable)?;
    }
    Ok(Some(tls))
}

/// What is no text is found to be no certificate.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn unusable(cause: zookeeper_client::Error) -> Error {
    Error::new(ErrorKind::InvalidConfig, "the certificates cannot be used")
        .advise("give PEM files: ?ca=…&cert=…&key=…")
        .caused_by(cause)
}
