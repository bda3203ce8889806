//! What a job needs before it can train: its data set, its base model, the checkpoint that it goes on from.

use std::fs;
use std::path::{Path, PathBuf};

use trainyard_shared::FailureKind;
use trainyard_shared::ids::JobId;
use trainyard_shared::message::{DownloadFile, ResumePoint, StartTraining};
use trainyard_shared::training::TrainingConfig;

use super::job_folder;
use super::job_log::JobLog;
use crate::engine::data::{DataFile, TokenCache};
use crate::tasks::TaskContext;
use crate::tasks::base_model::FetchProgress;
use crate::tasks::dataset::fetch_dataset;
use crate::tasks::failure::Failure;
use crate::tasks::transfers::{Download, TransferError};

/// Fetching a file is told after so many more bytes of it.
const TOLD_BYTES: u64 = 256 << 20;

/// Everything that is needed, on this machine.
#[derive(Debug)]
pub struct Prepared {
    /// The job's config, every default resolved.
    pub config: TrainingConfig,
    /// The data set.
    pub dataset: DataFile,
    /// Where tokenised data sets are kept.
    pub token_cache: TokenCache,
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
    context: &TaskContext,
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
    let job_dir = job_folder(&context.state_dir, log.job());
    fresh_folder(&job_dir)?;
    let output = job_dir.join("output");
    fresh_folder(&output)?;
    log.status("Fetching the data set");
    let renew = async || {
        context
            .files
            .renewed(start.job_id, &source.storage_path)
            .await
    };
    let dataset = fetch_dataset(source, context, &job_dir, renew).await?;
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
        token_cache: context.token_cache(),
        max_bad_rows: source.max_bad_rows.unwrap_or(0),
        model,
        resume_from,
        output,
    })
}

async fn fetch_checkpoint(
    start: &StartTraining,
    resume: &ResumePoint,
    context: &TaskContext,
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
            digest_header: None,
            max_bytes: None,
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

fn create(folder: &Path) -> Result<(), TransferError> {
    fs::create_dir_all(folder).map_err(|source| TransferError::io("create", folder, source))
}

fn fresh_folder(folder: &Path) -> Result<(), TransferError> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|source| TransferError::io("empty", folder, source))?;
    }
    create(folder)
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
}
