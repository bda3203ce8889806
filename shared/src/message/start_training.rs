//! A job for a worker.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::parts::{BaseModel, DatasetSource, DownloadFile};
use crate::ids::JobId;
use crate::number;

/// `start_training`: train this.
///
/// Platform to worker, once for each attempt, again when the worker may not have got it. A repeat of
/// the same job and attempt starts nothing twice. Source: "start_training".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartTraining {
    /// The job.
    pub job_id: JobId,
    /// Which attempt at the job, from 1, as in `start_training` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What to train.
    pub data: StartTrainingData,
}

/// Content of [`StartTraining`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartTrainingData {
    /// The data.
    pub dataset: DatasetSource,
    /// The model to start from.
    pub base_model: BaseModel,
    /// The job's config as it was sent, for [`crate::training::TrainingConfig::parse`].
    #[serde(default)]
    pub config: Map<String, Value>,
    /// Under this prefix the result is stored, as `models/job-123/`.
    pub output_path: String,
    /// The checkpoint to go on from (ours: PROTOCOL 11).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumePoint>,
}

/// A checkpoint to go on from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// The step after which it was saved.
    #[serde(deserialize_with = "number::count")]
    pub step: u64,
    /// All its files.
    pub files: Vec<DownloadFile>,
}
