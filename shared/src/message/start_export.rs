//! A job's result to be written in another form, and the request to stop doing so.

use serde::{Deserialize, Serialize};

use super::parts::{BaseModel, DownloadUrl};
use crate::ids::{ExportId, JobId};
use crate::{ExportFormat, WeightType};

/// `start_export`: write this job's result in this form and store the files.
///
/// Platform to worker, once for each export. A repeat starts nothing twice. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartExport {
    /// The export.
    pub export_id: ExportId,
    /// The job whose result it is.
    pub job_id: JobId,
    /// What to write.
    pub data: StartExportData,
}

/// Content of [`StartExport`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartExportData {
    /// In which form.
    pub format: ExportFormat,
    /// Type of the weights. Where it is missing: the base model's for `merged_safetensors`, `f16` for
    /// `gguf_merged`, `f32` for `gguf_lora`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightType>,
    /// Where the job's result is stored, as `models/job-123/final/`.
    pub model_url: String,
    /// The result's files.
    pub download_urls: Vec<DownloadUrl>,
    /// The model below the adapter.
    pub base_model: BaseModel,
    /// The prefix of the keys under which the files are stored, as `models/job-123/exports/7/`.
    pub output_path: String,
}

/// `stop_export`: the files are no longer wanted.
///
/// Platform to worker, once for each export. Repeats are harmless. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StopExport {
    /// The export.
    pub export_id: ExportId,
}
