//! How far an export is.

use serde::{Deserialize, Serialize};

use super::parts::TaskProgressData;
use crate::ids::ExportId;

/// `export_progress`: so many weights are written.
///
/// Worker to platform and on to dashboards, at most twice a second. Only the newest matters. Ours:
/// PROTOCOL 8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportProgress {
    /// The sender's UUID, or the beginning of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The export.
    pub export_id: ExportId,
    /// How far.
    pub data: TaskProgressData,
}
