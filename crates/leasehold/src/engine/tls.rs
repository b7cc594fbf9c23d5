//! TLS without a C library to link with.

/// One provider of cryptography for the whole process; another one that was chosen before stays.
pub(crate) fn install() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
