//! The types in which weights are written, and how values become their bytes.

use std::fmt;
use std::str::FromStr;

use half::f16;

use super::BlockType;
use crate::export::FloatType;

/// Values in a block of [`WrittenType::Q8_0`].
const BLOCK: usize = 32;

/// A type in which weights are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenType {
    /// Values by themselves.
    Float(FloatType),
    /// Blocks of 32 values `d * q`, `q` an 8-bit signed integer, rounded as llama.cpp does it.
    Q8_0,
}

impl WrittenType {
    /// What readers of the file know it as.
    pub fn block_type(self) -> BlockType {
        match self {
            Self::Float(FloatType::F32) => BlockType::F32,
            Self::Float(FloatType::F16) => BlockType::F16,
            Self::Float(FloatType::Bf16) => BlockType::Bf16,
            Self::Q8_0 => BlockType::Q8_0,
        }
    }

    /// The number of the type in a tensor's entry.
    pub(super) fn id(self) -> u32 {
        match self {
            Self::Float(FloatType::F32) => 0,
            Self::Float(FloatType::F16) => 1,
            Self::Float(FloatType::Bf16) => 30,
            Self::Q8_0 => 8,
        }
    }

    /// `general.file_type` of a file whose matrices are of this type.
    pub fn file_type(self) -> i128 {
        match self {
            Self::Float(FloatType::F32) => 0,
            Self::Float(FloatType::F16) => 1,
            Self::Float(FloatType::Bf16) => 32,
            Self::Q8_0 => 7,
        }
    }

    /// Appends the bytes of `values`, which are whole blocks.
    ///
    /// # Errors
    /// The place of the first value (or of the block) that is not finite in this type.
    pub(super) fn encode(self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), usize> {
        match self {
            Self::Float(float_type) => float_type.encode(values, bytes),
            Self::Q8_0 => values
                .chunks_exact(BLOCK)
                .enumerate()
                .try_for_each(|(i, block)| encode_q8_0(block, bytes).ok_or(i * BLOCK)),
        }
    }
}

/// `d = max |x| / 127`, `q = x / d` rounded half away from zero. None where a value or `d` is not finite.
pub(super) fn encode_q8_0(block: &[f32], bytes: &mut Vec<u8>) -> Option<()> {
    let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let stored = f16::from_f32(d);
    if !stored.is_finite() || block.iter().any(|x| !x.is_finite()) {
        return None;
    }
    bytes.extend(stored.to_le_bytes());
    bytes.extend(
        block
            .iter()
            .map(|x| ((x * inverse).round() as i8).cast_unsigned()),
    );
    Some(())
}

impl fmt::Display for WrittenType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(float_type) => float_type.fmt(f),
            Self::Q8_0 => f.write_str("q8_0"),
        }
    }
}

impl FromStr for WrittenType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.parse() {
            Ok(float_type) => Ok(Self::Float(float_type)),
            Err(_) if name.eq_ignore_ascii_case("q8_0") => Ok(Self::Q8_0),
            Err(_) => Err(format!("{name:?} is none of f32, f16, bf16, q8_0")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{json, numbers};

    #[test]
    fn q8_0_blocks_are_those_of_the_gguf_package() {
        let golden = json("export/q8_0.json");
        let values: Vec<f32> = numbers(&golden["values"])
            .iter()
            .map(|&x| x as f32)
            .collect();
        let mut bytes = Vec::new();
        WrittenType::Q8_0.encode(&values, &mut bytes).unwrap();
        assert_eq!(hex::encode(bytes), golden["bytes"].as_str().unwrap());
    }

    #[test]
    fn a_block_that_is_not_finite_is_told_by_its_place() {
        // d is stored in 16 bits, so 1e7 / 127 is infinite.
        for bad in [f32::NAN, f32::INFINITY, 1e7] {
            let mut values = [1.0; 3 * BLOCK];
            values[40] = bad;
            let encoded = WrittenType::Q8_0.encode(&values, &mut Vec::new());
            assert_eq!(encoded, Err(BLOCK), "{bad}");
        }
    }
}
