//! Parts that several messages share: files, models, data sets and chats.

use serde::{Deserialize, Serialize};

use crate::ids::DatasetId;
use crate::number;
use crate::{FailureKind, Secret};

/// A file that a worker has stored (PROTOCOL 6).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactFile {
    /// Storage key, under the job's own prefix.
    pub key: String,
    /// Length in bytes.
    #[serde(deserialize_with = "number::count")]
    pub size_bytes: u64,
    /// SHA-256 of the content, 64 lower-case hex digits.
    pub sha256: String,
}

/// A file that a worker is to fetch, with what it must turn out to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadFile {
    /// The file's name below the folder that it belongs to.
    pub key: String,
    /// Where to fetch it: an absolute, signed URL.
    pub download_url: Secret,
    /// SHA-256 of the content, 64 lower-case hex digits.
    pub sha256: String,
    /// Length in bytes.
    #[serde(deserialize_with = "number::count")]
    pub size_bytes: u64,
}

/// A file of a model, as `start_inference` names them (source: `start_inference`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadUrl {
    /// The file's name in the model's folder.
    pub key: String,
    /// Where to fetch it: an absolute, signed URL.
    pub url: Secret,
    /// SHA-256 of the content, 64 lower-case hex digits (an addition of ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Length in bytes (an addition of ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub size_bytes: Option<u64>,
}

/// The base model of a job (source: `start_training`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseModel {
    /// Name at the hub, as `meta-llama/Llama-3.1-8B`; also the folder's name in a models directory.
    pub huggingface_id: String,
    /// Files that the platform itself can give (an addition of ours).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub download_urls: Vec<DownloadUrl>,
}

/// The data set of a job (source: `start_training`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSource {
    /// Where the platform keeps it, as `datasets/42/data.jsonl`.
    pub storage_path: String,
    /// Where the worker fetches it: an absolute, signed URL.
    pub download_url: Secret,
    /// The file's format, as `jsonl`.
    pub format: String,
    /// The data set's id.
    pub id: DatasetId,
    /// SHA-256 of the file, 64 lower-case hex digits (an addition of ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Length of the file in bytes (an addition of ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub size_bytes: Option<u64>,
    /// So many bad rows are skipped before the job fails; none when missing (an addition of ours).
    #[serde(
        default,
        deserialize_with = "number::optional_count",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_bad_rows: Option<u64>,
}

/// How far a task is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskProgressData {
    /// What is done: examples of an evaluation, weights of an export.
    #[serde(deserialize_with = "number::count")]
    pub done: u64,
    /// The same in all.
    #[serde(deserialize_with = "number::count")]
    pub total: u64,
}

/// Why nothing comes of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskFailedData {
    /// Why, for a person; names the field of the message that started it where that is at fault.
    pub error: String,
    /// Whose it is (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_kind: Option<FailureKind>,
}

/// One turn of a chat that is to be continued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or what else the model's chat template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

/// Where the worker puts the one file that it makes in a federated round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadTarget {
    /// Signed URL that takes one PUT.
    pub url: Secret,
    /// The storage key that the file gets.
    pub key: String,
}

/// The global adapter of a federated session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalWeights {
    /// Where to fetch it: an absolute, signed URL.
    pub download_url: Secret,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
    /// Length in bytes.
    #[serde(deserialize_with = "number::count")]
    pub size_bytes: u64,
}
