//! Attention's backward pass on the CPU: every head of every sequence on its own, then the sums over groups of heads.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{
    super::{Heads, Sequences},
    Head, Mask, SCORES,
};
use crate::device::{
    Activations, ActivationsMut, LANES, Shared,
    math::{dispatch, exp},
    tile::{Term, TileJob, Weights},
    transpose_block, with_own_memory,
};

/// Blocks of queries that go through the keys together, so that sums over queries are long.
const QUERY_BLOCKS: usize = 2;

/// Gradients of keys and values for every query head, `[head][k or v][chunk of features][token][feature]`.
#[derive(Clone, Copy)]
pub(in super::super) struct HeadSums<'a> {
    values: &'a [f32],
    tokens: usize,
    chunks: usize,
}

/// Sets `dq`, and gives the gradients of `k` and `v` by query head.
pub(in super::super) fn per_head<'a>(
    dq: &mut ActivationsMut<'_>,
    (d_o, o, lse): (Activations<'_>, Activations<'_>, &[f32]),
    (q, k, v): (Activations<'_>, Activations<'_>, Activations<'_>),
    sequences: Sequences<'_>,
    heads: Heads,
    scratch: &'a mut [f32],
) -> HeadSums<'a> {
    let (tokens, chunks) = (q.blocks() * LANES, heads.dim.div_ceil(LANES));
    let len = heads.queries * 2 * chunks * tokens * LANES;
    let values = &mut scratch[..len];
    clear_past_the_last_token(dq, values, sequences);
    let sums = Shared::new(values);
    let dq = Shared::new(dq.data());
    let count = sequences.offsets.len() - 1;
    (0..count * heads.queries)
        .into_par_iter()
        .with_max_len(1)
        .for_each(|i| {
            let (sequence, head) = (i / heads.queries, i % heads.queries);
            let key_head = heads.key_of(head);
            let task = Backward {
                tokens: (sequences.offsets[sequence], sequences.offsets[sequence + 1]),
                sequences,
                q: Head::new(q, head, heads.dim),
                d_o: Head::new(d_o, head, heads.dim),
                o: Head::new(o, head, heads.dim),
                k: Head::new(k, key_head, heads.dim),
                v: Head::new(v, key_head, heads.dim),
                lse,
                dq,
                sums,
                sums_tokens: tokens,
                head,
                heads,
            };
            with_own_memory(QUERY_BLOCKS * Queries::len(heads.dim), |memory| {
                dispatch(Task { task, memory });
            });
        });
    HeadSums {
        values,
        tokens,
        chunks,
    }
}

/// Zeroes the lanes of `dq` and the rows of the sums that belong to no sequence.
fn clear_past_the_last_token(
    dq: &mut ActivationsMut<'_>,
    sums: &mut [f32],
    sequences: Sequences<'_>,
) {
    let tokens = dq.view().tokens();
    let end = sequences.offsets[sequences.offsets.len() - 1];
    let last_block = (tokens - LANES) * dq.width();
    for lanes in dq.data()[last_block..].chunks_exact_mut(LANES) {
        lanes[end - (tokens - LANES)..].fill(0.0);
    }
    for rows in sums.chunks_exact_mut(tokens * LANES) {
        rows[end * LANES..].fill(0.0);
    }
}

/// `dk` and `dv` as sums over the query heads of each group, in order.
pub(in super::super) fn sum_groups(
    (dk, dv): (&mut ActivationsMut<'_>, &mut ActivationsMut<'_>),
    sums: HeadSums<'_>,
    heads: Heads,
) {
    let group = heads.queries / heads.keys;
    let len = heads.dim * LANES;
    for (which, gradient) in [dk.data(), dv.data()].into_iter().enumerate() {
        gradient
            .par_chunks_exact_mut(len)
            .enumerate()
            .for_each(|(i, out)| {
                let (block, key_head) = (i / heads.keys, i % heads.keys);
                let mut total = [0.0; SCORES];
                let mut transposed = [0.0; SCORES];
                for (chunk, out) in out.chunks_mut(SCORES).enumerate() {
                    total.fill(0.0);
                    for head in key_head * group..(key_head + 1) * group {
                        let at = ((head * 2 + which) * sums.chunks + chunk) * sums.tokens
                            + block * LANES;
                        let part = &sums.values[at * LANES..][..SCORES];
                        total
                            .iter_mut()
                            .zip(part)
                            .for_each(|(total, part)| *total += part);
                    }
                    transpose_block(&mut transposed, &total);
                    out.copy_from_slice(&transposed[..out.len()]);
                }
            });
    }
}

/// One head of one sequence.
struct Backward<'a> {
    tokens: (usize, usize),
    sequences: Sequences<'a>,
    q: Head<'a>,
    d_o: Head<'a>,
    o: Head<'a>,
    k: Head<'a>,
    v: Head<'a>,
    lse: &'a [f32],
    dq: Shared<'a>,
    sums: Shared<'a>,
    sums_tokens: usize,
    head: usize,
    heads: Heads,
}

