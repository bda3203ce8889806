//! Outer products summed over tokens: the gradients of weights.

use rayon::prelude::*;

use super::{
    Activations, ActivationsMut, LANES, PANEL, Shared,
    product::Grid,
    tile::{Term, TileJob, Weights},
    transpose_block,
};

/// Blocks of tokens that are summed at once, so that what a task reads of them stays near.
const BLOCKS: usize = 8;

/// Blocks of columns per task.
const COLUMNS: usize = 16;

/// `c[i][j] += sum over tokens of p[token][i] * q[token][j]`, with `c` row-major `[p.width, q.width]`.
///
/// `scratch` needs [`outer_scratch`] values. Tokens are summed in one order, however many threads there are.
pub(crate) fn accumulate_outer(
    c: &mut [f32],
    p: Activations<'_>,
    q: Activations<'_>,
    scratch: &mut [f32],
) {
    accumulate_outer_beside(c, p, q, scratch, &|_| ());
}

/// [`accumulate_outer`], and `y = scale * m^T p` with `m` row-major `[p.width, y.width]`: where one side is narrow, both
/// are done with some blocks of `p` while these are near.
pub(crate) fn accumulate_outer_and_multiply(
    c: &mut [f32],
    p: Activations<'_>,
    q: Activations<'_>,
    scratch: &mut [f32],
    (y, m, scale): (&mut ActivationsMut<'_>, &[f32], f32),
) {
    let (rows, depth) = (y.width(), p.width());
    assert_eq!(
        (m.len(), y.blocks()),
        (rows * depth, p.blocks()),
        "shapes of a product"
    );
    let y = Shared::new(y.data());
    accumulate_outer_beside(c, p, q, scratch, &|(first, end)| {
        let term = Term {
            weights: Weights::Strided {
                start: m.as_ptr(),
                row_stride: 1,
                step_stride: rows,
            },
            depth,
            x: p.data().as_ptr(),
            x_block: depth * LANES,
        };
        let job = TileJob {
            y: y.pointer(0),
            y_row: LANES,
            y_block: rows * LANES,
            start: std::ptr::null(),
            terms: &[term],
            scale,
            rows: (0, rows),
            blocks: (first, end),
            lanes: LANES,
        };
        // SAFETY: the slices are borrowed, with the shapes asserted above, and every block is asked for once.
        unsafe { job.dispatch() };
    });
}

/// First block, and the one behind the last.
type Blocks = (usize, usize);

/// [`accumulate_outer`], with `beside` called once for every block, in parts, on the thread that reads them next.
fn accumulate_outer_beside(
    c: &mut [f32],
    p: Activations<'_>,
    q: Activations<'_>,
    scratch: &mut [f32],
    beside: &(dyn Fn(Blocks) + Sync),
) {
    let shape = (p.width() * q.width(), p.blocks());
    assert_eq!((c.len(), q.blocks()), shape, "shapes of an outer product");
    if is_wide(p.width(), q.width()) {
        let blocks = (0..p.blocks()).into_par_iter().with_max_len(1);
        blocks.for_each(|block| beside((block, block + 1)));
        wide(c, p, q, scratch);
    } else if p.width() >= q.width() {
        let (rank, c) = (q.width(), Shared::new(c));
        Narrow::new(p, q).sums(scratch, beside, |first, sums, padded| {
            let rows = sums.len() / padded;
            // SAFETY: `sums` calls this once for every row of `p`.
            let c = unsafe { c.part(first * rank, rows * rank) };
            for (c, sums) in c.chunks_exact_mut(rank).zip(sums.chunks_exact(padded)) {
                c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum);
            }
        });
    } else {
        let (width, rank, c) = (q.width(), p.width(), Shared::new(c));
        Narrow::new(q, p).sums(scratch, beside, |first, sums, padded| {
            for r in 0..rank {
                // SAFETY: `sums` calls this once for every column of `c`.
                let c = unsafe { c.part(r * width + first, sums.len() / padded) };
                let sums = sums[r..].iter().step_by(padded);
                c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum);
            }
        });
    }
}

/// Values of scratch that [`accumulate_outer`] needs for these widths.
pub(crate) fn outer_scratch(blocks: usize, p: usize, q: usize) -> usize {
    if is_wide(p, q) {
        return blocks * LANES * q;
    }
    let (tall, narrow) = (p.max(q), p.min(q));
    let transposed = blocks * LANES * narrow.next_multiple_of(LANES);
    transposed + group_count(blocks) * tall * padded_rank(narrow)
}

/// Whether an outer product is large and regular enough to be summed up where it belongs.
fn is_wide(p: usize, q: usize) -> bool {
    q.is_multiple_of(LANES) && p >= 2 * LANES
}

