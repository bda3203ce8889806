//! The platform's own TLS: certificate and key from PEM files, checked at the start.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The files that `TLS_CERT` and `TLS_KEY` name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those above it, in PEM, the platform's own first.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM.
    #[error("{setting}: {path}: {reason}", path = path.display())]
    File {
        /// The setting that names it.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it. Never repeats its content.
        reason: String,
    },
    /// The two do not belong together, or are of a kind that is not known.
    #[error("TLS_CERT {cert} with TLS_KEY {key}: {reason}", cert = files.cert.display(), key = files.key.display())]
    Pair {
        /// The two files.
        files: TlsFiles,
        /// What is wrong.
        reason: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads both files. A key that others on this machine can read is warned of.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn load(&self) -> Result<ServerConfig, TlsError> {
        for (setting, path) in [("TLS_CERT", &self.cert), ("TLS_KEY", &self.key)] {
            check_size(setting, path)?;
        }
        let certificates = self.certificates()?;
        let in_key = |error: pem::Error| file_error("TLS_KEY", &self.key, error, "private key");
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(in_key)?;
        if is_readable_by_others(&self.key) {
            tracing::warn!(
                path = %self.key.display(),
                "TLS_KEY can be read by every user of this machine: chmod 600"
            );
        }
        let refused = |reason| TlsError::Pair {
            files: self.clone(),
            reason,
        };
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(refused)?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(refused)
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let in_cert = |error: pem::Error| file_error("TLS_CERT", &self.cert, error, "certificate");
        let all: Vec<_> = CertificateDer::pem_file_iter(&self.cert)
            .map_err(in_cert)?
            .collect::<Result<_, _>>()
            .map_err(in_cert)?;
        if all.is_empty() {
            return Err(in_cert(pem::Error::NoItemsFound));
        }
        Ok(all)
    }
}

/// Largest file of certificates or keys that is read.
const MAX_BYTES: u64 = 1 << 20;

/// A device or pipe could be read for ever.
fn check_size(setting: &'static str, path: &Path) -> Result<(), TlsError> {
    let reason = match fs::metadata(path) {
        Ok(found) if !found.is_file() => "is no file",
        Ok(found) if found.len() > MAX_BYTES => "is larger than 1 MiB",
        // Reading says what is wrong.
        _ => return Ok(()),
    };
    Err(TlsError::File {
        setting,
        path: path.to_owned(),
        reason: reason.to_owned(),
    })
}

fn file_error(
    setting: &'static str,
    path: &Path,
    error: pem::Error,
    wanted: &'static str,
) -> TlsError {
    let reason = match error {
        pem::Error::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            "there is no such file".to_owned()
        }
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("holds no {wanted} in PEM form"),
        _ => format!("is no valid PEM file of a {wanted}"),
    };
    TlsError::File {
        setting,
        path: path.to_owned(),
        reason,
    }
}

fn is_readable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o006 != 0)
}

#[cfg(test)]
mod tests;
