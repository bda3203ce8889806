//! How GGUF stores values: the types that are read, and their way back to `f32`.
//!
//! Quantised types hold blocks of 32 values: `q` are small integers, `d` a scale and `m` a minimum.

use std::fmt;

use half::{bf16, f16};

/// A type of stored values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// One 32-bit float.
    F32,
    /// One 16-bit IEEE float.
    F16,
    /// One bfloat16.
    Bf16,
    /// 32 values `d * q`, `q` a 4-bit integer less 8.
    Q4_0,
    /// 32 values `d * q + m`, `q` a 4-bit integer.
    Q4_1,
    /// 32 values `d * q`, `q` an 8-bit signed integer.
    Q8_0,
}

/// Values in a block of a quantised type.
const BLOCK: usize = 32;

impl BlockType {
    /// The type with this number in the file, if it is one that is read.
    pub fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// What the format calls the type with this number.
    pub fn name_of(id: u32) -> String {
        let name = match id {
            6 => "Q5_0",
            7 => "Q5_1",
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            12 => "Q4_K",
            13 => "Q5_K",
            14 => "Q6_K",
            15 => "Q8_K",
            20 => "IQ4_NL",
            23 => "IQ4_XS",
            _ => {
                return Self::from_id(id)
                    .map_or_else(|| format!("tensor type {id}"), |known| known.to_string());
            }
        };
        format!("tensor type {name}")
    }

    /// Values that one block holds.
    pub fn values_per_block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => BLOCK,
        }
    }

    /// Bytes that one block takes.
    pub fn bytes_per_block(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 2 + BLOCK / 2,
            Self::Q4_1 => 4 + BLOCK / 2,
            Self::Q8_0 => 2 + BLOCK,
        }
    }

    /// The values of `bytes`, which hold whole blocks.
    pub fn dequantise(self, bytes: &[u8]) -> Vec<f32> {
        let blocks = bytes.chunks_exact(self.bytes_per_block());
        let mut values = Vec::with_capacity(blocks.len() * self.values_per_block());
        match self {
            Self::F32 => {
                values.extend(blocks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            }
            Self::F16 => values.extend(blocks.map(half_at)),
            Self::Bf16 => values.extend(blocks.map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())),
            Self::Q4_0 => {
                for block in blocks {
                    let d = half_at(block);
                    values.extend(nibbles(&block[2..]).map(|q| d * (f32::from(q) - 8.0)));
                }
            }
            Self::Q4_1 => {
                for block in blocks {
                    let (d, m) = (half_at(block), half_at(&block[2..]));
                    values.extend(nibbles(&block[4..]).map(|q| d * f32::from(q) + m));
                }
            }
            Self::Q8_0 => {
                for block in blocks {
                    let d = half_at(block);
                    values.extend(block[2..].iter().map(|&q| d * f32::from(q.cast_signed())));
                }
            }
        }
        values
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
        })
    }
}

fn half_at(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The low halves of all bytes, then the high halves.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes
        .iter()
        .map(|byte| byte & 15)
        .chain(bytes.iter().map(|byte| byte >> 4))
}
