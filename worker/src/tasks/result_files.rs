//! Results of jobs for answers and evaluations, adapters or whole models: their files on this machine, fetched
//! once where their digests are known.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use trainyard_shared::message::DownloadUrl;
use trainyard_shared::{FailureKind, Secret, ids::JobId};

use super::TaskContext;
use super::failure::Failure;
use super::fetched::{is_whole, touch};
use super::transfers::{Download, TransferError};
use crate::engine::adapter::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
use crate::files::{digest, is_digest};

/// Results that nobody has used for so long are deleted.
const KEPT_RESULTS: Duration = Duration::from_secs(7 * 24 * 3600);
/// The file by which a whole model is known.
const MODEL_CONFIG: &str = "config.json";
/// Parts of a result that tell about it and are not needed to run it.
const NOT_NEEDED: &[&str] = &["README.md", "manifest.json"];

/// What a job has made.
#[derive(Debug)]
pub(super) enum JobResult {
    /// An adapter, to be put on its base model.
    Adapter(AdapterFiles),
    /// A model of its own: its folder, which is kept for the next time.
    Model(PathBuf),
}

/// An adapter's files in a folder.
#[derive(Debug)]
pub(super) struct AdapterFiles {
    folder: Folder,
    digest: String,
}

#[derive(Debug)]
enum Folder {
    /// Kept for the next time.
    Kept(PathBuf),
    /// Gone with this value.
    Temporary(TempDir),
}

impl AdapterFiles {
    /// Where the files are.
    pub(super) fn folder(&self) -> &Path {
        match &self.folder {
            Folder::Kept(path) => path,
            Folder::Temporary(folder) => folder.path(),
        }
    }

    /// Tells the adapter apart from any other.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }
}

/// The files of the result that is stored under `model_path` and offered at `urls` (named `field` in
/// messages); without any, it is taken for an adapter and the platform is asked for addresses.
///
/// # Errors
///
/// A file that is not offered, the download, or the disk.
pub(super) async fn fetch_result(
    model_path: &str,
    (field, urls): (&str, &[DownloadUrl]),
    context: &TaskContext,
) -> Result<JobResult, Failure> {
    let offers = |name: &str| urls.iter().any(|file| last_part(&file.key) == name);
    if offers(MODEL_CONFIG) && !offers(ADAPTER_CONFIG) {
        return fetch_model(model_path, (field, urls), context).await;
    }
    let mut files = Vec::new();
    for name in [ADAPTER_CONFIG, ADAPTER_WEIGHTS] {
        let offered = urls.iter().find(|file| last_part(&file.key) == name);
        files.push(match offered {
            Some(file) => file.clone(),
            None if urls.is_empty() => asked_for(model_path, name, context).await?,
            None => {
                let text = format!("{field}: {name} is missing");
                return Err(Failure::new(FailureKind::BadConfig, text));
            }
        });
    }
    let adapter = |folder, digest| Ok(JobResult::Adapter(AdapterFiles { folder, digest }));
    if let Some(digest) = known_digest(&files) {
        let folder = fetch_kept(&digest, files, (model_path, context)).await?;
        return adapter(Folder::Kept(folder), digest);
    }
    let cache = cache(context)?;
    let folder = TempDir::with_prefix_in(".fetching-", &cache)
        .map_err(|source| TransferError::io("create a folder in", &cache, source))?;
    fetch_into(folder.path(), &files, (model_path, context)).await?;
    let digest = digest_of(folder.path())?;
    adapter(Folder::Temporary(folder), digest)
}

/// Fetches a whole model, which stays on the disk while it is in memory.
async fn fetch_model(
    model_path: &str,
    (field, urls): (&str, &[DownloadUrl]),
    context: &TaskContext,
) -> Result<JobResult, Failure> {
    let needed = |file: &&DownloadUrl| !NOT_NEEDED.contains(&last_part(&file.key));
    let mut files: Vec<DownloadUrl> = urls.iter().filter(needed).cloned().collect();
    let wrong = |message: String| Failure::new(FailureKind::BadConfig, message);
    if let Some(file) = files.iter().find(|file| !is_plain(last_part(&file.key))) {
        let text = format!("{field}: {:?} is no name of a model's file", file.key);
        return Err(wrong(text));
    }
    // The config comes last: a folder that has it is whole.
    files.sort_by_key(|file| {
        let name = last_part(&file.key).to_owned();
        (name == MODEL_CONFIG, name)
    });
    let digest = known_digest(&files)
        .ok_or_else(|| wrong(format!("{field}: a file of a whole model has no sha256")))?;
    let folder = fetch_kept(&digest, files, (model_path, context)).await?;
    Ok(JobResult::Model(folder))
}

/// A digest over the files' digests, where all are known.
fn known_digest(files: &[DownloadUrl]) -> Option<String> {
    let known = files.iter().map(|file| file.sha256.as_deref());
    let digests: Option<Vec<&str>> = known.map(|d| d.filter(|d| is_digest(d))).collect();
    let digests = digests?.concat().to_ascii_lowercase();
    Some(hex::encode(Sha256::digest(digests)))
}

