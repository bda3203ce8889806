//! Attention of one new token over a cache of keys and values.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{super::Heads, Head};
use crate::device::{
    Activations, LANES,
    math::{dispatch, exp},
    tile::prefetch_far,
};

/// One head's output `o` `[dim]` from its query `q` `[dim]` over the tokens `seen` of `k` and `v`.
///
/// `scores` needs as many values as `k` has tokens. Blocks without a token that is seen are not read.
pub(crate) fn attend_one(
    o: &mut [f32],
    q: &[f32],
    (k, v): (Activations<'_>, Activations<'_>),
    seen: Range<usize>,
    (heads, head): (Heads, usize),
    scores: &mut [f32],
) {
    let key_head = heads.key_of(head);
    let blocks = seen.end.div_ceil(LANES) - seen.start / LANES;
    dispatch(AttendOne {
        o,
        q,
        k: Head::new(k, key_head, heads.dim),
        v: Head::new(v, key_head, heads.dim),
        scale: heads.scale(),
        scores: &mut scores[..blocks * LANES],
        seen,
    });
}

/// One head's attention.
struct AttendOne<'a> {
    o: &'a mut [f32],
    q: &'a [f32],
    k: Head<'a>,
    v: Head<'a>,
    seen: Range<usize>,
    scale: f32,
    scores: &'a mut [f32],
}

impl WithSimd for AttendOne<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // As many registers as sums need that do not wait for each other.
        match LANES / S::F32_LANES {
            2 => self.with_registers::<S, 2>(simd),
            4 => self.with_registers::<S, 4>(simd),
            8 => self.with_registers::<S, 8>(simd),
            _ => self.with_registers::<S, LANES>(simd),
        }
    }
}

/// Features whose sums are taken side by side.
const FEATURES: usize = 4;

/// Values of a cache line.
const LINE: usize = 16;

impl AttendOne<'_> {
    /// With `R` registers for a block of tokens.
    #[inline(always)]
    fn with_registers<S: Simd, const R: usize>(self, simd: S) {
        let zero = simd.splat_f32s(0.0);
        let scale = simd.splat_f32s(self.scale);
        let first = self.seen.start / LANES;
        for (block, scores) in self.scores.chunks_exact_mut(LANES).enumerate() {
            let (scores, _) = S::as_mut_simd_f32s(scores);
            let (keys, _) = S::as_simd_f32s(self.k.block(first + block));
            let (keys, _) = keys.as_chunks::<R>();
            let (runs, rest) = keys.as_chunks::<FEATURES>();
            let (queries, last) = self.q.as_chunks::<FEATURES>();
            let mut sums = [[zero; R]; FEATURES];
            for (run, (keys, q)) in runs.iter().zip(queries).enumerate() {
                // The values are needed next, and lie where nothing has looked yet.
                let values = self.v.block(first + block)[run * FEATURES * LANES..].as_ptr();
                for line in 0..FEATURES * LANES / LINE {
                    prefetch_far(values.wrapping_add(line * LINE));
                }
                for f in 0..FEATURES {
                    let q = simd.splat_f32s(q[f]);
                    for r in 0..R {
                        sums[f][r] = simd.mul_add_f32s(q, keys[f][r], sums[f][r]);
                    }
                }
            }
            for (keys, q) in rest.iter().zip(last) {
                let q = simd.splat_f32s(*q);
                for r in 0..R {
                    sums[0][r] = simd.mul_add_f32s(q, keys[r], sums[0][r]);
                }
            }
            for (r, score) in scores.iter_mut().enumerate() {
                let (a, b) = (sums[0][r], sums[1][r]);
                let (c, d) = (sums[2][r], sums[3][r]);
                let sum = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
                *score = simd.mul_f32s(sum, scale);
            }
        }
        let seen = self.seen.start - first * LANES..self.seen.end - first * LANES;
        self.scores[..seen.start].fill(f32::NEG_INFINITY);
        self.scores[seen.end..].fill(f32::NEG_INFINITY);
        let (scores, _) = S::as_mut_simd_f32s(self.scores);
        let lowest = simd.splat_f32s(f32::NEG_INFINITY);
        let maximum = scores
            .iter()
            .fold(lowest, |most, score| simd.max_f32s(most, *score));
        let maximum = simd.splat_f32s(simd.reduce_max_f32s(maximum));
        for score in scores {
            *score = exp(simd, simd.sub_f32s(*score, maximum));
        }
        self.scores[..seen.start].fill(0.0);
        self.scores[seen.end..].fill(0.0);
        let (scores, _) = S::as_simd_f32s(self.scores);
        let sum = scores
            .iter()
            .fold(zero, |sum, score| simd.add_f32s(sum, *score));
        let inverse = 1.0 / simd.reduce_sum_f32s(sum);
        let (scores, _) = scores.as_chunks::<R>();
        let (o, o_tail) = self.o.as_chunks_mut::<FEATURES>();
        for (features, o) in o.iter_mut().enumerate() {
            let mut sums = [[zero; R]; FEATURES];
            for (block, scores) in scores.iter().enumerate() {
                let values = &self.v.block(first + block)[features * FEATURES * LANES..];
                let (values, _) = S::as_simd_f32s(&values[..FEATURES * LANES]);
                let (values, _) = values.as_chunks::<R>();
                for (sums, values) in sums.iter_mut().zip(values) {
                    for r in 0..R {
                        sums[r] = simd.mul_add_f32s(values[r], scores[r], sums[r]);
                    }
                }
            }
            for (o, sums) in o.iter_mut().zip(sums) {
                let sum = sums.iter().fold(zero, |all, sum| simd.add_f32s(all, *sum));
                *o = simd.reduce_sum_f32s(sum) * inverse;
            }
        }
        let rest = o.len() * FEATURES;
        for (feature, o) in o_tail.iter_mut().enumerate() {
            let mut sum = zero;
            for (block, scores) in scores.iter().enumerate() {
                let values = &self.v.block(first + block)[(rest + feature) * LANES..][..LANES];
                let (values, _) = S::as_simd_f32s(values);
                for (value, score) in values.iter().zip(scores) {
                    sum = simd.mul_add_f32s(*value, *score, sum);
                }
            }
            *o = simd.reduce_sum_f32s(sum) * inverse;
        }
    }
}
