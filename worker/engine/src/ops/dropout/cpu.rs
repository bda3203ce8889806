//! Dropout on the CPU: a hash of each value's place decides.

use rayon::prelude::*;

use super::Dropout;
use crate::device::math::dispatch;
use crate::device::{Activations, ActivationsMut, LANES};

/// Features of a block per task.
const PART: usize = 256;

pub(super) fn forward(y: &mut ActivationsMut<'_>, x: Activations<'_>, dropout: Dropout) {
    masked(y, x, dropout, |y, masked| *y = masked);
}

pub(super) fn backward(dx: &mut ActivationsMut<'_>, dy: Activations<'_>, dropout: Dropout) {
    masked(dx, dy, dropout, |dx, masked| *dx += masked);
}

/// Gives `put` every value of `from`, masked, with its place in `to`.
fn masked(
    to: &mut ActivationsMut<'_>,
    from: Activations<'_>,
    dropout: Dropout,
    put: impl Fn(&mut f32, f32) + Sync,
) {
    let width = from.width();
    let key = mix64(dropout.key);
    let threshold = (f64::from(dropout.probability) * 2f64.powi(32)) as u32;
    let kept = 1.0 / (1.0 - dropout.probability);
    let to = to.data().par_chunks_mut(PART * LANES);
    let parts = to.zip(from.data().par_chunks(PART * LANES)).enumerate();
    parts.for_each(|(part, (to, from))| {
        dispatch(
            #[inline(always)]
            || {
                // Feature `i % width` of block `i / width`: one lane for each of its tokens.
                let rows = to.chunks_exact_mut(LANES).zip(from.chunks_exact(LANES));
                for (i, (to, from)) in (part * PART..).zip(rows) {
                    let key = mix64(key ^ (i % width) as u64) as u32;
                    let token = dropout.first_token.wrapping_add((i / width * LANES) as u32);
                    for (lane, (to, from)) in to.iter_mut().zip(from).enumerate() {
                        let hash = hash(key, token.wrapping_add(lane as u32));
                        let factor = if hash >= threshold { kept } else { 0.0 };
                        put(to, factor * from);
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn hash(key: u32, token: u32) -> u32 {
    mix32(mix32(token.wrapping_mul(0x9E37_79B9) ^ key).wrapping_add(key))
}

/// Spreads every bit over all others (a finaliser found by search: bias 0.17 of 1000).
#[inline(always)]
fn mix32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

/// SplitMix64's finaliser.
#[inline(always)]
fn mix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
