//! The floating-point types that weights are written in.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// A floating-point type of stored weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// 32-bit IEEE floats.
    F32,
    /// 16-bit IEEE floats: finite up to 65504.
    F16,
    /// bfloat16: the range of 32 bits, 8 bits of precision.
    Bf16,
}

impl FloatType {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Its name in a safetensors header.
    pub fn safetensors_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }

    /// Its name in a `config.json`.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Appends values to `bytes`, rounded to nearest even, little-endian.
    ///
    /// # Errors
    /// The place of the first value that is not finite in this type.
    pub fn encode(self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), usize> {
        let bad = match self {
            Self::F32 => {
                bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
                values.iter().position(|x| !x.is_finite())
            }
            Self::F16 => {
                bytes.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
                values.iter().position(|&x| !f16::from_f32(x).is_finite())
            }
            Self::Bf16 => {
                bytes.extend(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()));
                values.iter().position(|&x| !bf16::from_f32(x).is_finite())
            }
        };
        bad.map_or(Ok(()), Err)
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for FloatType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.to_ascii_lowercase().as_str() {
            "f32" | "float32" => Ok(Self::F32),
            "f16" | "float16" => Ok(Self::F16),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            _ => Err(format!("{name:?} is none of f32, f16, bf16")),
        }
    }
}