/// A task with its thread's memory.
struct Task<'a> {
    task: Backward<'a>,
    /// For as many blocks of queries as go together, [`Queries::len`] each.
    memory: &'a mut [f32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { task, memory } = self;
        let (first, last) = (task.tokens.0 / LANES, (task.tokens.1 - 1) / LANES);
        task.clear_sums();
        for block in (first..=last).step_by(QUERY_BLOCKS) {
            let count = QUERY_BLOCKS.min(last + 1 - block);
            let mut parts = memory.chunks_exact_mut(Queries::len(task.heads.dim));
            let mut queries: [Queries<'_>; QUERY_BLOCKS] = std::array::from_fn(|i| {
                let part = parts.next().unwrap_or_default();
                Queries::new(&task, block + i.min(count - 1), part)
            });
            task.through_keys(simd, &mut queries[..count]);
        }
    }
}

/// One block of queries on its way through the keys.
struct Queries<'a> {
    block: usize,
    q: &'a [f32],
    d_o: &'a [f32],
    /// First token that each lane sees.
    starts: [f32; LANES],
    delta: [f32; LANES],
    lse: &'a [f32],
    /// Transposed `q` and `d_o`, `[chunk of features][lane][feature]`.
    q_rows: &'a mut [f32],
    do_rows: &'a mut [f32],
    /// `[feature][lane]`.
    dq: &'a mut [f32],
    /// `[key][lane]`, as `ds`.
    p: &'a mut [f32],
    ds: &'a mut [f32],
}

impl<'a> Queries<'a> {
    /// Values of memory that a block needs.
    fn len(dim: usize) -> usize {
        2 * dim.next_multiple_of(LANES) * LANES + dim * LANES + 2 * SCORES
    }

    #[inline(always)]
    fn new(task: &Backward<'a>, block: usize, memory: &'a mut [f32]) -> Self {
        let (dim, heads) = (task.heads.dim, task.heads.queries);
        let (q, d_o) = (task.q.block(block), task.d_o.block(block));
        let (q_rows, rest) = memory.split_at_mut(dim.next_multiple_of(LANES) * LANES);
        let (do_rows, rest) = rest.split_at_mut(q_rows.len());
        let (dq, rest) = rest.split_at_mut(dim * LANES);
        let (p, ds) = rest.split_at_mut(SCORES);
        rows(q_rows, q);
        rows(do_rows, d_o);
        dq.fill(0.0);
        Self {
            block,
            q,
            d_o,
            starts: task.starts(block),
            delta: lane_dots(d_o, task.o.block(block)),
            lse: &task.lse[(block * heads + task.head) * LANES..][..LANES],
            q_rows,
            do_rows,
            dq,
            p,
            ds,
        }
    }
}

