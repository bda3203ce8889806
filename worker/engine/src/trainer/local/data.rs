//! What a worker trains on in a round: the windows of a token shard, or its rows of a data set.

use std::path::Path;

use super::super::{LogLevel, RowSource};
use crate::EngineError;
use crate::data::{DatasetReport, Examples, Shard};
use crate::weights::ModelFiles;

/// Rows with which of them are trained on.
#[derive(Debug, Clone)]
pub struct LocalData {
    examples: Examples,
    rows: Vec<u32>,
}

/// A worker's part of a data set: its rows whose number leaves `index` when divided by `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Which part, from 0.
    pub index: u64,
    /// How many parts there are.
    pub count: u64,
}

impl LocalData {
    /// The windows of a shard, from which `sequence_length` tokens each are predicted. `model` is the one that they are
    /// for.
    ///
    /// # Errors
    /// As [`Shard::open`].
    pub fn of_shard(
        shard: &Path,
        model: &ModelFiles,
        sequence_length: u32,
    ) -> Result<Self, EngineError> {
        let examples = Shard::open(shard, model.config.vocab_size)?.windows(sequence_length);
        Ok(Self::all(examples))
    }

    /// Part of the rows of a data set, tokenised as for a whole run. What chat templates are told to be
    /// the time should be the same for all workers of a session.
    ///
    /// # Errors
    /// As for a whole run; [`EngineError::InvalidData`] where the part has no row.
    pub fn of_rows(
        source: &RowSource<'_>,
        part: Part,
        is_stopped: &(dyn Fn() -> bool + Sync),
        log: &mut dyn FnMut(LogLevel, String),
    ) -> Result<(Self, DatasetReport), EngineError> {
        let (examples, report) = source.read(is_stopped, log)?;
        Ok((Self::all(examples).part(part)?, report))
    }

    /// The rows that are one worker's part.
    ///
    /// # Errors
    /// [`EngineError::InvalidData`] where these are none.
    pub fn part(self, part: Part) -> Result<Self, EngineError> {
        let Self { examples, mut rows } = self;
        let count = rows.len();
        rows.retain(|row| u64::from(*row) % part.count.max(1) == part.index);
        if rows.is_empty() {
            return Err(EngineError::InvalidData(format!(
                "part {} of {} of {count} rows is empty",
                part.index, part.count
            )));
        }
        Ok(Self { examples, rows })
    }

    fn all(examples: Examples) -> Self {
        Self {
            rows: (0..examples.len() as u32).collect(),
            examples,
        }
    }

    /// How many rows are trained on.
    pub fn row_count(&self) -> u64 {
        self.rows.len() as u64
    }

    pub(super) fn examples(&self) -> &Examples {
        &self.examples
    }

    pub(super) fn rows(&self) -> &[u32] {
        &self.rows
    }
}
