//! Certificates made for a test.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Who vouches for certificates.
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// Its own certificate is `name.pem`.
    pub fn new(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        Self(Issuer::new(params, key))
    }

    /// `name.pem` and `name-key.pem`, for this host.
    pub fn vouch_for(&self, folder: &Path, name: &str, host: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        // Some servers are clients too: of themselves.
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }
}

/// A folder with `server.pem`, which is for 127.0.0.1 and vouched for by `ca.pem`; and with `other-ca.pem`, which knows nothing of it.
pub fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    Authority::new(at, "ca").vouch_for(at, "server", "127.0.0.1");
    Authority::new(at, "other-ca");
    folder
}
