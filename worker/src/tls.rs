//! The one TLS configuration of the worker, for the WebSocket and for HTTP.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

/// Why the file of a private authority (`PLATFORM_CA_FILE`) cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("PLATFORM_CA_FILE: {path}: {reason}", path = path.display())]
pub struct CaFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Trusts the machine's own certificates (so that a private authority works, also through
/// `SSL_CERT_FILE`) and the public ones built in (so that a machine without any works too).
pub fn client_config() -> ClientConfig {
    trusting(roots())
}

/// The same, and the authorities in the PEM file besides.
///
/// # Errors
///
/// The file cannot be read, or holds no certificate.
pub fn client_config_with(ca_file: &Path) -> Result<ClientConfig, CaFileError> {
    let failed = |reason: String| CaFileError {
        path: ca_file.to_owned(),
        reason,
    };
    let unreadable = |error: pem::Error| match error {
        pem::Error::Io(error) => failed(error.to_string()),
        _ => failed("is no valid PEM file of certificates".to_owned()),
    };
    let certificates = CertificateDer::pem_file_iter(ca_file)
        .map_err(unreadable)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(failed("holds no certificate in PEM form".to_owned()));
    }
    let mut roots = roots();
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|error| failed(error.to_string()))?;
    }
    Ok(trusting(roots))
}

fn roots() -> RootCertStore {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::debug!(%error, "a certificate of this machine cannot be read");
    }
    roots.add_parsable_certificates(native.certs);
    roots
}

fn trusting(roots: RootCertStore) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let told = |path: &Path| client_config_with(path).unwrap_err().to_string();
        assert!(told(&file).contains("ca.pem: "), "{}", told(&file));
        std::fs::write(&file, "no certificate").unwrap();
        assert!(told(&file).ends_with("holds no certificate in PEM form"));
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        std::fs::write(&file, broken).unwrap();
        assert!(told(&file).contains("PEM"), "{}", told(&file));
    }
}
