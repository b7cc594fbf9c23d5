//! One provider of cryptography for the whole process, and what is wrong with a certificate.

use {
    crate::error::{Error, ErrorKind},
    rustls::CertificateError,
};

/// Another one that was chosen before stays.
pub(crate) fn install() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// What is wrong with the certificate that a server showed, if that is why a connection failed.
pub(crate) fn mistrust(cause: &(dyn std::error::Error + 'static)) -> Option<Error> {
    use CertificateError::*;
    let rustls::Error::InvalidCertificate(wrong) = behind(cause)? else {
        return None;
    };
    let (what, advice) = match wrong {
        NotValidForName | NotValidForNameContext { .. } => (
            "is for another host",
            "connect to a name that it is for, or give the server one for this name",
        ),
        Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => (
            "is not valid at this time",
            "renew it, and check that this machine's clock is right",
        ),
        _ => (
            "is not trusted",
            "name the certificate of whoever vouches for it: ?sslrootcert=",
        ),
    };
    let what = format!("the server's certificate {what}: {wrong}");
    Some(Error::new(ErrorKind::Denied, what).advise(advice))
}

/// What rustls says, however it was wrapped.
fn behind<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(cause);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // It does not count what it was made of as its source.
        let io = error.downcast_ref::<std::io::Error>();
        next = match io.and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
