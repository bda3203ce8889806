//! Files that were fetched earlier: whether one is still what was fetched, so that a damaged copy is fetched again.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::SystemTime;

use crate::files;

/// A file as it was when its digest was right.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sha256: String,
    size_bytes: u64,
    modified: Option<SystemTime>,
}

impl Seen {
    fn of(there: &Metadata, sha256: &str) -> Self {
        Self {
            sha256: sha256.to_ascii_lowercase(),
            size_bytes: there.len(),
            modified: there.modified().ok(),
        }
    }
}

/// What this process has found whole. Each file is read once for that, and again where it has changed.
static WHOLE: LazyLock<Mutex<HashMap<PathBuf, Seen>>> = LazyLock::new(Mutex::default);

fn whole() -> MutexGuard<'static, HashMap<PathBuf, Seen>> {
    // A panic while it was held leaves it whole.
    WHOLE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether the file is there, with that length and digest where these are known.
pub(super) async fn is_whole(path: &Path, size_bytes: Option<u64>, sha256: Option<&str>) -> bool {
    let Ok(there) = fs::metadata(path) else {
        return false;
    };
    if size_bytes.is_some_and(|size| size != there.len()) {
        tracing::warn!(file = %path.display(), "a file that was fetched earlier has another length now");
        return false;
    }
    let Some(sha256) = sha256 else {
        return true;
    };
    let seen = Seen::of(&there, sha256);
    if whole().get(path) == Some(&seen) {
        return true;
    }
    let file = path.to_owned();
    let digested = tokio::task::spawn_blocking(move || files::digest(&file)).await;
    let is_same = matches!(digested, Ok(Ok((_, digest))) if digest == seen.sha256);
    if is_same {
        whole().insert(path.to_owned(), seen);
    } else {
        tracing::warn!(file = %path.display(), "a file that was fetched earlier is damaged");
    }
    is_same
}

/// Marks a file as used now. Where that fails it is at worst fetched once more.
pub(super) fn touch(path: &Path) {
    let touched = fs::File::open(path).and_then(|file| {
        file.set_modified(SystemTime::now())?;
        file.metadata()
    });
    if let Ok(there) = touched
        && let Some(seen) = whole().get_mut(path)
    {
        seen.modified = there.modified().ok();
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[actix_rt::test]
    async fn g054_a_file_that_has_changed_since_it_was_fetched_is_not_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        fs::write(&path, "rows of data").unwrap();
        let digest = hex::encode(Sha256::digest("rows of data")).to_uppercase();
        let whole = async |size: u64| is_whole(&path, Some(size), Some(&digest)).await;
        assert!(whole(12).await);
        touch(&path);
        assert!(whole(12).await);
        assert_eq!(
            whole_seen(&path),
            fs::metadata(&path).unwrap().modified().ok()
        );
        assert!(!whole(11).await);
        // Another byte, at another time.
        fs::write(&path, "rows of date").unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(9);
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(later).unwrap();
        assert!(!whole(12).await);
        assert!(
            is_whole(&path, Some(12), None).await,
            "nothing else is known"
        );
        fs::remove_file(&path).unwrap();
        assert!(!is_whole(&path, None, None).await);
    }

    #[actix_rt::test]
    async fn g054_a_file_that_was_cut_short_is_not_whole_whatever_is_known_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter_model.safetensors");
        let content = "weights of an adapter";
        let size = content.len() as u64;
        let digest = hex::encode(Sha256::digest(content));
        let known = [
            (Some(size), Some(digest.as_str())),
            (Some(size), None),
            (None, Some(digest.as_str())),
        ];
        for (size, digest) in known {
            fs::write(&path, content).unwrap();
            assert!(is_whole(&path, size, digest).await);
            fs::write(&path, &content[..10]).unwrap();
            assert!(!is_whole(&path, size, digest).await, "{size:?} {digest:?}");
        }
    }

    fn whole_seen(path: &Path) -> Option<SystemTime> {
        whole().get(path).and_then(|seen| seen.modified)
    }
}
