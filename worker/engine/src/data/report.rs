//! What became of a data set's rows, and whether too many of them are bad.

use serde::{Deserialize, Serialize};
use trainyard_datasets::LineProblem;

use crate::EngineError;

/// What became of a file's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetReport {
    /// Rows that are trained on.
    pub examples: u64,
    /// Bad rows that were skipped.
    pub skipped_rows: u64,
    /// Good rows without anything to learn.
    pub dropped_rows: u64,
    /// Rows that were cut to the longest length.
    pub truncated_rows: u64,
    /// Tokens that run through the model in one epoch.
    pub tokens: u64,
    /// Tokens that the loss falls on in one epoch.
    pub trained_tokens: u64,
    /// SHA-256 of the file in hexadecimal.
    pub sha256: String,
    /// What was wrong with the first bad rows.
    pub problems: Vec<LineProblem>,
}

impl DatasetReport {
    /// That no more rows are bad than may be skipped.
    ///
    /// # Errors
    /// [`EngineError::InvalidData`] naming the first bad rows.
    pub(super) fn check_bad_rows(&self, allowed: u64) -> Result<(), EngineError> {
        const SHOWN: usize = 5;
        if self.skipped_rows <= allowed {
            return Ok(());
        }
        let shown: Vec<String> = self
            .problems
            .iter()
            .take(SHOWN)
            .map(LineProblem::to_string)
            .collect();
        let more = match (self.skipped_rows as usize).saturating_sub(shown.len()) {
            0 => String::new(),
            count => format!("; and {count} more"),
        };
        Err(EngineError::InvalidData(format!(
            "{}{more} ({allowed} bad rows may be skipped)",
            shown.join("; ")
        )))
    }
}