/// Adds to `c` in place, a few rows and columns per task.
fn wide(c: &mut [f32], p: Activations<'_>, q: Activations<'_>, scratch: &mut [f32]) {
    let (blocks, width) = (p.blocks(), q.width());
    let transposed = &mut scratch[..blocks * LANES * width];
    let chunk_len = blocks * LANES * LANES;
    transposed
        .par_chunks_exact_mut(chunk_len)
        .enumerate()
        .for_each(|(chunk, out)| transpose_chunk(out, q, chunk, (0, blocks)));
    let sums = Shared::new(c);
    let transposed = &*transposed;
    Grid::new(width / LANES, p.width(), COLUMNS, PANEL).for_each(|rows, columns| {
        // Blocks often lie a multiple of the cache's size apart, so that rows of many of them push each other out.
        let mut near = [0.0; BLOCKS * PANEL * LANES];
        for first in (0..blocks).step_by(BLOCKS) {
            let end = blocks.min(first + BLOCKS);
            for row in (rows.0..rows.1).step_by(PANEL) {
                let height = PANEL.min(rows.1 - row);
                let len = height * LANES;
                for (block, near) in (first..end).zip(near.chunks_exact_mut(len)) {
                    near.copy_from_slice(&p.block(block)[row * LANES..][..len]);
                }
                let term = Term {
                    weights: Weights::Blocks {
                        start: near.as_ptr(),
                        block: len,
                    },
                    depth: (end - first) * LANES,
                    x: transposed[first * LANES * LANES..].as_ptr(),
                    x_block: chunk_len,
                };
                let y = sums.pointer(row * width);
                let job = TileJob {
                    y,
                    y_row: width,
                    y_block: LANES,
                    start: y,
                    terms: &[term],
                    scale: 1.0,
                    rows: (0, height),
                    blocks: columns,
                    lanes: LANES,
                };
                // SAFETY: all slices are borrowed by the arguments, with the shapes that `accumulate_outer` asserts,
                // or live on the stack, and the grid's tasks write disjoint rows and columns of the sums.
                unsafe { job.dispatch() };
            }
        }
    });
}

/// An outer product with one narrow side: the gradient of a pair's A or B.
///
/// Both sides are read once and in order, which is most of the work; so the blocks are cut into groups, whose sums
/// are added up at the end. The groups depend on the number of blocks alone.
struct Narrow<'a> {
    tall: Activations<'a>,
    narrow: Activations<'a>,
    /// Width of a row of sums.
    padded: usize,
}

/// Groups of blocks that are summed by themselves.
fn group_count(blocks: usize) -> usize {
    const LEAST: usize = 4;
    const MOST_GROUPS: usize = 16;
    blocks.div_ceil(LEAST).min(MOST_GROUPS)
}

/// A rank rounded up to whole registers, or whole blocks.
fn padded_rank(rank: usize) -> usize {
    if rank <= LANES / 2 {
        LANES / 2
    } else {
        rank.next_multiple_of(LANES)
    }
}

impl<'a> Narrow<'a> {
    fn new(tall: Activations<'a>, narrow: Activations<'a>) -> Self {
        Self {
            tall,
            narrow,
            padded: padded_rank(narrow.width()),
        }
    }

    /// Calls `each` with parts of `sum over tokens of tall[token][i] * narrow[token][r]`: the first i, the sums
    /// `[i][r]`, and the width of one row of them. Every i comes once, from any thread.
    fn sums(
        &self,
        scratch: &mut [f32],
        beside: &(dyn Fn(Blocks) + Sync),
        each: impl Fn(usize, &[f32], usize) + Sync,
    ) {
        let (blocks, tall) = (self.tall.blocks(), self.tall.width());
        let groups = group_count(blocks);
        let len = tall * self.padded;
        let transposed_len = blocks * LANES * self.narrow.width().next_multiple_of(LANES);
        let (transposed, rest) = scratch.split_at_mut(transposed_len);
        let (transposed, sums) = (Shared::new(transposed), &mut rest[..groups * len]);
        let bound = |group: usize| group * blocks / groups;
        sums.par_chunks_exact_mut(len)
            .enumerate()
            .with_max_len(1)
            .for_each(|(group, sums)| {
                let (first, end) = (bound(group), bound(group + 1));
                let width = transposed_len / blocks;
                // SAFETY: every group has blocks of its own.
                let transposed = unsafe { transposed.part(first * width, (end - first) * width) };
                self.group(sums, transposed, (first, end), beside);
            });
        const ROWS: usize = 64;
        let sums = Shared::new(sums);
        (0..tall.div_ceil(ROWS)).into_par_iter().for_each(|part| {
            let first = part * ROWS;
            let rows = ROWS.min(tall - first);
            let part = |group: usize| {
                // SAFETY: every part has rows of its own, and the groups lie one behind the other.
                unsafe { sums.part(group * len + first * self.padded, rows * self.padded) }
            };
            let total = part(0);
            for group in 1..groups {
                total
                    .iter_mut()
                    .zip(&*part(group))
                    .for_each(|(total, sum)| *total += sum);
            }
            each(first, total, self.padded);
        });
    }

