//! Digests of files, taken once as long as a file stays as it is.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::files;

/// What a file that is left alone keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    size_bytes: u64,
    modified: SystemTime,
}

impl Stamp {
    /// Of the file at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            size_bytes: metadata.len(),
            modified: metadata.modified()?,
        })
    }
}

/// The digests that are known.
#[derive(Debug, Clone, Default)]
pub(super) struct Digests(Arc<Mutex<HashMap<PathBuf, (Stamp, String)>>>);

impl Digests {
    /// The SHA-256 of the file at `path` in hexadecimal.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn of(&self, path: &Path) -> io::Result<String> {
        let stamp = Stamp::of(path)?;
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, digest)) = known().get(path).filter(|(known, _)| *known == stamp) {
            return Ok(digest.clone());
        }
        let (_, digest) = files::digest(path)?;
        known().insert(path.to_owned(), (stamp, digest.clone()));
        Ok(digest)
    }

    /// Whether the file at `path` is there and has this digest.
    pub(super) fn is(&self, path: &Path, sha256: &str) -> bool {
        self.of(path).is_ok_and(|found| found == sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_only_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let digests = Digests::default();
        std::fs::write(&path, "one").unwrap();
        let one = digests.of(&path).unwrap();
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        // Changed behind its back: whoever looked again would see it.
        std::fs::write(&path, "two").unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!(digests.of(&path).unwrap(), one);
        std::fs::write(&path, "three").unwrap();
        assert_ne!(digests.of(&path).unwrap(), one);
        assert!(digests.is(&path, &digests.of(&path).unwrap()));
        assert!(!digests.is(&path, &one) && !digests.is(&folder.path().join("none"), &one));
    }
}
