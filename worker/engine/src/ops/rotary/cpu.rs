//! The rotary embedding on the CPU: a block of tokens at a time, one token per lane.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{Angles, Rotary};
use crate::device::{ActivationsMut, LANES, math::dispatch};

pub(super) fn angles(cos: &mut [f32], sin: &mut [f32], positions: &[u32], rotary: &Rotary) {
    let len = rotary.frequencies.len() * LANES;
    let outputs = cos
        .par_chunks_exact_mut(len)
        .zip(sin.par_chunks_exact_mut(len));
    outputs
        .zip(positions.par_chunks(LANES))
        .for_each(|((cos, sin), positions)| {
            for (i, frequency) in rotary.frequencies.iter().enumerate() {
                for lane in 0..LANES {
                    let position = positions.get(lane).copied().unwrap_or(0);
                    let at = i * LANES + lane;
                    (sin[at], cos[at]) = rotary.turn_of(position, *frequency);
                }
            }
        });
}

pub(super) fn turn(x: &mut ActivationsMut<'_>, angles: Angles<'_>, direction: f32) {
    let (blocks, len) = (x.blocks(), x.width() * LANES);
    let half = angles.half(blocks);
    x.data()
        .par_chunks_exact_mut(len)
        .enumerate()
        .for_each(|(block, x)| {
            let (cos, sin) = angles.block(block, half);
            for head in x.chunks_exact_mut(2 * half * LANES) {
                let (first, second) = head.split_at_mut(half * LANES);
                dispatch(Turn {
                    first,
                    second,
                    cos,
                    sin,
                    direction,
                });
            }
        });
}

struct Turn<'a> {
    first: &'a mut [f32],
    second: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    direction: f32,
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let direction = simd.splat_f32s(self.direction);
        let (first, _) = S::as_mut_simd_f32s(self.first);
        let (second, _) = S::as_mut_simd_f32s(self.second);
        let (cos, _) = S::as_simd_f32s(self.cos);
        let (sin, _) = S::as_simd_f32s(self.sin);
        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
            let sin = simd.mul_f32s(*sin, direction);
            let turned = simd.negate_mul_add_f32s(*b, sin, simd.mul_f32s(*a, *cos));
            *b = simd.mul_add_f32s(*a, sin, simd.mul_f32s(*b, *cos));
            *a = turned;
        }
    }
}
