//! Dropout on the CPU: a hash of each value's place decides.

use rayon::prelude::*;

use super::Dropout;
use crate::device::math::dispatch;

/// Values per task.
const PART: usize = 8 * 1024;

pub(super) fn forward(y: &mut [f32], x: &[f32], dropout: Dropout) {
    let parts = y.par_chunks_mut(PART).zip(x.par_chunks(PART)).enumerate();
    parts.for_each(|(part, (y, x))| {
        dispatch(
            #[inline(always)]
            || {
                let mask = Mask::new(dropout, part);
                for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
                    *y = mask.factor(i as u32) * x;
                }
            },
        );
    });
}

pub(super) fn backward(dx: &mut [f32], dy: &[f32], dropout: Dropout) {
    let parts = dx.par_chunks_mut(PART).zip(dy.par_chunks(PART)).enumerate();
    parts.for_each(|(part, (dx, dy))| {
        dispatch(
            #[inline(always)]
            || {
                let mask = Mask::new(dropout, part);
                for (i, (dx, dy)) in dx.iter_mut().zip(dy).enumerate() {
                    *dx += mask.factor(i as u32) * dy;
                }
            },
        );
    });
}

/// The mask of one part.
struct Mask {
    key: u32,
    threshold: u32,
    kept: f32,
}

impl Mask {
    fn new(dropout: Dropout, part: usize) -> Self {
        Self {
            key: mix64(mix64(dropout.key) ^ part as u64) as u32,
            threshold: (f64::from(dropout.probability) * 2f64.powi(32)) as u32,
            kept: 1.0 / (1.0 - dropout.probability),
        }
    }

    /// What value `i` of the part is multiplied with.
    #[inline(always)]
    fn factor(&self, i: u32) -> f32 {
        let hash = mix32(mix32(i.wrapping_mul(0x9E37_79B9) ^ self.key).wrapping_add(self.key));
        if hash >= self.threshold {
            self.kept
        } else {
            0.0
        }
    }
}

/// Spreads every bit over all others (a finaliser found by search: bias 0.17 of 1000).
#[inline(always)]
fn mix32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// SplitMix64's finaliser.
fn mix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