    /// Sets the sums over one group's blocks; `transposed` has room for its part of the narrow side.
    fn group(
        &self,
        sums: &mut [f32],
        transposed: &mut [f32],
        (first, end): Blocks,
        beside: &(dyn Fn(Blocks) + Sync),
    ) {
        let chunk_len = (end - first) * LANES * LANES;
        for (chunk, out) in transposed.chunks_exact_mut(chunk_len).enumerate() {
            transpose_chunk(out, self.narrow, chunk, (first, end));
        }
        for from in (first..end).step_by(NEAR) {
            let to = end.min(from + NEAR);
            beside((from, to));
            let term = Term {
                weights: block_rows(self.tall, from),
                depth: (to - from) * LANES,
                x: transposed[(from - first) * LANES * LANES..].as_ptr(),
                x_block: chunk_len,
            };
            let job = TileJob {
                y: sums.as_mut_ptr(),
                y_row: self.padded,
                y_block: LANES,
                start: if from == first {
                    std::ptr::null()
                } else {
                    sums.as_ptr()
                },
                terms: &[term],
                scale: 1.0,
                rows: (0, self.tall.width()),
                blocks: (0, self.padded.div_ceil(LANES)),
                lanes: self.padded.min(LANES),
            };
            // SAFETY: the sums are borrowed mutably and as long as the shapes say, the rest is borrowed.
            unsafe { job.dispatch() };
        }
    }
}

/// Blocks of a group that are read together.
const NEAR: usize = 4;

/// Activations as the broadcast side: rows are features, steps the tokens from block `first` on.
fn block_rows(x: Activations<'_>, first: usize) -> Weights {
    Weights::Blocks {
        start: x.block(first).as_ptr(),
        block: x.width() * LANES,
    }
}

/// `out[token][lane] = x[token][chunk * LANES + lane]` for the tokens of some blocks; missing features are zero.
fn transpose_chunk(
    out: &mut [f32],
    x: Activations<'_>,
    chunk: usize,
    (first, end): (usize, usize),
) {
    let features = (chunk * LANES, x.width().min((chunk + 1) * LANES));
    for (block, out) in (first..end).zip(out.chunks_exact_mut(LANES * LANES)) {
        transpose_block(out, &x.block(block)[features.0 * LANES..features.1 * LANES]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::padded_tokens,
        ops::test_values::{assert_close, blocks, values},
    };

    #[test]
    fn a_product_with_the_same_activations_comes_along() {
        for (tokens, width, rank) in [(33, 50, 16), (2100, 20, 5), (70, 64, 32)] {
            let (p, q) = (values(1, tokens * width), values(2, tokens * rank));
            let m = values(3, width * rank);
            let mut expected = vec![0.0; tokens * rank];
            for (expected, p) in expected.chunks_mut(rank).zip(p.chunks(width)) {
                for (p, m) in p.iter().zip(m.chunks(rank)) {
                    let products = m.iter().map(|m| 0.5 * f64::from(*p) * f64::from(*m));
                    expected
                        .iter_mut()
                        .zip(products)
                        .for_each(|(e, product)| *e += product);
                }
            }
            let (pb, qb) = (blocks(&p, tokens), blocks(&q, tokens));
            let (p, q) = (Activations::new(&pb, width), Activations::new(&qb, rank));
            let mut y = vec![f32::NAN; padded_tokens(tokens) * rank];
            let mut y = ActivationsMut::new(&mut y, rank);
            let mut scratch = vec![f32::NAN; outer_scratch(p.blocks(), width, rank)];
            let (mut c, mut alone) = (vec![0.0; m.len()], vec![0.0; m.len()]);
            accumulate_outer(&mut alone, p, q, &mut scratch);
            accumulate_outer_and_multiply(&mut c, p, q, &mut scratch, (&mut y, &m, 0.5));
            assert_eq!(c, alone);
            assert_close(
                "product",
                &y.view().to_rows(tokens),
                &expected,
                1e-6 * width as f64,
            );
        }
    }

    #[test]
    fn outer_products_add_up_over_tokens() {
        for (tokens, rows, columns) in [
            (1, 1, 3),
            (33, 16, 50),
            (300, 50, 16),
            (64, 40, 40),
            (70, 4, 4),
            (700, 64, 64),
            (130, 40, 150),
            (2100, 14, 20),
        ] {
            let (p, q) = (values(1, tokens * rows), values(2, tokens * columns));
            let before = values(3, rows * columns);
            let mut expected: Vec<f64> = before.iter().map(|&b| f64::from(b)).collect();
            for (p, q) in p.chunks(rows).zip(q.chunks(columns)) {
                for (i, expected) in expected.iter_mut().enumerate() {
                    *expected += f64::from(p[i / columns]) * f64::from(q[i % columns]);
                }
            }
            let (pb, qb) = (blocks(&p, tokens), blocks(&q, tokens));
            let mut c = before.clone();
            let mut scratch =
                vec![f32::NAN; outer_scratch(padded_tokens(tokens) / LANES, rows, columns)];
            accumulate_outer(
                &mut c,
                Activations::new(&pb, rows),
                Activations::new(&qb, columns),
                &mut scratch,
            );
            assert_close("product", &c, &expected, 1e-6 * tokens as f64);
        }
    }
}