/// Fetches what is not there yet into the folder of that digest.
async fn fetch_kept(
    digest: &str,
    files: Vec<DownloadUrl>,
    (model_path, context): (&str, &TaskContext),
) -> Result<PathBuf, Failure> {
    let cache = cache(context)?;
    let folder = cache.join(digest);
    let _lock = context.locks.lock(&folder).await;
    create(&folder)?;
    let mut missing = Vec::new();
    for file in files {
        let there = folder.join(last_part(&file.key));
        if !is_whole(&there, file.size_bytes, file.sha256.as_deref()).await {
            missing.push(file);
        }
    }
    fetch_into(&folder, &missing, (model_path, context)).await?;
    touch(&folder);
    delete_unused(&cache);
    Ok(folder)
}

fn cache(context: &TaskContext) -> Result<PathBuf, TransferError> {
    let cache = context.state_dir.join("results");
    create(&cache)?;
    Ok(cache)
}

/// Whether a name can be that of a file in a folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
}

async fn fetch_into(
    folder: &Path,
    files: &[DownloadUrl],
    (model_path, context): (&str, &TaskContext),
) -> Result<(), Failure> {
    for file in files {
        let name = last_part(&file.key);
        let download = Download {
            name: &file.key,
            url: file.url.clone(),
            bearer: None,
            size_bytes: file.size_bytes,
            sha256: file.sha256.as_deref(),
            digest_header: None,
            max_bytes: None,
            destination: &folder.join(name),
        };
        let renew = async || renewed(model_path, name, context).await;
        context
            .files
            .http()
            .download(&download, renew, |_| {})
            .await?;
    }
    Ok(())
}

/// An address for a file that the message offers none for.
async fn asked_for(
    model_path: &str,
    name: &str,
    context: &TaskContext,
) -> Result<DownloadUrl, Failure> {
    let base = model_path.trim_end_matches('/');
    let url = if model_path.starts_with("http://") || model_path.starts_with("https://") {
        Some(Secret::from(format!("{base}/{name}")))
    } else {
        renewed(model_path, name, context).await?
    };
    match url {
        Some(url) => Ok(DownloadUrl {
            key: format!("{base}/{name}"),
            url,
            sha256: None,
            size_bytes: None,
        }),
        None => Err(Failure::new(
            FailureKind::Download,
            format!("the platform gives no address for {base}/{name}"),
        )),
    }
}

/// A new address from the platform, for what lies under a job's own prefix.
async fn renewed(
    model_path: &str,
    name: &str,
    context: &TaskContext,
) -> Result<Option<Secret>, TransferError> {
    let Some(job) = job_of(model_path) else {
        return Ok(None);
    };
    let key = format!("{}/{name}", model_path.trim_end_matches('/'));
    context.files.renewed(job, &key).await
}

/// The job that `models/job-123/final/` belongs to.
fn job_of(model_path: &str) -> Option<JobId> {
    let job = model_path.strip_prefix("models/job-")?;
    let digits = job.split('/').next()?;
    digits.parse().ok().filter(|id| *id > 0).map(JobId)
}

fn last_part(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

fn digest_of(folder: &Path) -> Result<String, Failure> {
    let mut digests = String::new();
    for name in [ADAPTER_CONFIG, ADAPTER_WEIGHTS] {
        let path = folder.join(name);
        let (_, sha256) =
            digest(&path).map_err(|source| TransferError::io("read", &path, source))?;
        digests.push_str(&sha256);
    }
    Ok(hex::encode(Sha256::digest(digests)))
}

fn create(folder: &Path) -> Result<(), TransferError> {
    fs::create_dir_all(folder).map_err(|source| TransferError::io("create", folder, source))
}

fn delete_unused(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        let used = entry.metadata().and_then(|metadata| metadata.modified());
        let unused = used.is_ok_and(|used| used.elapsed().is_ok_and(|age| age > KEPT_RESULTS));
        if unused && let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(folder = %entry.path().display(), %error, "the files of an old result cannot be deleted");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_job_of_a_path_is_read_strictly() {
        assert_eq!(job_of("models/job-123/final/"), Some(JobId(123)));
        for wrong in [
            "models/123/",
            "models/job-/x",
            "models/job-0/x",
            "job-5",
            "",
        ] {
            assert_eq!(job_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_results_that_were_not_used_for_long_are_deleted() {
        let cache = tempfile::tempdir().unwrap();
        let long_ago = SystemTime::now() - KEPT_RESULTS - Duration::from_secs(60);
        for name in ["old", "new"] {
            fs::create_dir(cache.path().join(name)).unwrap();
            fs::write(cache.path().join(name).join(ADAPTER_CONFIG), "{}").unwrap();
        }
        fs::File::open(cache.path().join("old"))
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        delete_unused(cache.path());
        assert!(!cache.path().join("old").exists() && cache.path().join("new").exists());
    }
}