impl<'a> Backward<'a> {
    /// Some neighbouring blocks of queries, with each block of keys that any of them sees.
    #[inline(always)]
    fn through_keys<S: Simd>(&self, simd: S, queries: &mut [Queries<'a>]) {
        let starts = queries.iter().flat_map(|queries| queries.starts);
        let first_key = starts.fold(f32::INFINITY, f32::min) as usize / LANES;
        let (first, last) = (queries[0].block, queries[queries.len() - 1].block);
        for keys in first_key..=last {
            let seeing = &mut queries[keys.saturating_sub(first)..];
            for queries in seeing.iter_mut() {
                self.scores(simd, queries, keys);
                self.k.add_weighted(simd, queries.dq, keys, queries.ds);
            }
            self.add_to_sums(simd, 0, keys, seeing, |queries| {
                (&*queries.ds, &*queries.q_rows)
            });
            self.add_to_sums(simd, 1, keys, seeing, |queries| {
                (&*queries.p, &*queries.do_rows)
            });
        }
        for queries in queries {
            self.write_queries(queries.block, queries.dq);
        }
    }

    /// Sets `p` and `ds` of a block of queries and one of keys.
    #[inline(always)]
    fn scores<S: Simd>(&self, simd: S, queries: &mut Queries<'_>, keys: usize) {
        let Queries { p, ds, .. } = queries;
        let scale = self.heads.scale();
        self.k.dot(simd, p, keys, queries.q, scale);
        self.v.dot(simd, ds, keys, queries.d_o, 1.0);
        probabilities(simd, p, queries.lse);
        let mask = Mask {
            starts: &queries.starts,
            queries: queries.block,
            keys,
        };
        if mask.hides_any() {
            mask.apply(simd, p, 0.0);
        }
        score_gradients(simd, ds, p, &queries.delta, scale);
    }

    /// First token that each lane of a block may see; none for lanes of other sequences.
    #[inline(always)]
    fn starts(&self, block: usize) -> [f32; LANES] {
        let starts = self.sequences.block(block);
        std::array::from_fn(|lane| {
            let mine = (self.tokens.0..self.tokens.1).contains(&(block * LANES + lane));
            if mine { starts[lane] } else { f32::INFINITY }
        })
    }

    /// The tokens of a block that belong to this sequence, by lane.
    #[inline(always)]
    fn lanes(&self, block: usize) -> (usize, usize) {
        let first = block * LANES;
        (
            self.tokens.0.max(first) - first,
            self.tokens.1.min(first + LANES) - first,
        )
    }

    /// Start of one chunk of features in the sums of keys (0) or values (1).
    #[inline(always)]
    fn sums_at(&self, which: usize, chunk: usize) -> usize {
        let chunks = self.heads.dim.div_ceil(LANES);
        ((self.head * 2 + which) * chunks + chunk) * self.sums_tokens * LANES
    }

    /// Zeroes this task's part of the sums.
    #[inline(always)]
    fn clear_sums(&self) {
        let tokens = self.tokens.1 - self.tokens.0;
        for which in 0..2 {
            for chunk in 0..self.heads.dim.div_ceil(LANES) {
                let start = self.sums_at(which, chunk) + self.tokens.0 * LANES;
                // SAFETY: only this task touches this head's rows of this sequence's tokens.
                unsafe { self.sums.part(start, tokens * LANES) }.fill(0.0);
            }
        }
    }

    /// `sums[key][feature] += sum over queries of weights[key][query] * rows[query][feature]`, with `of` giving weights
    /// and rows of each block of queries.
    #[inline(always)]
    fn add_to_sums<'q, S: Simd>(
        &self,
        simd: S,
        which: usize,
        keys: usize,
        queries: &'q [Queries<'_>],
        of: impl Fn(&'q Queries<'_>) -> (&'q [f32], &'q [f32]),
    ) {
        let y = self.sums.pointer(self.sums_at(which, 0) + keys * SCORES);
        let mut terms = [Term::EMPTY; QUERY_BLOCKS];
        for (term, queries) in terms.iter_mut().zip(queries) {
            let (weights, rows) = of(queries);
            *term = Term {
                weights: Weights::Strided {
                    start: weights.as_ptr(),
                    row_stride: LANES,
                    step_stride: 1,
                },
                depth: LANES,
                x: rows.as_ptr(),
                x_block: SCORES,
            };
        }
        let job = TileJob {
            y,
            y_row: LANES,
            y_block: self.sums_tokens * LANES,
            start: y,
            terms: &terms[..queries.len()],
            scale: 1.0,
            rows: self.lanes(keys),
            blocks: (0, self.heads.dim.div_ceil(LANES)),
            lanes: LANES,
        };
        // SAFETY: rows are limited to this sequence's tokens, which only this task touches in this head's sums.
        unsafe { job.run(simd) };
    }

    /// Writes the lanes of `dq` that belong to this sequence.
    #[inline(always)]
    fn write_queries(&self, block: usize, dq: &[f32]) {
        let (from, to) = self.lanes(block);
        let start = (block * self.heads.queries + self.head) * self.heads.dim * LANES;
        for (feature, values) in dq.chunks_exact(LANES).enumerate() {
            // SAFETY: only this task writes these lanes, which are this sequence's tokens in this head.
            let out = unsafe { self.dq.part(start + feature * LANES + from, to - from) };
            out.copy_from_slice(&values[from..to]);
        }
    }
}

/// `rows[chunk][lane][feature]` from `values[feature][lane]`.
#[inline(always)]
fn rows(rows: &mut [f32], values: &[f32]) {
    for (out, values) in rows.chunks_exact_mut(SCORES).zip(values.chunks(SCORES)) {
        transpose_block(out, values);
    }
}

/// `sum over features of a * b`, for each lane.
#[inline(always)]
fn lane_dots(a: &[f32], b: &[f32]) -> [f32; LANES] {
    let mut dots = [0.0; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for lane in 0..LANES {
            dots[lane] += a[lane] * b[lane];
        }
    }
    dots
}

/// `scores = e^(scores - lse)`.
#[inline(always)]
fn probabilities<S: Simd>(simd: S, scores: &mut [f32], lse: &[f32]) {
    let (lse, _) = S::as_simd_f32s(lse);
    for scores in scores.chunks_exact_mut(LANES) {
        let (scores, _) = S::as_mut_simd_f32s(scores);
        for (score, lse) in scores.iter_mut().zip(lse) {
            *score = exp(simd, simd.sub_f32s(*score, *lse));
        }
    }
}

/// `ds = p * (ds - delta) * scale`, where `ds` holds the gradients of the probabilities.
#[inline(always)]
fn score_gradients<S: Simd>(simd: S, ds: &mut [f32], p: &[f32], delta: &[f32], scale: f32) {
    let (delta, _) = S::as_simd_f32s(delta);
    let scale = simd.splat_f32s(scale);
    for (ds, p) in ds.chunks_exact_mut(LANES).zip(p.chunks_exact(LANES)) {
        let (ds, _) = S::as_mut_simd_f32s(ds);
        let (p, _) = S::as_simd_f32s(p);
        for ((ds, p), delta) in ds.iter_mut().zip(p).zip(delta) {
            *ds = simd.mul_f32s(simd.mul_f32s(*p, scale), simd.sub_f32s(*ds, *delta));
        }
    }
}
