//! Attention of one new token over a cache of keys and values.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{super::Heads, Head};
use crate::device::{
    Activations, LANES,
    math::{dispatch, exp},
};

/// The heads of `o` `[queries * dim]` from the query `q` of the same width over the tokens `seen` of `k` and `v`, each
/// to be [run](AttendOne::run).
///
/// `scores` needs `queries` times [`score_tokens`] values. Blocks without a token that is seen are not read.
pub(crate) fn attend_one<'a>(
    o: &'a mut [f32],
    q: &'a [f32],
    (k, v): (Activations<'a>, Activations<'a>),
    seen: Range<usize>,
    heads: Heads,
    scores: &'a mut [f32],
) -> impl Iterator<Item = AttendOne<'a>> {
    let scores = scores.chunks_exact_mut(score_tokens(&seen));
    let outputs = o.chunks_exact_mut(heads.dim);
    let all = outputs.zip(q.chunks_exact(heads.dim)).zip(scores);
    all.enumerate().map(move |(head, ((o, q), scores))| {
        let key_head = heads.key_of(head);
        AttendOne {
            o,
            q,
            k: Head::new(k, key_head, heads.dim),
            v: Head::new(v, key_head, heads.dim),
            seen: seen.clone(),
            scale: heads.scale(),
            scores,
        }
    })
}

/// Scores of one head: the tokens `seen`, in whole blocks.
pub(crate) fn score_tokens(seen: &Range<usize>) -> usize {
    (seen.end.div_ceil(LANES) - seen.start / LANES) * LANES
}

/// One head's attention.
pub(crate) struct AttendOne<'a> {
    o: &'a mut [f32],
    q: &'a [f32],
    k: Head<'a>,
    v: Head<'a>,
    seen: Range<usize>,
    scale: f32,
    scores: &'a mut [f32],
}

impl AttendOne<'_> {
    /// Sets the head's output.
    pub(crate) fn run(self) {
        dispatch(self);
    }
}

impl WithSimd for AttendOne<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let zero = simd.splat_f32s(0.0);
        let scale = simd.splat_f32s(self.scale);
        let first = self.seen.start / LANES;
        for (block, scores) in self.scores.chunks_exact_mut(LANES).enumerate() {
            let (scores, _) = S::as_mut_simd_f32s(scores);
            let (keys, _) = S::as_simd_f32s(self.k.block(first + block));
            let registers = scores.len();
            for (register, score) in scores.iter_mut().enumerate() {
                let products = self
                    .q
                    .iter()
                    .zip(keys[register..].iter().step_by(registers));
                let dot = products.fold(zero, |sum, (q, k)| {
                    simd.mul_add_f32s(simd.splat_f32s(*q), *k, sum)
                });
                *score = simd.mul_f32s(dot, scale);
            }
        }
        let seen = self.seen.start - first * LANES..self.seen.end - first * LANES;
        let maximum = self.scores[seen.clone()]
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        let mut sum = zero;
        for score in S::as_mut_simd_f32s(self.scores).0 {
            *score = exp(simd, simd.sub_f32s(*score, simd.splat_f32s(maximum)));
        }
        self.scores[..seen.start].fill(0.0);
        self.scores[seen.end..].fill(0.0);
        for score in S::as_simd_f32s(self.scores).0 {
            sum = simd.add_f32s(sum, *score);
        }
        let inverse = 1.0 / simd.reduce_sum_f32s(sum);
        for (feature, o) in self.o.iter_mut().enumerate() {
            let mut sum = zero;
            for (block, scores) in self.scores.chunks_exact(LANES).enumerate() {
                let values = &self.v.block(first + block)[feature * LANES..][..LANES];
                let pairs = S::as_simd_f32s(values)
                    .0
                    .iter()
                    .zip(S::as_simd_f32s(scores).0);
                for (value, score) in pairs {
                    sum = simd.mul_add_f32s(*value, *score, sum);
                }
            }
            *o = simd.reduce_sum_f32s(sum) * inverse;
        }
    }
}
