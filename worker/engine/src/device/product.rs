//! Matrix products over whole activations, shared among the threads.

use rayon::prelude::*;

use super::{
    Activations, ActivationsMut, LANES, Shared, WeightMatrix,
    cache::second_level_cache,
    panels::PANEL,
    tile::{Term, TileJob, Weights},
    weight::{COLUMNS, Coded, GROUP},
    with_own_memory,
};

/// A matrix `[rows, depth]` on the left of a product, as it lies in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Matrix<'a> {
    /// A weight.
    Weight(&'a WeightMatrix),
    /// A weight, transposed.
    WeightTransposed(&'a WeightMatrix),
    /// Row-major values with this many columns.
    Rows(&'a [f32], usize),
    /// Row-major values with this many columns, transposed.
    RowsTransposed(&'a [f32], usize),
}

impl Matrix<'_> {
    fn rows(&self) -> usize {
        match *self {
            Matrix::Weight(weight) => weight.rows(),
            Matrix::WeightTransposed(weight) => weight.columns(),
            Matrix::Rows(values, columns) => values.len() / columns,
            Matrix::RowsTransposed(_, columns) => columns,
        }
    }

    fn depth(&self) -> usize {
        match *self {
            Matrix::Weight(weight) => weight.columns(),
            Matrix::WeightTransposed(weight) => weight.rows(),
            Matrix::Rows(_, columns) => columns,
            Matrix::RowsTransposed(values, columns) => values.len() / columns,
        }
    }

    /// Rows of a task are whole multiples of this, so that little is unpacked twice.
    fn rows_together(&self) -> usize {
        match self {
            Matrix::Weight(WeightMatrix::Coded(_)) => GROUP,
            Matrix::WeightTransposed(WeightMatrix::Coded(_)) => 3 * COLUMNS,
            _ => PANEL,
        }
    }

    /// The matrix for a task's `rows` and the steps `from..from + count` of its sum.
    ///
    /// Coded weights are unpacked into the front of `unpacked`, which then begins behind them.
    fn part(
        &self,
        rows: (usize, usize),
        (from, count): (usize, usize),
        unpacked: &mut &mut [f32],
    ) -> Weights {
        let mut unpack = |coded: &Coded, rows: (usize, usize), columns: (usize, usize)| {
            let width = columns.1 - columns.0;
            let len = (rows.1 - rows.0).next_multiple_of(PANEL) * width;
            let (part, rest) = std::mem::take(unpacked).split_at_mut(len);
            *unpacked = rest;
            coded.unpack(part, rows, columns);
            (part.as_ptr(), width)
        };
        match *self {
            Matrix::Weight(WeightMatrix::Panels(panels)) => Weights::Panels {
                start: panels.packed()[from * PANEL..].as_ptr(),
                columns: panels.columns(),
            },
            Matrix::WeightTransposed(WeightMatrix::Panels(panels)) => Weights::PanelsTransposed {
                start: panels.packed()[from * panels.columns()..].as_ptr(),
                columns: panels.columns(),
            },
            // Unpacked parts begin with the task's own rows, of which tiles count from the matrix's first.
            Matrix::Weight(WeightMatrix::Coded(coded)) => {
                let (start, columns) = unpack(coded, rows, (from, from + count));
                Weights::Panels {
                    start: start.wrapping_sub(rows.0 * columns),
                    columns,
                }
            }
            Matrix::WeightTransposed(WeightMatrix::Coded(coded)) => {
                let (start, columns) = unpack(coded, (from, from + count), rows);
                Weights::PanelsTransposed {
                    start: start.wrapping_sub(rows.0 * PANEL),
                    columns,
                }
            }
            Matrix::Rows(values, columns) => Weights::Strided {
                start: values[from..].as_ptr(),
                row_stride: columns,
                step_stride: 1,
            },
            Matrix::RowsTransposed(values, columns) => Weights::Strided {
                start: values[from * columns..].as_ptr(),
                row_stride: 1,
                step_stride: columns,
            },
        }
    }
}

/// A matrix times activations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product<'a> {
    /// `[rows, depth]`.
    pub matrix: Matrix<'a>,
    /// `[tokens, depth]`.
    pub input: Activations<'a>,
}

/// What a sum of products is added to.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// Nothing.
    Zero,
    /// Other activations, as wide as the output.
    From(Activations<'a>),
}

/// Most products that one sum may have: three layers on one input, each with a pair.
const MAX_PRODUCTS: usize = 6;

/// A few products, gathered without allocating.
#[derive(Debug)]
pub(crate) struct ProductList<'a> {
    products: [Product<'a>; MAX_PRODUCTS],
    len: usize,
}

impl<'a> ProductList<'a> {
    /// A list without products.
    pub(crate) fn new() -> Self {
        let none = Product {
            matrix: Matrix::Rows(&[], 1),
            input: Activations::EMPTY,
        };
        Self {
            products: [none; MAX_PRODUCTS],
            len: 0,
        }
    }

    /// Adds one; the list has room for [`MAX_PRODUCTS`].
    pub(crate) fn push(&mut self, matrix: Matrix<'a>, input: Activations<'a>) {
        self.products[self.len] = Product { matrix, input };
        self.len += 1;
    }

    /// Those added so far.
    pub(crate) fn as_slice(&self) -> &[Product<'a>] {
        &self.products[..self.len]
    }
}

/// `y = scale * (start + sum of matrix * input)`, in `y`'s shape `[tokens, rows]`.
///
/// Every output is computed by one thread and in one order, however many threads there are.
pub(crate) fn multiply(
    y: &mut ActivationsMut<'_>,
    start: Start<'_>,
    products: &[Product<'_>],
    scale: f32,
) {
    multiply_beside(y, start, products, scale, None);
}

/// `y = start + main + b u`, with `u` `[tokens, rank]` there already and `b` row-major `[rows, rank]`.
pub(crate) fn multiply_with_pair(
    y: &mut ActivationsMut<'_>,
    start: Start<'_>,
    main: Product<'_>,
    (b, u): (&[f32], Activations<'_>),
) {
    let pair = Pair {
        rank: u.width(),
        b,
        u: u.data().as_ptr().cast_mut(),
        inner: None,
    };
    assert!(u.blocks() >= y.blocks(), "u covers {} blocks", y.blocks());
    multiply_beside(y, start, &[main], 1.0, Some(pair));
}

/// `u = scale * a x` and `y = start + main + b u` for `main`'s input `x`, with `a` row-major `[rank, depth]` and `b`
/// `[rows, rank]`.
///
/// Where there are blocks enough, the tasks that keep some blocks of `x` near compute `u` of these as well. The results
/// are the same bits either way.
pub(crate) fn multiply_with_inner(
    y: &mut ActivationsMut<'_>,
    start: Start<'_>,
    main: Product<'_>,
    u: &mut ActivationsMut<'_>,
    (a, b, scale): (&[f32], &[f32], f32),
) {
    let x = main.input;
    assert_eq!(
        (a.len(), u.blocks()),
        (u.width() * x.width(), y.blocks()),
        "shapes of a pair"
    );
    let pair = Pair {
        rank: u.width(),
        b,
        u: u.data().as_mut_ptr(),
        inner: Some((a, scale)),
    };
    if !keeps_blocks_near(y.width(), y.blocks(), main) {
        let product = Product {
            matrix: Matrix::Rows(a, x.width()),
            input: x,
        };
        multiply(u, Start::Zero, &[product], scale);
        return multiply_with_pair(y, start, main, (b, u.view()));
    }
    multiply_beside(y, start, &[main], 1.0, Some(pair));
}

/// Whether inner values are computed in tasks that have a block's input near anyway.
fn keeps_blocks_near(rows: usize, blocks: usize, main: Product<'_>) -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if in_parts::suits(rows, &[main], 1.0) {
        return true;
    }
    let _ = (rows, main);
    blocks >= LEAST_BLOCKS * tasks_wanted()
}

/// Fewest blocks per task with which weights are streamed past all of them rather than by parts of rows.
const LEAST_BLOCKS: usize = 4;

/// What is added to a product behind its last part.
#[derive(Clone, Copy)]
struct Pair<'a> {
    rank: usize,
    /// `[rows, rank]`.
    b: &'a [f32],
    /// `[tokens, rank]`, as long as `y` has blocks.
    u: *mut f32,
    /// Where `u` is to be set: `[rank, depth]`, and what the product is multiplied with.
    inner: Option<(&'a [f32], f32)>,
}

// SAFETY: `u` is borrowed by whoever makes a pair, mutably where it is to be set, and every task has blocks of its own.
unsafe impl Sync for Pair<'_> {}

impl Pair<'_> {
    /// Adds to `u` of some blocks what the steps `from..from + count` of the sum give, if it is to be set.
    ///
    /// # Safety
    /// The input's blocks are there, and no other task sets or reads `u` of these blocks.
    unsafe fn add_inner(
        &self,
        input: Activations<'_>,
        (from, count): (usize, usize),
        blocks: (usize, usize),
    ) {
        let Some((a, scale)) = self.inner else {
            return;
        };
        let term = Term {
            weights: Weights::Strided {
                start: a[from..].as_ptr(),
                row_stride: input.width(),
                step_stride: 1,
            },
            depth: count,
            x: input.data()[from * LANES..].as_ptr(),
            x_block: input.width() * LANES,
        };
        let job = TileJob {
            y: self.u,
            y_row: LANES,
            y_block: self.rank * LANES,
            start: if from == 0 { std::ptr::null() } else { self.u },
            terms: &[term],
            scale: if from + count == input.width() {
                scale
            } else {
                1.0
            },
            rows: (0, self.rank),
            blocks,
            lanes: LANES,
        };
        // SAFETY: by the caller; `a` has the shape that was asserted.
        unsafe { job.dispatch() };
    }

    /// `b u`.
    fn outer(&self) -> Term {
        Term {
            weights: Weights::Strided {
                start: self.b.as_ptr(),
                row_stride: self.rank,
                step_stride: 1,
            },
            depth: self.rank,
            x: self.u,
            x_block: self.rank * LANES,
        }
    }
}

/// [`multiply`], with a pair beside the only product.
fn multiply_beside(
    y: &mut ActivationsMut<'_>,
    start: Start<'_>,
    products: &[Product<'_>],
    scale: f32,
    pair: Option<Pair<'_>>,
) {
    let (rows, blocks) = (y.width(), y.blocks());
    for Product { matrix, input } in products {
        assert_eq!(
            (matrix.rows(), matrix.depth()),
            (rows, input.width()),
            "shapes of a product"
        );
        assert!(input.blocks() >= blocks, "input covers {blocks} blocks");
    }
    if let Start::From(other) = start {
        assert!(
            other.width() == rows && other.blocks() >= blocks,
            "start's shape"
        );
    }
    if let Some(pair) = &pair {
        assert_eq!(
            (pair.b.len(), products.len()),
            (rows * pair.rank, 1),
            "shape of a pair"
        );
    }
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if in_parts::suits(rows, products, scale) {
        return in_parts::multiply(y, start, products, pair.as_ref());
    }
    let y_data = Shared::new(y.data());
    let depth = products.iter().map(|p| p.matrix.depth()).max().unwrap_or(1);
    let together = products.iter().map(|p| p.matrix.rows_together()).max();
    let together = together.unwrap_or(PANEL);
    let width: usize = products.iter().map(|p| p.matrix.depth()).sum();
    let task_depth = task_depth(depth);
    let near = near_bytes() / (width.min(task_depth) * LANES * size_of::<f32>());
    let grid = match pair {
        Some(Pair { inner: Some(_), .. }) => Grid::by_blocks(blocks, rows, near, together),
        _ => Grid::new(blocks, rows, near, together),
    };
    grid.for_each(|rows_part, blocks_part| {
        let first_start = match start {
            Start::Zero => std::ptr::null(),
            Start::From(other) => other.data().as_ptr(),
        };
        let each = rows_unpacked(products, rows_part, task_depth, together);
        with_own_memory(unpacked_len(products, each, task_depth), |unpacked| {
            let mut terms = [Term::EMPTY; MAX_PRODUCTS];
            for from in (0..depth).step_by(task_depth) {
                let last = from + task_depth >= depth;
                if let (Some(pair), [main]) = (&pair, products) {
                    let steps = task_depth.min(depth - from);
                    // SAFETY: where `u` is to be set, the grid's tasks have all rows of blocks of their own.
                    unsafe { pair.add_inner(main.input, (from, steps), blocks_part) };
                }
                for row in (rows_part.0..rows_part.1).step_by(each) {
                    let rows_now = (row, rows_part.1.min(row + each));
                    let mut unpacked = &mut *unpacked;
                    let mut count = 0;
                    for Product { matrix, input } in
                        products.iter().filter(|p| p.input.width() > from)
                    {
                        let steps = task_depth.min(input.width() - from);
                        terms[count] = Term {
                            weights: matrix.part(rows_now, (from, steps), &mut unpacked),
                            depth: steps,
                            x: input.data()[from * LANES..].as_ptr(),
                            x_block: input.width() * LANES,
                        };
                        count += 1;
                    }
                    if let Some(pair) = pair.as_ref().filter(|_| last) {
                        terms[count] = pair.outer();
                        count += 1;
                    }
                    let job = TileJob {
                        y: y_data.pointer(0),
                        y_row: LANES,
                        y_block: rows * LANES,
                        start: if from == 0 {
                            first_start
                        } else {
                            y_data.pointer(0)
                        },
                        terms: &terms[..count],
                        scale: if last { scale } else { 1.0 },
                        rows: rows_now,
                        blocks: blocks_part,
                        lanes: LANES,
                    };
                    // SAFETY: the slices behind the pointers are borrowed by the arguments, with the shapes asserted
                    // above, or lie in `unpacked`, and the grid's tasks write disjoint rows and blocks.
                    unsafe { job.dispatch() };
                }
            }
        });
    });
}

/// Bytes of inputs that a task keeps near: a part of the second-level cache, through which weights, outputs and what
/// other programs do pass as well.
fn near_bytes() -> usize {
    (second_level_cache() / 3).max(256 * 1024)
}

/// Values of coded weights that are unpacked at once, so that they stay in the second-level cache beside the inputs.
const UNPACKED: usize = 48 * 1024;

/// How many of a task's rows are computed at once: all, or few enough that coded weights are unpacked in small parts.
fn rows_unpacked(
    products: &[Product<'_>],
    rows: (usize, usize),
    task_depth: usize,
    together: usize,
) -> usize {
    match unpacked_len(products, together, task_depth) {
        0 => (rows.1 - rows.0).max(1),
        len => (UNPACKED / len).max(1) * together,
    }
}

/// Values that the coded weights of some products take up when their part of `rows` rows is unpacked.
fn unpacked_len(products: &[Product<'_>], rows: usize, task_depth: usize) -> usize {
    let coded = products.iter().map(|p| match p.matrix {
        Matrix::Weight(WeightMatrix::Coded(_))
        | Matrix::WeightTransposed(WeightMatrix::Coded(_)) => {
            let depth = task_depth.min(p.matrix.depth());
            rows.next_multiple_of(PANEL) * depth.next_multiple_of(PANEL)
        }
        _ => 0,
    });
    coded.sum()
}

/// The longest part of a sum that is done at once, in steps: so that the inputs of some blocks stay in the
/// second-level cache. Equal parts, whole chunks of coded weights.
fn task_depth(depth: usize) -> usize {
    const BLOCKS: usize = 8;
    let longest = near_bytes() / (BLOCKS * LANES * size_of::<f32>());
    depth
        .div_ceil(depth.div_ceil(longest))
        .next_multiple_of(2 * GROUP)
}

/// How one product is cut into tasks: parts of the blocks times parts of the rows.
pub(crate) struct Grid {
    rows: usize,
    blocks: usize,
    together: usize,
    row_parts: usize,
    block_parts: usize,
}

/// Tasks enough that no thread waits long for another.
fn tasks_wanted() -> usize {
    match rayon::current_num_threads() {
        1 => 1,
        threads => 4 * threads,
    }
}

/// Outputs of fewer rows than this are cut by blocks alone, so that their inputs are read once.
const NARROW: usize = 8 * PANEL;

impl Grid {
    /// Tasks of at most `near` blocks each, and more than there are threads, so that none waits long for another;
    /// their rows are whole multiples of `together`.
    pub(crate) fn new(blocks: usize, rows: usize, near: usize, together: usize) -> Self {
        if rows < NARROW {
            return Self::by_blocks(blocks, rows, near, together);
        }
        let block_parts = blocks.div_ceil(near.max(1));
        let groups = rows.div_ceil(together);
        Self {
            rows,
            blocks,
            together,
            row_parts: tasks_wanted().div_ceil(block_parts).min(groups),
            block_parts,
        }
    }

    /// As [`Grid::new`], but every task has all rows.
    fn by_blocks(blocks: usize, rows: usize, near: usize, together: usize) -> Self {
        let fewest = blocks.div_ceil(near.max(1));
        Self {
            rows,
            blocks,
            together,
            row_parts: 1,
            block_parts: fewest.max(tasks_wanted()).min(blocks),
        }
    }

    /// For tiles of the matrix unit: tasks have at most `near` times 32 packed rows, which stay near while blocks pass.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn of_tiles(blocks: usize, rows: usize, near: usize) -> Self {
        use super::matrix_unit::SIDE;
        let groups = rows.div_ceil(SIDE);
        let row_parts = groups.div_ceil(near.max(1));
        let block_parts = tasks_wanted().min(blocks);
        Self {
            rows,
            blocks,
            together: SIDE,
            row_parts: tasks_wanted()
                .div_ceil(block_parts)
                .clamp(row_parts, groups.max(row_parts)),
            block_parts,
        }
    }

    /// Runs a task for each part: first and last row, first and last block. Tasks of the same blocks are neighbours.
    pub(crate) fn for_each(&self, task: impl Fn((usize, usize), (usize, usize)) + Sync) {
        let groups = self.rows.div_ceil(self.together);
        let row = |part: usize| (part * groups / self.row_parts * self.together).min(self.rows);
        let block = |part: usize| part * self.blocks / self.block_parts;
        (0..self.block_parts * self.row_parts)
            .into_par_iter()
            .with_max_len(1)
            .for_each(|i| {
                let (r, b) = (i % self.row_parts, i / self.row_parts);
                task((row(r), row(r + 1)), (block(b), block(b + 1)));
            });
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod in_parts;
#[cfg(test)]
mod tests;
