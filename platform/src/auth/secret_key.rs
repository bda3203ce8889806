//! Owns the platform's one secret, from which everything that is signed is derived.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use trainyard_shared::Secret;

use super::TokenHash;

/// Name of the file in the data folder.
const FILE_NAME: &str = "secret_key";

/// The key behind signed URLs and CSRF tokens. A new one makes those void; nothing else depends on it.
pub struct SecretKey([u8; 32]);

impl SecretKey {
    /// From the setting.
    pub fn from_setting(setting: &Secret) -> Self {
        Self(Sha256::digest(setting.expose().as_bytes()).into())
    }

    /// From the file in the data folder; made at the first start, for its owner alone (0600).
    ///
    /// # Errors
    /// When the file cannot be read or written, or others may read it.
    pub fn load_or_create(data_dir: &Path) -> io::Result<Self> {
        let path = data_dir.join(FILE_NAME);
        match fs::read_to_string(&path) {
            Ok(text) => {
                if fs::metadata(&path)?.permissions().mode() & 0o077 != 0 {
                    let message = format!("{} may be read by others: chmod 600 it", path.display());
                    return Err(io::Error::other(message));
                }
                Ok(Self::from_setting(&Secret::from(text.trim())))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(data_dir, &path),
            Err(error) => Err(error),
        }
    }

    /// Written aside, synced and renamed, so that a crash leaves no half key.
    fn create(data_dir: &Path, path: &Path) -> io::Result<Self> {
        let text = hex::encode(rand::random::<[u8; 32]>());
        let aside = data_dir.join(format!(".{FILE_NAME}.partial"));
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        fs::File::open(data_dir)?.sync_all()?;
        Ok(Self::from_setting(&Secret::from(text)))
    }

    /// A key for one purpose.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        self.mac(purpose.as_bytes())
    }

    /// What the page must send along with its cookie.
    pub fn csrf_token(&self, session: &TokenHash) -> String {
        let mut message = b"csrf ".to_vec();
        message.extend_from_slice(session.as_bytes());
        hex::encode(self.mac(&message))
    }

    fn mac(&self, message: &[u8]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(message);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_for_its_owner_alone_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let first = SecretKey::load_or_create(folder.path()).unwrap();
        let again = SecretKey::load_or_create(folder.path()).unwrap();
        assert_eq!(first.derive("x"), again.derive("x"));
        assert_ne!(first.derive("x"), first.derive("y"));
        let path = folder.path().join(FILE_NAME);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(SecretKey::load_or_create(folder.path()).is_err());
    }
}
