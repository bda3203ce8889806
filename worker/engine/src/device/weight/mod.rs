//! A weight matrix in memory, in the type that it is held in.
//!
//! f32 weights lie in panels that products use as they are. All other types stay as small as they are stored:
//! products unpack a part at a time into a buffer of the task's, and get exactly the values of the f32 matrix.

mod coded;
mod pack;
mod unpack;

use super::Panels;
use crate::{EngineError, gguf::BlockType};

pub(crate) use coded::{Chunk, Coded, GROUP};

/// Columns of a chunk, the smallest part that is unpacked at once.
pub(crate) const COLUMNS: usize = 32;

/// A weight matrix `[rows, columns]` (outputs by inputs).
#[derive(Debug)]
pub enum WeightMatrix {
    /// f32, in panels.
    Panels(Panels),
    /// Any other type, as small as it is stored.
    Coded(Coded),
}

/// The values of a matrix as a file stores them, row by row.
#[derive(Debug, Clone, Copy)]
pub struct StoredRows<'a> {
    /// The type of the values.
    pub block_type: BlockType,
    /// `rows` times the bytes of a row.
    pub bytes: &'a [u8],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns, whole blocks.
    pub columns: usize,
}

impl WeightMatrix {
    /// An f32 matrix from row-major values.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when there is no room for them.
    pub fn from_f32(values: &[f32], rows: usize, columns: usize) -> Result<Self, EngineError> {
        Ok(Self::Panels(Panels::pack(values, rows, columns)?))
    }

    /// A matrix held in the type that it is stored in.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when there is no room for it.
    pub fn from_stored(stored: StoredRows<'_>) -> Result<Self, EngineError> {
        match stored.block_type {
            BlockType::F32 => {
                let values = stored.block_type.dequantise(stored.bytes);
                Self::from_f32(&values, stored.rows, stored.columns)
            }
            _ => Ok(Self::Coded(Coded::pack(stored)?)),
        }
    }

    /// Number of rows: the width of the forward product's output.
    pub fn rows(&self) -> usize {
        match self {
            Self::Panels(panels) => panels.rows(),
            Self::Coded(coded) => coded.rows(),
        }
    }

    /// Number of columns: the width of the forward product's input.
    pub fn columns(&self) -> usize {
        match self {
            Self::Panels(panels) => panels.columns(),
            Self::Coded(coded) => coded.columns(),
        }
    }

    /// The type that its values are held in.
    pub fn block_type(&self) -> BlockType {
        match self {
            Self::Panels(_) => BlockType::F32,
            Self::Coded(coded) => coded.block_type(),
        }
    }

    /// Whether every value is a bf16.
    pub fn is_bf16(&self) -> bool {
        match self {
            Self::Panels(panels) => panels.is_bf16(),
            Self::Coded(coded) => coded.is_bf16(),
        }
    }

    /// Bytes that it takes up in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Panels(panels) => size_of_val(panels.packed()),
            Self::Coded(coded) => coded.bytes(),
        }
    }

    /// The values of one row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        (0..self.columns()).map(move |column| match self {
            Self::Panels(panels) => panels.value(row, column),
            Self::Coded(coded) => coded.value(row, column),
        })
    }

    /// Replaces all values by row-major ones of the same shape; the matrix holds f32, as all that is trained does.
    pub(crate) fn repack(&mut self, values: &[f32]) {
        match self {
            Self::Panels(panels) => panels.repack(values),
            Self::Coded(_) => unreachable!("only f32 weights are trained"),
        }
    }
}

impl From<Panels> for WeightMatrix {
    fn from(panels: Panels) -> Self {
        Self::Panels(panels)
    }
}

#[cfg(test)]
pub(crate) mod tests;
