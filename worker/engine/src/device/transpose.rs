//! Blocks of activations with tokens and features exchanged.

use super::LANES;

/// Side of the squares that are exchanged at once.
const SIDE: usize = 8;

/// `out[lane][feature] = values[feature][lane]`, features past the last zero; `out` is `LANES * LANES`.
pub(crate) fn transpose_block(out: &mut [f32], values: &[f32]) {
    let features = values.len() / LANES;
    assert!(out.len() == LANES * LANES && features <= LANES);
    let whole = match has_squares() {
        true => features / SIDE * SIDE,
        false => 0,
    };
    #[cfg(target_arch = "x86_64")]
    for lane in (0..LANES).step_by(SIDE) {
        for feature in (0..whole).step_by(SIDE) {
            // SAFETY: the square lies within both blocks by the assertion, and the instructions are there.
            unsafe {
                square(
                    out.as_mut_ptr().add(lane * LANES + feature),
                    values.as_ptr().add(feature * LANES + lane),
                );
            }
        }
    }
    for (lane, out) in out.chunks_exact_mut(LANES).enumerate() {
        for (feature, value) in out.iter_mut().enumerate().skip(whole) {
            *value = match feature < features {
                true => values[feature * LANES + lane],
                false => 0.0,
            };
        }
    }
}

/// Whether squares can be exchanged in registers.
#[cfg(target_arch = "x86_64")]
fn has_squares() -> bool {
    !matches!(super::instructions(), pulp::Arch::Scalar)
}

#[cfg(not(target_arch = "x86_64"))]
fn has_squares() -> bool {
    false
}

/// `out[i][j] = values[j][i]` for a square of 8, rows of both [`LANES`] apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn square(out: *mut f32, values: *const f32) {
    use std::arch::x86_64::*;
    // SAFETY: by the caller.
    unsafe {
        let rows: [__m256; SIDE] = std::array::from_fn(|i| _mm256_loadu_ps(values.add(i * LANES)));
        // Pairs of rows, then fours, then the halves of registers.
        let mut twos = rows;
        let mut fours = rows;
        for i in 0..SIDE / 2 {
            twos[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            twos[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        for half in [0, 4] {
            for i in 0..2 {
                let (a, b) = (twos[half + i], twos[half + 2 + i]);
                fours[half + 2 * i] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[half + 2 * i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for i in 0..4 {
            let (low, high) = (fours[i], fours[4 + i]);
            _mm256_storeu_ps(
                out.add(i * LANES),
                _mm256_permute2f128_ps::<0x20>(low, high),
            );
            _mm256_storeu_ps(
                out.add((4 + i) * LANES),
                _mm256_permute2f128_ps::<0x31>(low, high),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_changes_places_and_missing_features_are_zero() {
        for features in [1, 7, 8, 20, LANES] {
            let values: Vec<f32> = (0..features * LANES).map(|i| i as f32 + 1.0).collect();
            let mut out = vec![f32::NAN; LANES * LANES];
            transpose_block(&mut out, &values);
            for (i, value) in out.iter().enumerate() {
                let (lane, feature) = (i / LANES, i % LANES);
                let expected = values.get(feature * LANES + lane).copied().unwrap_or(0.0);
                assert_eq!(*value, expected, "{lane}, {feature} of {features}");
            }
        }
    }
}
