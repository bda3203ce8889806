//! One export, from `start_export` to its files on this machine.
//!
//! 1. The request is checked. It then waits for its turn.
//! 2. The job's result and its base model are found or fetched.
//! 3. The engine writes on a thread of its own and tells how far it is; lengths and digests are taken.
//!
//! The outbox stores the files at the platform; nothing of them stays here longer than that.

use std::path::PathBuf;

use tempfile::TempDir;
use tokio::sync::Semaphore;
use trainyard_shared::message::{ArtifactFile, StartExport, StartExportData};
use trainyard_shared::{ExportFormat, WeightType};

use super::artifacts::described;
use super::failure::Failure;
use super::model_task::{TaskProgress, off_thread, refused};
use super::result_files::{AdapterFiles, JobResult, fetch_result};
use super::{StopSignal, TaskContext};
use crate::engine::EngineError;
use crate::engine::adapter;
use crate::engine::export::{
    Existing, Export, FloatType, FolderOptions, Format, MAX_SHARD_BYTES, Watch, export,
};
use crate::engine::gguf::WrittenType;
use crate::engine::weights::ModelFiles;

/// What an export has made.
pub(super) struct Exported {
    /// The files, described for the platform, and where they lie.
    pub(super) files: Vec<(ArtifactFile, PathBuf)>,
    /// Goes with the files in it.
    _folder: TempDir,
}

/// The form with its type as the engine knows them.
///
/// # Errors
///
/// Why they do not go together.
pub fn engine_format(
    format: ExportFormat,
    weights: Option<WeightType>,
    max_shard_bytes: u64,
) -> Result<Format, String> {
    if let Some(weights) = weights.filter(|weights| !format.takes(*weights)) {
        return Err(format!(
            "type: {weights} goes with {} only, not with {format}",
            ExportFormat::GgufMerged
        ));
    }
    let float_type = weights.and_then(float_type);
    Ok(match format {
        ExportFormat::MergedSafetensors => Format::MergedSafetensors(FolderOptions {
            float_type,
            max_shard_bytes,
        }),
        ExportFormat::GgufMerged => Format::GgufMerged(match weights {
            Some(WeightType::Q8_0) => WrittenType::Q8_0,
            _ => WrittenType::Float(float_type.unwrap_or(FloatType::F16)),
        }),
        ExportFormat::GgufLora => Format::GgufLora(float_type.unwrap_or(FloatType::F32)),
    })
}

fn float_type(weights: WeightType) -> Option<FloatType> {
    match weights {
        WeightType::F32 => Some(FloatType::F32),
        WeightType::F16 => Some(FloatType::F16),
        WeightType::Bf16 => Some(FloatType::Bf16),
        WeightType::Q8_0 => None,
    }
}

/// Everything that is needed, on this machine.
struct Prepared {
    base: PathBuf,
    adapter: Option<AdapterFiles>,
    format: Format,
    name: String,
    /// The prefix of the files' keys.
    prefix: String,
    folder: TempDir,
    output: PathBuf,
}

/// The files; none when it was stopped.
pub(super) async fn exported(
    start: &StartExport,
    context: &TaskContext,
    turns: &Semaphore,
    stop: &StopSignal,
) -> Result<Option<Exported>, Failure> {
    let data = &start.data;
    let format = engine_format(data.format, data.weights, MAX_SHARD_BYTES).map_err(refused)?;
    let prepare = async {
        let turn = turns.acquire().await;
        Ok::<_, Failure>((turn, prepare(start, format, context).await?))
    };
    let (_turn, prepared) = tokio::select! {
        prepared = prepare => prepared?,
        _ = stop.stopped() => return Ok(None),
    };
    let progress = TaskProgress::new(start.export_id.into(), context.reports.clone());
    let stop = stop.clone();
    off_thread(move || prepared.write(progress, &stop)).await
}

async fn prepare(
    start: &StartExport,
    format: Format,
    context: &TaskContext,
) -> Result<Prepared, Failure> {
    let data = &start.data;
    if !data.output_path.ends_with('/') {
        let text = format!("output_path: {:?} is no folder", data.output_path);
        return Err(refused(text));
    }
    let urls = ("download_urls", data.download_urls.as_slice());
    let (base, adapter) = match fetch_result(&data.model_url, urls, context).await? {
        JobResult::Model(folder) => (folder, None),
        JobResult::Adapter(files) => {
            let base = context.models.find(&data.base_model, |_| {}).await?;
            (base, Some(files))
        }
    };
    let folder = context.own_folder("export-")?;
    let job = start.job_id;
    let output = folder.path().join("files").join(match data.format {
        ExportFormat::MergedSafetensors => String::new(),
        _ => file_name(start, data),
    });
    Ok(Prepared {
        base,
        adapter,
        format,
        name: format!("{} job {job}", last_part(&data.base_model.huggingface_id)),
        prefix: data.output_path.clone(),
        folder,
        output,
    })
}

/// `job-123-q8_0.gguf`, `job-123-lora-f32.gguf`
fn file_name(start: &StartExport, data: &StartExportData) -> String {
    let (what, default) = match data.format {
        ExportFormat::GgufLora => ("lora-", WeightType::F32),
        _ => ("", WeightType::F16),
    };
    let weights = data.weights.unwrap_or(default);
    format!("job-{}-{what}{weights}.gguf", start.job_id)
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

impl Prepared {
    fn write(
        self,
        mut progress: TaskProgress,
        stop: &StopSignal,
    ) -> Result<Option<Exported>, Failure> {
        let base = ModelFiles::open(&self.base).map_err(|error| Failure::from_model(&error))?;
        let adapter = match &self.adapter {
            Some(files) => Some(adapter::load_all(files.folder(), &base.config)?),
            None => None,
        };
        let export_of = Export {
            base: &base,
            adapter: adapter.as_ref(),
            name: &self.name,
            format: self.format,
            output: &self.output,
            existing: Existing::Keep,
        };
        let mut watch = Watch {
            is_stopped: &|| stop.is_set(),
            tell: &mut |done, total| progress.tell(done, total),
        };
        match export(&export_of, &mut watch) {
            Err(EngineError::Stopped) => return Ok(None),
            written => written?,
        }
        let files = described(&self.folder.path().join("files"), &self.prefix)?;
        Ok(Some(Exported {
            files,
            _folder: self.folder,
        }))
    }
}
