//! A file's records, some megabytes at a time.

use trainyard_datasets::{DatasetError, LineProblem, Record, Records};

use super::DataFile;
use crate::EngineError;

/// Bytes of a block: about as many are in memory, and tokenised, at once.
const BLOCK_BYTES: usize = 4 * 1024 * 1024;

/// Blocks of a data set's records in their order, none of them empty.
pub(super) struct Blocks<'a> {
    data: &'a DataFile,
    records: Records,
}

impl<'a> Blocks<'a> {
    /// Opens a data set.
    ///
    /// # Errors
    /// [`EngineError::Io`] where it cannot be read, [`EngineError::InvalidData`] where it is no such file.
    pub(super) fn open(data: &'a DataFile) -> Result<Self, EngineError> {
        match Records::open(&data.path, data.format) {
            Ok(records) => Ok(Self { data, records }),
            Err(error) => Err(unreadable(data, error)),
        }
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<Vec<Record>, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut block, mut bytes) = (Vec::new(), 0);
        while bytes < BLOCK_BYTES {
            match self.records.next() {
                Some(Ok(record)) => {
                    bytes += record.size_bytes();
                    block.push(record);
                }
                Some(Err(error)) => return Some(Err(unreadable(self.data, error))),
                None => break,
            }
        }
        (!block.is_empty()).then_some(Ok(block))
    }
}

fn unreadable(data: &DataFile, error: DatasetError) -> EngineError {
    match error {
        DatasetError::Io(error) => EngineError::io("read", &data.path, error),
        other => EngineError::InvalidData(LineProblem::from(&other).to_string()),
    }
}
