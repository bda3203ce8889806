//! Data sets on this machine: fetched once for all that use them, and deleted when nobody has for long.

use std::fs;
use std::path::Path;
use std::time::Duration;

use trainyard_shared::dataset::DatasetFormat;
use trainyard_shared::message::DatasetSource;
use trainyard_shared::{FailureKind, Secret};

use super::TaskContext;
use super::failure::Failure;
use super::fetched::{is_whole, touch};
use super::transfers::{Download, TransferError};
use crate::engine::data::DataFile;
use crate::files::is_digest;

/// Data sets that nobody has used for so long are deleted.
const KEPT_DATA_SETS: Duration = Duration::from_secs(7 * 24 * 3600);

/// The data set's file: from the last task that used it if its digest is known, else fetched into `own_dir`.
/// `renew` gives a new address when the old one has expired.
///
/// # Errors
///
/// A format that is not read, the download, or the disk.
pub(super) async fn fetch_dataset(
    source: &DatasetSource,
    context: &TaskContext,
    own_dir: &Path,
    renew: impl AsyncFn() -> Result<Option<Secret>, TransferError>,
) -> Result<DataFile, Failure> {
    let format = source
        .format
        .parse::<DatasetFormat>()
        .map_err(|error| Failure::new(FailureKind::BadData, format!("dataset.format: {error}")))?;
    let digest = source.sha256.as_deref().filter(|digest| is_digest(digest));
    let destination = match digest {
        Some(digest) => {
            let cache = context.state_dir.join("datasets");
            fs::create_dir_all(&cache)
                .map_err(|source| TransferError::io("create", &cache, source))?;
            delete_unused(&cache);
            cache.join(format!("{}.{format}", digest.to_ascii_lowercase()))
        }
        None => own_dir.join(format!("data.{format}")),
    };
    let file = DataFile {
        path: destination.clone(),
        format,
        sha256: digest.map(str::to_owned),
    };
    let _lock = context.locks.lock(&destination).await;
    if is_whole(&destination, source.size_bytes, digest).await {
        touch(&destination);
        return Ok(file);
    }
    let download = Download {
        name: &source.storage_path,
        url: source.download_url.clone(),
        bearer: None,
        size_bytes: source.size_bytes,
        sha256: source.sha256.as_deref(),
        digest_header: None,
        max_bytes: None,
        destination: &destination,
    };
    context
        .files
        .http()
        .download(&download, renew, |_| {})
        .await?;
    Ok(file)
}

fn delete_unused(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        let unused = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > KEPT_DATA_SETS));
        if unused && let Err(error) = fs::remove_file(entry.path()) {
            tracing::warn!(file = %entry.path().display(), %error, "old data set cannot be deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_data_sets_that_were_not_used_for_long_are_deleted() {
        let cache = tempfile::tempdir().unwrap();
        let (old, new) = (
            cache.path().join("old.jsonl"),
            cache.path().join("new.jsonl"),
        );
        fs::write(&old, b"{}").unwrap();
        fs::write(&new, b"{}").unwrap();
        let long_ago = SystemTime::now() - KEPT_DATA_SETS - Duration::from_secs(60);
        fs::File::open(&old)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        delete_unused(cache.path());
        assert!(!old.exists() && new.exists());
    }
}
