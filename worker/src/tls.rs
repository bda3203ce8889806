//! The one TLS configuration of the worker, for the WebSocket and for HTTP.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// Trusts the machine's own certificates (so that a private authority works, also through
/// `SSL_CERT_FILE`) and the public ones built in (so that a machine without any works too).
pub fn client_config() -> ClientConfig {
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::debug!(%error, "a certificate of this machine cannot be read");
    }
    roots.add_parsable_certificates(native.certs);
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has suites for TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
