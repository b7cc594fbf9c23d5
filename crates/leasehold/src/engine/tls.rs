//! One provider of cryptography for the whole process.

/// Another one that was chosen before stays.
pub(crate) fn install() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
