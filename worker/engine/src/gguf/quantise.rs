//! From f32 to blocks of small integers.

use half::f16;

use super::{BlockType, encode::encode_q8_0};

/// The bytes of `values`, whole blocks, in Q8_0 or Q4_1; none where one is not finite or too large for them.
///
/// Q8_0: `d = max |x| / 127`, `q = x / d` rounded. Q4_1: `m = min x`, `d = (max x - m) / 15`, `q = (x - m) / d`
/// rounded, with `d` and `m` as they are stored, so that what is stored already comes out as it was.
pub fn quantise(block_type: BlockType, values: &[f32]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(
        values.len() / block_type.values_per_block() * block_type.bytes_per_block(),
    );
    for block in values.chunks_exact(block_type.values_per_block()) {
        match block_type {
            BlockType::Q8_0 => encode_q8_0(block, &mut bytes)?,
            BlockType::Q4_1 => q4_1(block, &mut bytes)?,
            other => unreachable!("nothing is quantised to {other}"),
        }
    }
    Some(bytes)
}

fn q4_1(block: &[f32], bytes: &mut Vec<u8>) -> Option<()> {
    let low = block.iter().copied().fold(f32::INFINITY, f32::min);
    let high = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let (d, m) = (finite((high - low) / 15.0, block)?, finite(low, block)?);
    let inverse = if d == f16::ZERO {
        0.0
    } else {
        1.0 / d.to_f32()
    };
    let code = |x: &f32| ((x - m.to_f32()) * inverse).round().clamp(0.0, 15.0) as u8;
    let (first, second) = block.split_at(block.len() / 2);
    bytes.extend(d.to_le_bytes());
    bytes.extend(m.to_le_bytes());
    bytes.extend(
        first
            .iter()
            .zip(second)
            .map(|(a, b)| code(a) | code(b) << 4),
    );
    Some(())
}

/// `value` in 16 bits, if that and all of the block are finite.
fn finite(value: f32, block: &[f32]) -> Option<f16> {
    let stored = f16::from_f32(value);
    (stored.is_finite() && block.iter().all(|x| x.is_finite())).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::values;

    #[test]
    fn quantised_values_are_within_half_a_step() {
        let x: Vec<f32> = values(3, 32 * 40).iter().map(|x| x * 0.1).collect();
        // Half a step of 0.2 / 254 or 0.2 / 15, and what the 16-bit scale and minimum are off.
        for (block_type, tolerance) in [(BlockType::Q8_0, 4.4e-4), (BlockType::Q4_1, 6.9e-3)] {
            let bytes = quantise(block_type, &x).unwrap();
            let back = block_type.dequantise(&bytes);
            for (x, back) in x.iter().zip(&back) {
                assert!(
                    (x - back).abs() <= tolerance,
                    "{block_type}: {x} became {back}"
                );
            }
            assert_eq!(
                quantise(block_type, &vec![0.0; 64]).map(|b| block_type.dequantise(&b)),
                Some(vec![0.0; 64])
            );
        }
    }

    #[test]
    fn values_that_are_stored_in_four_bits_come_out_as_they_were() {
        let d = 2.0_f32.powi(-7);
        let x: Vec<f32> = (0..64)
            .map(|i| d * ((i * 7) % 16) as f32 - 5.5 * d)
            .collect();
        let bytes = quantise(BlockType::Q4_1, &x).unwrap();
        assert_eq!(BlockType::Q4_1.dequantise(&bytes), x);
    }

    #[test]
    fn what_is_not_finite_is_not_quantised() {
        for bad in [f32::NAN, f32::INFINITY, 1e8] {
            let mut x = vec![1.0; 64];
            x[40] = bad;
            assert_eq!(quantise(BlockType::Q8_0, &x), None);
            assert_eq!(quantise(BlockType::Q4_1, &x), None);
        }
    }
}
