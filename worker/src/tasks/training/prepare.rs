//! What a job needs before it can train: its data set, its base model, the checkpoint that it goes on from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use trainyard_shared::FailureKind;
use trainyard_shared::dataset::JSONL;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::{DatasetSource, DownloadFile, ResumePoint, StartTraining};
use trainyard_shared::training::TrainingConfig;

use super::failure::Failure;
use super::job_log::JobLog;
use super::{TrainingContext, job_folder};
use crate::tasks::base_model::FetchProgress;
use crate::tasks::transfers::{Download, TransferError};

/// Data sets that no job has used for so long are deleted.
const KEPT_DATA_SETS: Duration = Duration::from_secs(7 * 24 * 3600);
/// Fetching a file is told after so many more bytes of it.
const TOLD_BYTES: u64 = 256 << 20;

/// Everything that is needed, on this machine.
#[derive(Debug)]
pub struct Prepared {
    /// The job's config, every default resolved.
    pub config: TrainingConfig,
    /// The data set.
    pub dataset: PathBuf,
    /// Bad rows that may be skipped.
    pub max_bad_rows: u64,
    /// The model's folder or `.gguf` file.
    pub model: PathBuf,
    /// The checkpoint's folder.
    pub resume_from: Option<PathBuf>,
    /// A folder of the job's own, empty.
    pub output: PathBuf,
}

/// Gets everything ready. Dropping the future stops it at once; what was fetched so far is gone on
/// with the next time.
///
/// # Errors
///
/// The config, the data, the model or the disk, each by its kind of failure.
pub async fn prepare(
    start: &StartTraining,
    context: &TrainingContext,
    log: &JobLog,
) -> Result<Prepared, Failure> {
    let config = TrainingConfig::parse(&serde_json::Value::Object(start.data.config.clone()))
        .map_err(|problems| Failure::from_problems(&problems))?;
    if config.resume_from_checkpoint.is_some() && start.data.resume.is_none() {
        return Err(Failure::new(
            FailureKind::BadConfig,
            "resume_from_checkpoint: a job at a platform is resumed as a job, not by a path",
        ));
    }
    let source = &start.data.dataset;
    if source.format != JSONL {
        return Err(Failure::new(
            FailureKind::BadData,
            format!(
                "data sets in the format `{}` are not read by this worker",
                source.format
            ),
        ));
    }
    let job_dir = job_folder(&context.state_dir, log.job());
    fresh_folder(&job_dir)?;
    let output = job_dir.join("output");
    fresh_folder(&output)?;
    log.status("Fetching the data set");
    let dataset = fetch_dataset(start, context, &job_dir).await?;
    log.status("Looking for the base model");
    let model = context
        .models
        .find(&start.data.base_model, tell_progress(log))
        .await?;
    let resume_from = match &start.data.resume {
        Some(resume) => {
            log.status("Fetching the checkpoint");
            Some(fetch_checkpoint(start, resume, context, &job_dir).await?)
        }
        None => None,
    };
    Ok(Prepared {
        config,
        dataset,
        max_bad_rows: source.max_bad_rows.unwrap_or(0),
        model,
        resume_from,
        output,
    })
}

/// The data set's file: from the last job that used it if its digest is known, else fetched.
async fn fetch_dataset(
    start: &StartTraining,
    context: &TrainingContext,
    job_dir: &Path,
) -> Result<PathBuf, Failure> {
    let source = &start.data.dataset;
    let destination = match source.sha256.as_deref().filter(|digest| is_digest(digest)) {
        Some(digest) => {
            let cache = context.state_dir.join("datasets");
            create(&cache)?;
            delete_unused(&cache);
            cache.join(format!("{}.jsonl", digest.to_ascii_lowercase()))
        }
        None => job_dir.join("data.jsonl"),
    };
    if is_there(&destination, source) {
        touch(&destination);
        return Ok(destination);
    }
    let download = Download {
        name: &source.storage_path,
        url: source.download_url.clone(),
        bearer: None,
        size_bytes: source.size_bytes,
        sha256: source.sha256.as_deref(),
        destination: &destination,
    };
    let renew = async || {
        context
            .files
            .renewed(start.job_id, &source.storage_path)
            .await
    };
    context
        .files
        .http()
        .download(&download, renew, |_| {})
        .await?;
    Ok(destination)
}

