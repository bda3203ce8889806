//! Softmax over the vocabulary on the CPU, one token per lane, in parts of the vocabulary.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::device::{
    Activations, ActivationsMut, LANES,
    math::{dispatch, exp},
};

/// Logits of a token that one task looks at.
const PART: usize = 2048;

/// Logits that are compared before any of them is summed, so that few sums have to be scaled down again.
const RUN: usize = 64;

/// Number of parts of a vocabulary.
pub(super) fn parts(vocabulary: usize) -> usize {
    vocabulary.div_ceil(PART)
}

/// Maximum and sum of e^(z - maximum) of each part, `[block][part][2][lane]`.
pub(super) fn statistics(statistics: &mut [f32], logits: Activations<'_>) {
    let parts = parts(logits.width());
    let outputs = statistics.par_chunks_exact_mut(2 * LANES).enumerate();
    outputs.for_each(|(i, out)| {
        let block = logits.block(i / parts);
        let (maxima, sums) = out.split_at_mut(LANES);
        let from = i % parts * PART * LANES;
        dispatch(Statistics {
            maxima,
            sums,
            logits: &block[from..block.len().min(from + PART * LANES)],
        });
    });
}

/// ln sum e^z of each token from the statistics of its parts.
pub(super) fn combine(lse: &mut [f32], statistics: &[f32]) {
    let per_block = statistics.len() / (lse.len() / LANES);
    for (lse, statistics) in lse
        .chunks_exact_mut(LANES)
        .zip(statistics.chunks_exact(per_block))
    {
        for (lane, lse) in lse.iter_mut().enumerate() {
            let parts = || {
                statistics
                    .chunks_exact(2 * LANES)
                    .map(|part| (part[lane], part[LANES + lane]))
            };
            let maximum = parts().fold(f32::NEG_INFINITY, |max, (m, _)| max.max(m));
            let sum: f64 = parts()
                .map(|(m, sum)| f64::from(m - maximum).exp() * f64::from(sum))
                .sum();
            *lse = (f64::from(maximum) + sum.ln()) as f32;
        }
    }
}

/// The largest logit of one of `tokens` tokens from the statistics of its parts.
pub(super) fn largest(statistics: &[f32], tokens: usize, token: usize) -> f32 {
    let per_block = statistics.len() / (tokens / LANES);
    let parts = statistics[token / LANES * per_block..][..per_block].chunks_exact(2 * LANES);
    parts.fold(f32::NEG_INFINITY, |max, part| max.max(part[token % LANES]))
}

/// `z = scale * e^(z - lse)` for the first `tokens` lanes, 0 for the others.
pub(super) fn gradients(logits: &mut ActivationsMut<'_>, lse: &[f32], tokens: usize, scale: f32) {
    let len = logits.width() * LANES;
    logits
        .data()
        .par_chunks_exact_mut(len)
        .enumerate()
        .for_each(|(block, logits)| {
            let scales: [f32; LANES] = std::array::from_fn(|lane| {
                if block * LANES + lane < tokens {
                    scale
                } else {
                    0.0
                }
            });
            logits.par_chunks_mut(PART * LANES).for_each(|logits| {
                dispatch(Gradients {
                    logits,
                    lse: &lse[block * LANES..][..LANES],
                    scales: &scales,
                });
            });
        });
}

struct Statistics<'a> {
    maxima: &'a mut [f32],
    sums: &'a mut [f32],
    logits: &'a [f32],
}

impl WithSimd for Statistics<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (maxima, _) = S::as_mut_simd_f32s(self.maxima);
        let (sums, _) = S::as_mut_simd_f32s(self.sums);
        let registers = sums.len();
        maxima.fill(simd.splat_f32s(f32::MIN));
        sums.fill(simd.splat_f32s(0.0));
        for run in self.logits.chunks(RUN * LANES) {
            let (run, _) = S::as_simd_f32s(run);
            for (register, (maximum, sum)) in maxima.iter_mut().zip(sums.iter_mut()).enumerate() {
                let logits = || run[register..].iter().step_by(registers);
                let new = logits().fold(*maximum, |max, z| simd.max_f32s(max, *z));
                let mut parts = [simd.splat_f32s(0.0); 2];
                for (i, z) in logits().enumerate() {
                    parts[i % 2] = simd.add_f32s(parts[i % 2], exp(simd, simd.sub_f32s(*z, new)));
                }
                let shrink = exp(simd, simd.sub_f32s(*maximum, new));
                *sum = simd.mul_add_f32s(*sum, shrink, simd.add_f32s(parts[0], parts[1]));
                *maximum = new;
            }
        }
    }
}

struct Gradients<'a> {
    logits: &'a mut [f32],
    lse: &'a [f32],
    scales: &'a [f32],
}

impl WithSimd for Gradients<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (lse, _) = S::as_simd_f32s(self.lse);
        let (scales, _) = S::as_simd_f32s(self.scales);
        for logits in self.logits.chunks_exact_mut(LANES) {
            let (logits, _) = S::as_mut_simd_f32s(logits);
            for ((z, lse), scale) in logits.iter_mut().zip(lse).zip(scales) {
                *z = simd.mul_f32s(*scale, exp(simd, simd.sub_f32s(*z, *lse)));
            }
        }
    }
}
