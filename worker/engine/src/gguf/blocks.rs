//! How GGUF stores values: the types that are read, and their way back to `f32`.
//!
//! Quantised types hold blocks of 32 values: `q` are small integers, `d` a scale and `m` a minimum. The K types hold
//! blocks of 256 values in parts that have small integers of their own for scale and minimum.

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
    /// 32 values `d * q`, `q` a 5-bit integer less 16.
    Q5_0,
    /// 32 values `d * q + m`, `q` a 5-bit integer.
    Q5_1,
    /// 32 values `d * q`, `q` an 8-bit signed integer.
    Q8_0,
    /// 256 values `d * scale * q - m * minimum` in parts of 32, `q` a 4-bit integer.
    Q4K,
    /// 256 values `d * scale * q - m * minimum` in parts of 32, `q` a 5-bit integer.
    Q5K,
    /// 256 values `d * scale * q` in parts of 16, `q` a 6-bit integer less 32.
    Q6K,
}

/// Values in a block of a quantised type.
const BLOCK: usize = 32;
/// Values in a block of a K type.
const K_BLOCK: usize = 256;
/// Bytes of eight scales and eight minima of six bits each.
const K_SCALES: usize = 12;

impl BlockType {
    /// The type with this number in the file, if it is one that is read.
    pub fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// What the format calls the type with this number.
    pub fn name_of(id: u32) -> String {
        let name = match id {
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
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
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => BLOCK,
            Self::Q4K | Self::Q5K | Self::Q6K => K_BLOCK,
        }
    }

    /// Bytes that one block takes.
    pub fn bytes_per_block(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 2 + BLOCK / 2,
            Self::Q4_1 => 4 + BLOCK / 2,
            Self::Q5_0 => 2 + BLOCK / 8 + BLOCK / 2,
            Self::Q5_1 => 4 + BLOCK / 8 + BLOCK / 2,
            Self::Q8_0 => 2 + BLOCK,
            Self::Q4K => 4 + K_SCALES + K_BLOCK / 2,
            Self::Q5K => 4 + K_SCALES + K_BLOCK / 8 + K_BLOCK / 2,
            Self::Q6K => K_BLOCK / 2 + K_BLOCK / 4 + K_BLOCK / 16 + 2,
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
            Self::Q5_0 => {
                for block in blocks {
                    let d = half_at(block);
                    let q = fives(&block[2..6], &block[6..]);
                    values.extend(q.map(|q| d * (f32::from(q) - 16.0)));
                }
            }
            Self::Q5_1 => {
                for block in blocks {
                    let (d, m) = (half_at(block), half_at(&block[2..]));
                    let q = fives(&block[4..8], &block[8..]);
                    values.extend(q.map(|q| d * f32::from(q) + m));
                }
            }
            Self::Q8_0 => {
                for block in blocks {
                    let d = half_at(block);
                    values.extend(block[2..].iter().map(|&q| d * f32::from(q.cast_signed())));
                }
            }
            Self::Q4K => blocks.for_each(|block| {
                let (head, q) = block.split_at(4 + K_SCALES);
                extend_k(&mut values, head, &[0; BLOCK], q);
            }),
            Self::Q5K => blocks.for_each(|block| {
                let (head, q) = block.split_at(4 + K_SCALES);
                let (high, low) = q.split_at(BLOCK);
                extend_k(&mut values, head, high, low);
            }),
            Self::Q6K => blocks.for_each(|block| extend_q6k(&mut values, block)),
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
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        })
    }
}

fn half_at(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The low halves of all bytes, then the high halves.
pub(crate) fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> + '_ {
    bytes
        .iter()
        .map(|byte| byte & 15)
        .chain(bytes.iter().map(|byte| byte >> 4))
}

/// 32 integers of five bits: the fifth bits of all, then the lower four of each.
pub(crate) fn fives<'a>(high: &[u8], low: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    nibbles(low)
        .enumerate()
        .map(move |(i, low)| low | (u8::from(high >> i & 1 == 1) << 4))
}

/// Eight parts of 32 values from `d`, `m` and the packed scales in `head`. Two parts at a time share 32 bytes of
/// `low`; bit `p` of each byte of `high` is the fifth bit of part `p`.
fn extend_k(values: &mut Vec<f32>, head: &[u8], high: &[u8], low: &[u8]) {
    let (d, m) = (half_at(head), half_at(&head[2..]));
    for (pair, low) in low.chunks_exact(BLOCK).enumerate() {
        for (part, shift) in [(2 * pair, 0), (2 * pair + 1, 4)] {
            let (scale, minimum) = six_bits(&head[4..], part);
            let (scale, minimum) = (d * f32::from(scale), m * f32::from(minimum));
            values.extend(low.iter().zip(high).map(|(low, high)| {
                let q = (low >> shift & 15) | ((high >> part & 1) << 4);
                scale * f32::from(q) - minimum
            }));
        }
    }
}

/// Scale and minimum of one of eight parts: the first four of each lie in six bits of a byte, whose upper two bits
/// belong to the last four; their lower four bits share the last four bytes.
pub(crate) fn six_bits(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let lower = packed[part + 4];
    let upper = |byte: u8| byte >> 6 << 4;
    (
        lower & 15 | upper(packed[part - 4]),
        lower >> 4 | upper(packed[part]),
    )
}

/// Two halves of 128 values, each in four quarters of 32: 64 bytes of lower bits, 32 of upper ones, eight scales.
fn extend_q6k(values: &mut Vec<f32>, block: &[u8]) {
    const HALF: usize = K_BLOCK / 2;
    let (low, rest) = block.split_at(HALF);
    let (high, rest) = rest.split_at(HALF / 2);
    let (scales, d) = rest.split_at(K_BLOCK / 16);
    let d = half_at(d);
    for half in 0..2 {
        let low = &low[half * HALF / 2..][..HALF / 2];
        let high = &high[half * BLOCK..][..BLOCK];
        for quarter in 0..4 {
            let low = &low[quarter % 2 * BLOCK..][..BLOCK];
            let scales = &scales[half * 8 + quarter * 2..][..2];
            values.extend(low.iter().zip(high).enumerate().map(|(i, (low, high))| {
                let q = (low >> (quarter / 2 * 4) & 15) | ((high >> (2 * quarter) & 3) << 4);
                let scale = scales[i / 16].cast_signed();
                d * f32::from(scale) * (f32::from(q) - 32.0)
            }));
        }
    }
}
