//! Whom to trust on an encrypted connection.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::config::Trust;
use crate::engine::certificates::certificates;
use crate::engine::tls;
use crate::error::Result;
use crate::url::invalid;

pub(crate) fn connector(trust: &Trust) -> Result<MakeRustlsConnect> {
    tls::install();
    let mut roots = RootCertStore::empty();
    match trust {
        Trust::Own(config) => return Ok(MakeRustlsConnect::new(ClientConfig::clone(config))),
        Trust::Anyone => {
            let mut config = ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth();
            config
                .dangerous()
                .set_certificate_verifier(Arc::new(Anyone));
            return Ok(MakeRustlsConnect::new(config));
        }
        Trust::System => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Trust::File(file) => {
            let wrong = |cause: &dyn std::fmt::Display| {
                invalid(format!("a certificate in {file:?} is not one: {cause}"))
                    .advise("let sslrootcert= name a file with certificates in PEM form")
            };
            for certificate in CertificateDer::pem_slice_iter(&certificates(file)?) {
                let certificate = certificate.map_err(|cause| wrong(&cause))?;
                roots.add(certificate).map_err(|cause| wrong(&cause))?;
            }
        }
    }
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots))
        .build()
        .map_err(|cause| {
            invalid(format!("there are no certificates to trust: {cause}"))
                .advise("install the system's certificates, or name a file: sslrootcert=")
        })?;
    let config = ClientConfig::builder()
        .with_webpki_verifier(verifier)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// What `prefer` and `require` mean everywhere: encrypted, but with whom nobody asks.
#[derive(Debug)]
struct Anyone;

fn provider() -> Arc<CryptoProvider> {
    match CryptoProvider::get_default() {
        Some(provider) => Arc::clone(provider),
        None => Arc::new(rustls::crypto::ring::default_provider()),
    }
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
