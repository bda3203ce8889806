//! Attention on the CPU: tiles of scores between one block of queries and one of keys.

mod backward;
mod decode;
mod forward;

pub(super) use backward::{per_head, sum_groups};
pub(crate) use decode::attend_one;
pub(super) use forward::forward;

use pulp::Simd;

use crate::device::{
    Activations, LANES,
    tile::{Term, TileJob, Weights},
};

/// Blocks of keys whose scores are held at once.
const KEY_BLOCKS: usize = 4;

/// Values of a block of scores: keys by queries.
const SCORES: usize = LANES * LANES;

/// One head of keys or values, `[block][dim][lane]`.
#[derive(Clone, Copy)]
struct Head<'a> {
    values: Activations<'a>,
    first: usize,
    dim: usize,
}

impl<'a> Head<'a> {
    fn new(values: Activations<'a>, head: usize, dim: usize) -> Self {
        Self {
            values,
            first: head * dim * LANES,
            dim,
        }
    }

    fn block(&self, block: usize) -> &'a [f32] {
        &self.values.block(block)[self.first..][..self.dim * LANES]
    }

    /// `out[token][lane] = scale * sum over dim of self[dim][token] * x[dim][lane]` for the tokens of one block.
    #[inline(always)]
    fn dot<S: Simd>(&self, simd: S, out: &mut [f32], block: usize, x: &[f32], scale: f32) {
        assert!(out.len() == SCORES && x.len() == self.dim * LANES);
        let term = Term {
            weights: Weights::Strided {
                start: self.block(block).as_ptr(),
                row_stride: 1,
                step_stride: LANES,
            },
            depth: self.dim,
            x: x.as_ptr(),
            x_block: 0,
        };
        let job = TileJob {
            y: out.as_mut_ptr(),
            y_row: LANES,
            y_block: 0,
            start: std::ptr::null(),
            terms: &[term],
            scale,
            rows: (0, LANES),
            blocks: (0, 1),
            lanes: LANES,
        };
        // SAFETY: all slices have the lengths asserted above, and `out` is borrowed mutably.
        unsafe { job.run(simd) };
    }

    /// `out[dim][lane] += sum over tokens of self[dim][token] * x[token][lane]` for some neighbouring blocks.
    #[inline(always)]
    fn add_weighted<S: Simd>(&self, simd: S, out: &mut [f32], first_block: usize, x: &[f32]) {
        let count = x.len() / SCORES;
        assert!(out.len() == self.dim * LANES && count <= KEY_BLOCKS);
        let mut terms = [Term::EMPTY; KEY_BLOCKS];
        for (i, (term, x)) in terms.iter_mut().zip(x.chunks_exact(SCORES)).enumerate() {
            *term = Term {
                weights: Weights::Strided {
                    start: self.block(first_block + i).as_ptr(),
                    row_stride: LANES,
                    step_stride: 1,
                },
                depth: LANES,
                x: x.as_ptr(),
                x_block: 0,
            };
        }
        let job = TileJob {
            y: out.as_mut_ptr(),
            y_row: LANES,
            y_block: 0,
            start: out.as_ptr(),
            terms: &terms[..count],
            scale: 1.0,
            rows: (0, self.dim),
            blocks: (0, 1),
            lanes: LANES,
        };
        // SAFETY: all slices have the lengths asserted above, and `out` is borrowed mutably.
        unsafe { job.run(simd) };
    }
}

/// Which keys of one block the queries of another may see.
struct Mask<'a> {
    /// First token that each query may see.
    starts: &'a [f32],
    /// The queries' block.
    queries: usize,
    /// The keys' block.
    keys: usize,
}

impl Mask<'_> {
    /// Whether any query may not see any key.
    #[inline(always)]
    fn hides_any(&self) -> bool {
        let first = (self.keys * LANES) as f32;
        self.keys == self.queries || self.starts.iter().any(|&start| start > first)
    }

    /// Replaces what may not be seen by `hidden`.
    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, scores: &mut [f32], hidden: f32) {
        let (starts, _) = S::as_simd_f32s(self.starts);
        let lanes: [f32; LANES] = std::array::from_fn(|lane| (self.queries * LANES + lane) as f32);
        let (queries, _) = S::as_simd_f32s(&lanes);
        let hidden = simd.splat_f32s(hidden);
        for (key, scores) in scores.chunks_exact_mut(LANES).enumerate() {
            let key = simd.splat_f32s((self.keys * LANES + key) as f32);
            let (scores, _) = S::as_mut_simd_f32s(scores);
            for ((score, start), query) in scores.iter_mut().zip(starts).zip(queries) {
                let seen = simd.and_m32s(
                    simd.less_than_or_equal_f32s(*start, key),
                    simd.less_than_or_equal_f32s(key, *query),
                );
                *score = simd.select_f32s(seen, *score, hidden);
            }
        }
    }
}
