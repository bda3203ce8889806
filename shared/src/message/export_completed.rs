//! An export's end, good or bad.

use serde::{Deserialize, Serialize};

use super::parts::{ArtifactFile, TaskFailedData};
use crate::ids::{ExportId, JobId, MessageId};

/// `export_completed`: the files are stored.
///
/// Worker to platform and on to dashboards, once for each export. A repeat is acknowledged and changes
/// nothing. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportCompleted {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The export.
    pub export_id: ExportId,
    /// The job whose result it is.
    pub job_id: JobId,
    /// Wants an `ack` that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The result.
    pub data: ExportCompletedData,
}

/// Content of [`ExportCompleted`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExportCompletedData {
    /// The files; they count once all are stored and checked (PROTOCOL 6).
    pub files: Vec<ArtifactFile>,
}

/// `export_failed`: there will be no files.
///
/// Worker to platform and on to dashboards, once for each export. A repeat is acknowledged and changes
/// nothing. Ours: PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportFailed {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The export.
    pub export_id: ExportId,
    /// Wants an `ack` that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// What happened.
    pub data: TaskFailedData,
}
