//! In which types a model's matrices are held in memory.

use std::borrow::Cow;
use std::fmt;

use trainyard_shared::training::TrainingConfig;

use super::llama::Weight;
use crate::{
    EngineError,
    device::{StoredRows, WeightMatrix},
    gguf::{BlockType, quantise},
    weights::ModelFiles,
};

/// How matrices are held. Norms and biases are always f32.
///
/// Products with weights that are held as they are stored give the same bits as with their f32 values, so
/// [`Holding::Unpacked`] and [`Holding::AsStored`] differ in memory and speed only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holding {
    /// In f32.
    #[default]
    Unpacked,
    /// In the types of the file.
    AsStored,
    /// In 8 bits (Q8_0), where the file has more.
    EightBits,
    /// In 4 bits (Q4_1), where the file has more; embedding and output projection in 8.
    FourBits,
}

/// Which of a model's matrices one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatrixKind {
    /// A layer's projection.
    Projection,
    /// The embedding or the output projection, where each error falls on every token.
    Embedding,
}

/// What a model's matrices take up in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Each type with the number of matrices that are held in it and their bytes, in the order of the model.
    pub types: Vec<(BlockType, usize, usize)>,
}

impl Holding {
    /// How a frozen base model is held in training: as the config asks; otherwise in f32, which is a little faster,
    /// unless that takes more than a quarter of `available_bytes`.
    pub fn for_training(config: &TrainingConfig, files: &ModelFiles, available_bytes: u64) -> Self {
        if config.load_in_4bit {
            Self::FourBits
        } else if config.load_in_8bit {
            Self::EightBits
        } else if config.low_memory || Self::Unpacked.bytes(files) > available_bytes / 4 {
            Self::AsStored
        } else {
            Self::Unpacked
        }
    }

    /// Bytes that a model's weights will take up, to within what fills up the last rows.
    pub fn bytes(self, files: &ModelFiles) -> u64 {
        let bytes = |weight: Weight| {
            let shape = weight.shape(&files.config);
            let values: usize = shape.iter().product();
            let kind = match weight {
                Weight::Projection(..) => MatrixKind::Projection,
                Weight::Embedding | Weight::Head => MatrixKind::Embedding,
                _ => return 4 * values,
            };
            let stored = files.stored_type(&weight.name()).unwrap_or(BlockType::F32);
            let held = match self {
                Self::Unpacked => BlockType::F32,
                _ => self.target(kind, stored, shape[1]).unwrap_or(stored),
            };
            values / held.values_per_block() * held.bytes_per_block()
        };
        let weights = Weight::all(&files.config).into_iter();
        weights.map(bytes).sum::<usize>() as u64
    }

    /// The type that a matrix is to be quantised to, if it is.
    fn target(self, kind: MatrixKind, stored: BlockType, columns: usize) -> Option<BlockType> {
        let target = match (self, kind) {
            (Self::Unpacked | Self::AsStored, _) => return None,
            (Self::EightBits, _) | (Self::FourBits, MatrixKind::Embedding) => BlockType::Q8_0,
            (Self::FourBits, MatrixKind::Projection) => BlockType::Q4_1,
        };
        let bits = |t: BlockType| 8 * t.bytes_per_block() / t.values_per_block();
        let fits = columns.is_multiple_of(target.values_per_block());
        (fits && bits(stored) > bits(target)).then_some(target)
    }

    /// One matrix of a model's files.
    pub(super) fn matrix(
        self,
        files: &ModelFiles,
        kind: MatrixKind,
        name: &str,
        shape: [usize; 2],
    ) -> Result<WeightMatrix, EngineError> {
        let [rows, columns] = shape;
        let (stored, bytes) = files.stored(name, &shape)?;
        let target = self.target(kind, stored, columns);
        let (block_type, bytes) = match target {
            None if self == Self::Unpacked => {
                return WeightMatrix::from_f32(&stored.dequantise(&bytes), rows, columns);
            }
            None => (stored, bytes),
            Some(target) => {
                let quantised = quantise(target, &stored.dequantise(&bytes));
                let quantised = quantised.ok_or_else(|| {
                    EngineError::Unsupported(format!(
                        "holding {name} in {target}: it has values that are not finite or too large"
                    ))
                })?;
                (target, Cow::Owned(quantised))
            }
        };
        WeightMatrix::from_stored(StoredRows {
            block_type,
            bytes: &bytes,
            rows,
            columns,
        })
    }
}

impl Held {
    pub(super) fn of<'a>(matrices: impl Iterator<Item = &'a WeightMatrix>) -> Self {
        let mut types: Vec<(BlockType, usize, usize)> = Vec::new();
        for matrix in matrices {
            let (block_type, bytes) = (matrix.block_type(), matrix.bytes());
            match types.iter_mut().find(|(t, ..)| *t == block_type) {
                Some((_, count, sum)) => {
                    *count += 1;
                    *sum += bytes;
                }
                None => types.push((block_type, 1, bytes)),
            }
        }
        Self { types }
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> usize {
        self.types.iter().map(|(_, _, bytes)| bytes).sum()
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        write!(f, "weights take up {:.0} MB:", mb(self.bytes()))?;
        for (i, (block_type, count, bytes)) in self.types.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(
                f,
                "{comma} {count} matrices in {block_type} ({:.0} MB)",
                mb(*bytes)
            )?;
        }
        Ok(())
    }
}
