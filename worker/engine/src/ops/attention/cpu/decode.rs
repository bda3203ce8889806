//! Attention of one new token over a cache of keys and values.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{super::Heads, Head};
use crate::device::{
    Activations, LANES,
    math::{dispatch, exp},
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
            // Even and odd features apart; heads have whole pairs of them.
            let (mut even, mut odd) = ([zero; R], [zero; R]);
            let (pairs, _) = keys.as_chunks::<2>();
            let (queries, _) = self.q.as_chunks::<2>();
            for (keys, q) in pairs.iter().zip(queries) {
                let q = [simd.splat_f32s(q[0]), simd.splat_f32s(q[1])];
                for r in 0..R {
                    even[r] = simd.mul_add_f32s(q[0], keys[0][r], even[r]);
                    odd[r] = simd.mul_add_f32s(q[1], keys[1][r], odd[r]);
                }
            }
            for ((score, even), odd) in scores.iter_mut().zip(even).zip(odd) {
                *score = simd.mul_f32s(simd.add_f32s(even, odd), scale);
            }
        }
        let seen = self.seen.start - first * LANES..self.seen.end - first * LANES;
        let maximum = self.scores[seen.clone()]
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        for score in S::as_mut_simd_f32s(self.scores).0 {
            *score = exp(simd, simd.sub_f32s(*score, simd.splat_f32s(maximum)));
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
            let mut sums = [zero; FEATURES];
            for (block, scores) in scores.iter().enumerate() {
                let values = &self.v.block(first + block)[features * FEATURES * LANES..];
                let (values, _) = S::as_simd_f32s(&values[..FEATURES * LANES]);
                let (values, _) = values.as_chunks::<R>();
                for (f, sum) in sums.iter_mut().enumerate() {
                    for r in 0..R {
                        *sum = simd.mul_add_f32s(values[f][r], scores[r], *sum);
                    }
                }
            }
            for (o, sum) in o.iter_mut().zip(sums) {
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
