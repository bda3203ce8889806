//! Attention's forward pass on the CPU: a block of queries against a few blocks of keys at a time.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{
    super::{Heads, Sequences},
    Head, KEY_BLOCKS, Mask, SCORES,
};
use crate::device::{
    Activations, ActivationsMut, LANES,
    math::{dispatch, exp},
};

/// Below every real score; still finite, so that differences of two of them are no NaN.
const NOTHING: f32 = -1e30;

pub(in super::super) fn forward(
    o: &mut ActivationsMut<'_>,
    lse: &mut [f32],
    (q, k, v): (Activations<'_>, Activations<'_>, Activations<'_>),
    sequences: Sequences<'_>,
    first_block: usize,
    heads: Heads,
) {
    let len = heads.dim * LANES;
    let outputs = o
        .data()
        .par_chunks_exact_mut(len)
        .zip(lse.par_chunks_exact_mut(LANES));
    let tasks = outputs
        .zip(q.data().par_chunks_exact(len))
        .enumerate()
        .with_max_len(1);
    tasks.for_each(|(i, ((o, lse), q))| {
        let (block, head) = (i / heads.queries, i % heads.queries);
        let keys = heads.key_of(head);
        dispatch(Forward {
            o,
            lse,
            q,
            k: Head::new(k, keys, heads.dim),
            v: Head::new(v, keys, heads.dim),
            starts: sequences.block(block),
            block: first_block + block,
            scale: heads.scale(),
        });
    });
}

/// One block of queries of one head.
struct Forward<'a> {
    o: &'a mut [f32],
    lse: &'a mut [f32],
    q: &'a [f32],
    k: Head<'a>,
    v: Head<'a>,
    starts: &'a [f32],
    block: usize,
    scale: f32,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut maxima = [NOTHING; LANES];
        let mut sums = [0.0; LANES];
        let mut scores = [0.0; KEY_BLOCKS * SCORES];
        self.o.fill(0.0);
        let first = self.starts.iter().copied().fold(f32::INFINITY, f32::min) as usize / LANES;
        for chunk in (first..=self.block).step_by(KEY_BLOCKS) {
            let count = KEY_BLOCKS.min(self.block + 1 - chunk);
            let scores = &mut scores[..count * SCORES];
            let mut hidden = false;
            for (i, scores) in scores.chunks_exact_mut(SCORES).enumerate() {
                self.k.dot(simd, scores, chunk + i, self.q, self.scale);
                let mask = Mask {
                    starts: self.starts,
                    queries: self.block,
                    keys: chunk + i,
                };
                if mask.hides_any() {
                    hidden = true;
                    mask.apply(simd, scores, NOTHING);
                }
            }
            let running = (&mut maxima, &mut sums);
            if hidden {
                softmax::<S, true>(simd, scores, running, self.o);
            } else {
                softmax::<S, false>(simd, scores, running, self.o);
            }
            self.v.add_weighted(simd, self.o, chunk, scores);
        }
        finish(self.o, self.lse, &maxima, &sums);
    }
}

/// Replaces scores by e^(score - maximum) with the running maximum, and brings what was summed so far to it.
#[inline(always)]
fn softmax<S: Simd, const HIDDEN: bool>(
    simd: S,
    scores: &mut [f32],
    (maxima, sums): (&mut [f32; LANES], &mut [f32; LANES]),
    o: &mut [f32],
) {
    let (maxima, _) = S::as_mut_simd_f32s(maxima);
    let (sums, _) = S::as_mut_simd_f32s(sums);
    let (scores, _) = S::as_mut_simd_f32s(scores);
    let (o, _) = S::as_mut_simd_f32s(o);
    let registers = maxima.len();
    for (register, (maximum, sum)) in maxima.iter_mut().zip(sums).enumerate() {
        let new = scores[register..]
            .iter()
            .step_by(registers)
            .fold(*maximum, |max, score| simd.max_f32s(max, *score));
        let mut parts = [simd.splat_f32s(0.0); 4];
        for (i, score) in scores[register..].iter_mut().step_by(registers).enumerate() {
            let mut p = exp(simd, simd.sub_f32s(*score, new));
            if HIDDEN {
                let seen = simd.greater_than_f32s(*score, simd.splat_f32s(0.5 * NOTHING));
                p = simd.select_f32s(seen, p, simd.splat_f32s(0.0));
            }
            *score = p;
            parts[i % 4] = simd.add_f32s(parts[i % 4], p);
        }
        let part = simd.add_f32s(
            simd.add_f32s(parts[0], parts[1]),
            simd.add_f32s(parts[2], parts[3]),
        );
        let shrink = exp(simd, simd.sub_f32s(*maximum, new));
        *sum = simd.mul_add_f32s(*sum, shrink, part);
        *maximum = new;
        for o in o[register..].iter_mut().step_by(registers) {
            *o = simd.mul_f32s(*o, shrink);
        }
    }
}

/// Divides by the sums, and keeps their logarithms; lanes that saw nothing stay zero.
#[inline(always)]
fn finish(o: &mut [f32], lse: &mut [f32], maxima: &[f32; LANES], sums: &[f32; LANES]) {
    let mut inverse = [0.0; LANES];
    for lane in 0..LANES {
        let (sum, seen) = (sums[lane], sums[lane] > 0.0);
        inverse[lane] = if seen { 1.0 / sum } else { 0.0 };
        lse[lane] = if seen { maxima[lane] + sum.ln() } else { 0.0 };
    }
    for o in o.chunks_exact_mut(LANES) {
        for (o, inverse) in o.iter_mut().zip(&inverse) {
            *o *= inverse;
        }
    }
}