/// Files get their names only after their digest was checked, so length is enough to tell a whole one.
fn is_there(path: &Path, source: &DatasetSource) -> bool {
    fs::metadata(path).is_ok_and(|there| source.size_bytes.is_none_or(|size| size == there.len()))
}

async fn fetch_checkpoint(
    start: &StartTraining,
    resume: &ResumePoint,
    context: &TrainingContext,
    job_dir: &Path,
) -> Result<PathBuf, Failure> {
    let prefix = checkpoint_prefix(start.job_id, resume.step);
    let folder = job_dir.join(format!("step-{}", resume.step));
    fresh_folder(&folder)?;
    for file in &resume.files {
        let DownloadFile {
            key,
            download_url,
            sha256,
            size_bytes,
        } = file;
        let name = key.strip_prefix(&prefix).unwrap_or(key);
        let destination = inside(&folder, name).ok_or_else(|| {
            let text = format!("the checkpoint's file `{key}` is not a name below its folder");
            Failure::new(FailureKind::Download, text)
        })?;
        create(destination.parent().unwrap_or(&folder))?;
        let download = Download {
            name: key,
            url: download_url.clone(),
            bearer: None,
            size_bytes: Some(*size_bytes),
            sha256: Some(sha256),
            destination: &destination,
        };
        let storage_key = format!("{prefix}{name}");
        let renew = async || context.files.renewed(start.job_id, &storage_key).await;
        context
            .files
            .http()
            .download(&download, renew, |_| {})
            .await?;
    }
    Ok(folder)
}

/// Where the platform keeps a checkpoint of the job.
pub fn checkpoint_prefix(job_id: JobId, step: u64) -> String {
    format!("checkpoints/job-{job_id}/step-{step}/")
}

/// `name` below `folder`, if every part of it is a plain name.
fn inside(folder: &Path, name: &str) -> Option<PathBuf> {
    let plain = |part: &str| {
        !part.is_empty()
            && part.len() <= 255
            && !part.starts_with('.')
            && !part.contains(['\\', ':', '\0'])
            && !part.chars().any(char::is_control)
    };
    name.split('/').all(plain).then(|| folder.join(name))
}

/// Tells of files that take long, at their start and after every so many bytes.
fn tell_progress(log: &JobLog) -> impl FnMut(FetchProgress<'_>) {
    let mut told: Option<(String, u64)> = None;
    move |progress| {
        let next = match &told {
            Some((file, bytes)) if file == progress.file => bytes + TOLD_BYTES,
            _ => 0,
        };
        if progress.bytes < next {
            return;
        }
        told = Some((progress.file.to_owned(), progress.bytes));
        let megabytes = progress.bytes >> 20;
        let text = match progress.total_bytes {
            Some(total) => format!(
                "fetching {}: {megabytes} of {} MB",
                progress.file,
                total >> 20
            ),
            None => format!("fetching {}: {megabytes} MB", progress.file),
        };
        log.info(&text);
        log.status("Fetching the base model");
    }
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn create(folder: &Path) -> Result<(), TransferError> {
    fs::create_dir_all(folder).map_err(|source| TransferError::io("create", folder, source))
}

fn fresh_folder(folder: &Path) -> Result<(), TransferError> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|source| TransferError::io("empty", folder, source))?;
    }
    create(folder)
}

/// Marks a data set as used now. Where that fails it is at worst fetched once more.
fn touch(path: &Path) {
    let _ = fs::File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
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
    use super::*;

    #[test]
    fn g044_a_checkpoints_files_stay_below_its_folder() {
        let folder = Path::new("/state/jobs/job-1/step-5");
        assert_eq!(
            inside(folder, "state/optimizer.safetensors"),
            Some(folder.join("state/optimizer.safetensors"))
        );
        for wrong in [
            "../x",
            "/etc/passwd",
            "a/../../b",
            "a//b",
            "",
            "..",
            "a\\..\\b",
            "a\0",
            ".ssh/x",
        ] {
            assert_eq!(inside(folder, wrong), None, "{wrong:?}");
        }
    }

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
