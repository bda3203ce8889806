//! Products on the processor's matrix unit: weights and inputs are packed in parts of bf16, then multiplied in tiles.
//!
//! A sum is done in parts of some steps. For each, all threads first pack the rows of the weights and the blocks of
//! inputs, each once, then share the tiles. Nothing of the order of a sum depends on how many threads, rows or blocks
//! there are.

use rayon::prelude::*;

use super::{Grid, MAX_PRODUCTS, Matrix, Pair, Product, Start, near_bytes};
use crate::device::{
    Activations, ActivationsMut, LANES, Shared, WeightMatrix,
    matrix_unit::{
        self, ONE_PART, PanelPart, SIDE, STEPS, THREE_PARTS, Tiles, pack_inputs, pack_panels,
        pack_panels_transposed, pack_rows, with_shared_memory,
    },
    with_own_memory,
};

/// Narrower matrices are left to vectors; packing them costs as much as multiplying.
const LEAST_ROWS: usize = 2 * SIDE;

/// Most chunks of steps in a part of a sum; parts of one matrix are whole multiples of three chunks, so that coded
/// weights, of which 48 rows lie together, are unpacked once.
const LONGEST: usize = 24;

/// Rows that a task packs, whole multiples of what coded weights keep together.
const ROWS_PACKED: usize = 3 * SIDE;

/// Most rows and blocks that are packed at once.
const MOST_ROWS: usize = 24 * ROWS_PACKED;
/// See [`MOST_ROWS`].
const MOST_BLOCKS: usize = 64;

/// Whether the matrix unit is there and a sum of products is one for it; by the matrices alone, so that a token's
/// result does not depend on how many are beside it.
pub(super) fn suits(rows: usize, products: &[Product<'_>], scale: f32) -> bool {
    let mut weights = products.iter().filter_map(|p| weight(p.matrix));
    rows >= LEAST_ROWS
        && scale == 1.0
        && weights.clone().any(|(w, _)| w.columns() >= STEPS)
        && matrix_unit::is_there()
        && (matrix_unit::takes_f32() || weights.all(|(w, _)| w.is_bf16()))
}

/// A weight, and whether it is transposed.
fn weight(matrix: Matrix<'_>) -> Option<(&WeightMatrix, bool)> {
    match matrix {
        Matrix::Weight(weight) => Some((weight, false)),
        Matrix::WeightTransposed(weight) => Some((weight, true)),
        Matrix::Rows(..) | Matrix::RowsTransposed(..) => None,
    }
}

/// One product with a weight.
#[derive(Clone, Copy)]
struct Main<'a> {
    weight: &'a WeightMatrix,
    is_transposed: bool,
    input: Activations<'a>,
}

impl Main<'_> {
    fn chunks(&self) -> usize {
        self.input.width().div_ceil(STEPS)
    }
}

/// A product of few steps beside those with weights, such as a pair's.
#[derive(Clone, Copy)]
struct Beside<'a> {
    values: &'a [f32],
    /// Distance of rows and of steps.
    strides: (usize, usize),
    depth: usize,
    /// `[tokens, depth]`, of which a block is read by the task that packs it.
    x: *const f32,
}

// SAFETY: `x` is borrowed by whoever asked for the product; a block of it that is set meanwhile is set by the one task
// that packs it.
unsafe impl Send for Beside<'_> {}
// SAFETY: as above.
unsafe impl Sync for Beside<'_> {}

/// Chunks `from..from + count` of the `index`th product with a weight.
#[derive(Clone, Copy, Default)]
struct Segment {
    index: usize,
    from: usize,
    count: usize,
}

/// All that one sum is made of, in its order: products with weights, then those beside them.
struct Sum<'a> {
    mains: [Option<Main<'a>>; MAX_PRODUCTS],
    besides: [Option<Beside<'a>>; MAX_PRODUCTS],
    /// Whether all weights' values are bf16 themselves.
    is_exact: bool,
}

impl<'a> Sum<'a> {
    fn of(products: &[Product<'a>], pair: Option<&Pair<'a>>) -> Self {
        let mut sum = Self {
            mains: [None; MAX_PRODUCTS],
            besides: [None; MAX_PRODUCTS],
            is_exact: true,
        };
        let (mut mains, mut besides) = (sum.mains.iter_mut(), sum.besides.iter_mut());
        let mut add = |beside| *besides.next().expect("room for all") = Some(beside);
        for &Product { matrix, input } in products {
            let (values, strides) = match matrix {
                Matrix::Weight(weight) | Matrix::WeightTransposed(weight) => {
                    sum.is_exact &= weight.is_bf16();
                    *mains.next().expect("room for all") = Some(Main {
                        weight,
                        is_transposed: matches!(matrix, Matrix::WeightTransposed(_)),
                        input,
                    });
                    continue;
                }
                Matrix::Rows(values, columns) => (values, (columns, 1)),
                Matrix::RowsTransposed(values, columns) => (values, (1, columns)),
            };
            add(Beside {
                values,
                strides,
                depth: input.width(),
                x: input.data().as_ptr(),
            });
        }
        if let Some(pair) = pair {
            add(Beside {
                values: pair.b,
                strides: (pair.rank, 1),
                depth: pair.rank,
                x: pair.u,
            });
        }
        sum
    }

    fn main(&self, index: usize) -> &Main<'a> {
        self.mains[index].as_ref().expect("a segment's product")
    }

    /// Steps of all products beside, one after the other, whole pairs each.
    fn steps_beside(&self) -> usize {
        let steps = |beside: &Beside<'_>| beside.depth.next_multiple_of(2);
        self.besides.iter().flatten().map(steps).sum()
    }

    /// Length of a packed chunk of weights.
    fn weight_chunk(&self) -> usize {
        if self.is_exact { ONE_PART } else { THREE_PARTS }
    }
}

/// A part of a sum.
struct Part {
    segments: [Segment; MAX_PRODUCTS],
    /// Chunks of weights, and chunks of what is beside them.
    chunks: (usize, usize),
    is_first: bool,
    is_last: bool,
}

impl Part {
    fn segments(&self) -> impl Iterator<Item = Segment> {
        self.segments.into_iter().take_while(|s| s.count > 0)
    }

    /// Each chunk's product, and its number within the product.
    fn each_chunk(&self) -> impl Iterator<Item = (usize, usize)> {
        self.segments()
            .flat_map(|s| (s.from..s.from + s.count).map(move |chunk| (s.index, chunk)))
    }

    /// Chunks of inputs, of which all are held in three parts.
    fn all_chunks(&self) -> usize {
        self.chunks.0 + self.chunks.1
    }

    /// Length of 32 packed rows.
    fn rows_len(&self, sum: &Sum<'_>) -> usize {
        self.chunks.0 * sum.weight_chunk() + self.chunks.1 * THREE_PARTS
    }
}

/// Goes through the parts of a sum.
struct Parts<'s, 'a> {
    sum: &'s Sum<'a>,
    next: (usize, usize),
}

impl Iterator for Parts<'_, '_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        let is_first = self.next == (0, 0);
        self.sum.mains.get(self.next.0).copied().flatten()?;
        let mut part = Part {
            segments: [Segment::default(); MAX_PRODUCTS],
            chunks: (0, 0),
            is_first,
            is_last: false,
        };
        for segment in &mut part.segments {
            let (index, from) = self.next;
            let Some(main) = self.sum.mains.get(index).copied().flatten() else {
                break;
            };
            let (all, room) = (main.chunks(), LONGEST - part.chunks.0);
            // A product that does not fit is begun in a part of its own, and cut into equal ones.
            let count = match all - from {
                left if left <= room => left,
                _ if part.chunks.0 > 0 => break,
                left => left
                    .min(all.div_ceil(all.div_ceil(LONGEST)).next_multiple_of(3))
                    .min(LONGEST),
            };
            *segment = Segment { index, from, count };
            part.chunks.0 += count;
            self.next = match from + count == all {
                true => (index + 1, 0),
                false => (index, from + count),
            };
        }
        part.is_last = self.sum.mains.get(self.next.0).copied().flatten().is_none();
        if part.is_last {
            part.chunks.1 = self.sum.steps_beside().div_ceil(STEPS);
        }
        Some(part)
    }
}

/// `y = start + sum of products`, with a pair beside the only product; shapes are checked by the caller.
pub(super) fn multiply(
    y: &mut ActivationsMut<'_>,
    start: Start<'_>,
    products: &[Product<'_>],
    pair: Option<&Pair<'_>>,
) {
    let sum = Sum::of(products, pair);
    let (rows, blocks) = (y.width(), y.blocks());
    let whole = Whole {
        sum: &sum,
        inner: pair.and_then(Inner::of),
        start: match start {
            Start::Zero => std::ptr::null(),
            Start::From(other) => other.data().as_ptr(),
        },
        y: Shared::new(y.data()),
        rows,
    };
    if blocks == 0 {
        return;
    }
    let rows_at_once = rows.next_multiple_of(SIDE).min(MOST_ROWS);
    let blocks_at_once = blocks.div_ceil(blocks.div_ceil(MOST_BLOCKS));
    let parts = || Parts {
        sum: &sum,
        next: (0, 0),
    };
    let lens = parts().map(|part| whole.lens(&part, rows_at_once, blocks_at_once));
    let len = lens.map(|lens| lens.iter().sum()).max().unwrap_or(0);
    with_shared_memory(len, |memory| {
        for first_block in (0..blocks).step_by(blocks_at_once) {
            let blocks = (first_block, blocks.min(first_block + blocks_at_once));
            for part in parts() {
                let [weights, inputs, inner] = whole.lens(&part, rows_at_once, blocks_at_once);
                let (weights, rest) = memory[..weights + inputs + inner].split_at_mut(weights);
                let (inputs, inner) = rest.split_at_mut(inputs);
                whole.pack_inner(inner, &part);
                for first_row in (0..rows).step_by(rows_at_once) {
                    let rows = (first_row, rows.min(first_row + rows_at_once));
                    let new_blocks = if first_row == 0 { blocks } else { (0, 0) };
                    whole.pack(weights, inputs, inner, &part, rows, new_blocks);
                    whole.multiply(weights, inputs, &part, rows, blocks);
                }
            }
        }
    });
}

/// `u = scale * a x`, computed where a block of `x` is packed.
struct Inner<'a> {
    rank: usize,
    a: &'a [f32],
    scale: f32,
    u: *mut f32,
}

// SAFETY: as for `Pair`.
unsafe impl Sync for Inner<'_> {}

impl<'a> Inner<'a> {
    fn of(pair: &Pair<'a>) -> Option<Self> {
        let (a, scale) = pair.inner?;
        Some(Self {
            rank: pair.rank,
            a,
            scale,
            u: pair.u,
        })
    }

    /// Length of `a`'s packed part.
    fn len(&self, part: &Part) -> usize {
        self.rank.div_ceil(SIDE) * part.chunks.0 * THREE_PARTS
    }
}

/// One call.
struct Whole<'s, 'a> {
    sum: &'s Sum<'a>,
    inner: Option<Inner<'a>>,
    start: *const f32,
    y: Shared<'s>,
    rows: usize,
}

// SAFETY: `start` is borrowed by the caller of `multiply`.
unsafe impl Sync for Whole<'_, '_> {}

impl Whole<'_, '_> {
    /// Lengths of a part's packed weights, inputs and `a`.
    fn lens(&self, part: &Part, rows: usize, blocks: usize) -> [usize; 3] {
        [
            rows.div_ceil(SIDE) * part.rows_len(self.sum),
            blocks * part.all_chunks() * THREE_PARTS,
            self.inner.as_ref().map_or(0, |inner| inner.len(part)),
        ]
    }

    fn pack_inner(&self, packed: &mut [u16], part: &Part) {
        let Some(inner) = &self.inner else {
            return;
        };
        let columns = self.sum.main(0).input.width();
        let chunks = packed.chunks_exact_mut(THREE_PARTS);
        let places = (0..inner.rank)
            .step_by(SIDE)
            .flat_map(|row| part.each_chunk().map(move |(_, chunk)| (row, chunk)));
        for (out, (row, chunk)) in chunks.zip(places) {
            let mut values = [[0.0; STEPS]; SIDE];
            for (row, values) in (row..inner.rank).zip(&mut values) {
                let a = &inner.a[row * columns..][..columns];
                let steps = &a[chunk * STEPS..columns.min((chunk + 1) * STEPS)];
                values[..steps.len()].copy_from_slice(steps);
            }
            // SAFETY: the matrix unit is there, and with it the vectors that packing needs.
            unsafe { pack_rows(out, &values) };
        }
    }

    /// Packs rows of the weights and blocks of inputs, and sets the blocks' inner values.
    fn pack(
        &self,
        weights: &mut [u16],
        inputs: &mut [u16],
        inner: &[u16],
        part: &Part,
        rows: (usize, usize),
        blocks: (usize, usize),
    ) {
        let (rows_len, block_len) = (part.rows_len(self.sum), part.all_chunks() * THREE_PARTS);
        let groups = weights[..(rows.1 - rows.0).div_ceil(SIDE) * rows_len]
            .par_chunks_mut(ROWS_PACKED / SIDE * rows_len)
            .enumerate()
            .map(|(i, packed)| (true, i, packed));
        let blocks_packed = inputs[..(blocks.1 - blocks.0) * block_len]
            .par_chunks_mut(block_len)
            .enumerate()
            .map(|(i, packed)| (false, i, packed));
        groups
            .chain(blocks_packed)
            .with_max_len(1)
            .for_each(|(is_weight, i, packed)| match is_weight {
                true => self.pack_weights(packed, part, rows.0 + i * ROWS_PACKED),
                false => self.pack_block(packed, inner, part, blocks.0 + i),
            });
    }

    /// Packs up to [`ROWS_PACKED`] rows from one on.
    fn pack_weights(&self, packed: &mut [u16], part: &Part, row: usize) {
        let rows_len = part.rows_len(self.sum);
        let len = self.sum.weight_chunk();
        let end = self.rows.min(row + packed.len() / rows_len * SIDE);
        let mut at = 0;
        for Segment { index, from, count } in part.segments() {
            let main = self.sum.main(index);
            let steps = (from * STEPS, main.input.width().min((from + count) * STEPS));
            with_weight(main, (row, end), steps, |weight, (row, end), steps| {
                for (group, packed) in packed.chunks_exact_mut(rows_len).enumerate() {
                    let first = row + group * SIDE;
                    let outs = packed[at..at + count * len].chunks_exact_mut(len);
                    for (out, step) in outs.zip((steps.0..).step_by(STEPS)) {
                        let last = steps.1.min(step + STEPS);
                        // SAFETY: the matrix unit is there, and with it the vectors that packing needs.
                        unsafe {
                            match main.is_transposed {
                                false => pack_panels(out, weight, first, (step, last)),
                                true => pack_panels_transposed(
                                    out,
                                    weight,
                                    step,
                                    (first, end.min(first + SIDE)),
                                ),
                            }
                        }
                    }
                }
            });
            at += count * len;
        }
        if part.is_last {
            for (group, packed) in packed.chunks_exact_mut(rows_len).enumerate() {
                self.pack_beside(&mut packed[at..], row + group * SIDE);
            }
        }
    }

    /// Packs what is beside the weights, 32 rows from one on.
    fn pack_beside(&self, packed: &mut [u16], row: usize) {
        let rows = row..self.rows.min(row + SIDE);
        for (chunk, out) in packed.chunks_exact_mut(THREE_PARTS).enumerate() {
            let mut values = [[0.0; STEPS]; SIDE];
            self.for_each_beside(chunk, |beside, step, place| {
                let (row_stride, step_stride) = beside.strides;
                for (row, values) in rows.clone().zip(&mut values) {
                    values[place] = beside.values[row * row_stride + step * step_stride];
                }
            });
            // SAFETY: as above.
            unsafe { pack_rows(out, &values) };
        }
    }

    /// Calls `each` with the products beside that have steps in a chunk, those steps, and their places in it.
    fn for_each_beside(&self, chunk: usize, mut each: impl FnMut(&Beside<'_>, usize, usize)) {
        let mut first = 0;
        for beside in self.sum.besides.iter().flatten() {
            let from = (chunk * STEPS).max(first);
            for at in from..((chunk + 1) * STEPS).min(first + beside.depth) {
                each(beside, at - first, at % STEPS);
            }
            first += beside.depth.next_multiple_of(2);
        }
    }

    /// Packs one block of all inputs.
    fn pack_block(&self, packed: &mut [u16], inner: &[u16], part: &Part, block: usize) {
        let (packed, packed_beside) = packed.split_at_mut(part.chunks.0 * THREE_PARTS);
        let outs = packed.chunks_exact_mut(THREE_PARTS);
        for (out, (index, chunk)) in outs.zip(part.each_chunk()) {
            let x = self.sum.main(index).input.block(block);
            let end = x.len().min((chunk + 1) * STEPS * LANES);
            // SAFETY: the matrix unit is there, and with it the vectors that packing needs.
            unsafe { pack_inputs(out, &x[chunk * STEPS * LANES..end]) };
        }
        if let Some(inner) = self.inner.as_ref().map(|i| (i, inner)) {
            self.add_inner(inner, packed, part, block);
        }
        for (chunk, out) in packed_beside.chunks_exact_mut(THREE_PARTS).enumerate() {
            let mut values = [[0.0; LANES]; STEPS];
            self.for_each_beside(chunk, |beside, step, place| {
                let from = (block * beside.depth + step) * LANES;
                // SAFETY: within the input, which has this block; a `u` was set above by this task.
                values[place] = unsafe { beside.x.add(from).cast::<[f32; LANES]>().read() };
            });
            // SAFETY: as above.
            unsafe { pack_inputs(out, values.as_flattened()) };
        }
    }

    /// Adds to a block's inner values what a part of the sum gives.
    fn add_inner(
        &self,
        (inner, a): (&Inner<'_>, &[u16]),
        inputs: &[u16],
        part: &Part,
        block: usize,
    ) {
        let len = inner.rank * LANES;
        // SAFETY: `u` has this block, and this task alone has it now.
        let u = unsafe { std::slice::from_raw_parts_mut(inner.u.add(block * len), len) };
        // SAFETY: the unit is there, and the thread has it for itself until the end of the block.
        let tiles = unsafe { Tiles::set_up() };
        let group = part.chunks.0 * THREE_PARTS;
        for (u, a) in u.chunks_mut(SIDE * LANES).zip(a.chunks_exact(group)) {
            let start = if part.is_first {
                std::ptr::null()
            } else {
                u.as_ptr()
            };
            // SAFETY: `a` and the inputs are packed chunks of this part, and `u` is these rows.
            unsafe {
                multiply_rows(
                    &tiles,
                    (a.as_ptr(), inputs.as_ptr()),
                    (0, part.chunks.0),
                    start,
                    (u.as_mut_ptr(), u.len() / LANES),
                );
            }
        }
        if part.is_last {
            u.iter_mut().for_each(|u| *u *= inner.scale);
        }
    }

    /// Multiplies packed rows with packed blocks.
    fn multiply(
        &self,
        weights: &[u16],
        inputs: &[u16],
        part: &Part,
        rows: (usize, usize),
        blocks: (usize, usize),
    ) {
        let (rows_len, block_len) = (part.rows_len(self.sum), part.all_chunks() * THREE_PARTS);
        let counts = match self.sum.is_exact {
            true => part.chunks,
            false => (0, part.all_chunks()),
        };
        let near = near_bytes() * 3 / 2 / (rows_len * size_of::<u16>());
        let grid = Grid::of_tiles(blocks.1 - blocks.0, rows.1 - rows.0, near);
        grid.for_each(|rows_part, blocks_part| {
            // SAFETY: the unit is there, and the thread has it for itself until the end of the task.
            let tiles = unsafe { Tiles::set_up() };
            for block in blocks_part.0..blocks_part.1 {
                let b = inputs[block * block_len..].as_ptr();
                for row in (rows_part.0..rows_part.1).step_by(SIDE) {
                    let a = weights[row / SIDE * rows_len..].as_ptr();
                    let at = ((blocks.0 + block) * self.rows + rows.0 + row) * LANES;
                    let start = match part.is_first {
                        true if self.start.is_null() => self.start,
                        true => self.start.wrapping_add(at),
                        false => self.y.pointer(at),
                    };
                    let y = (self.y.pointer(at), SIDE.min(rows_part.1 - row));
                    // SAFETY: `a` and `b` are packed chunks of this part, and the grid's tasks write disjoint rows and
                    // blocks of `y`, which `start` is as long as.
                    unsafe { multiply_rows(&tiles, (a, b), counts, start, y) };
                }
            }
        });
    }
}

/// [`Tiles::multiply`] for `count` rows, at most 32.
///
/// # Safety
/// As there, but that `start` and `y` have only these rows.
#[inline]
unsafe fn multiply_rows(
    tiles: &Tiles,
    packed: (*const u16, *const u16),
    chunks: (usize, usize),
    start: *const f32,
    (y, count): (*mut f32, usize),
) {
    if count == SIDE {
        // SAFETY: by the caller.
        return unsafe { tiles.multiply(packed, chunks, start, y) };
    }
    let mut whole = [0.0; SIDE * LANES];
    let len = count * LANES;
    // SAFETY: by the caller; `whole` has all 32 rows.
    unsafe {
        if !start.is_null() {
            whole[..len].copy_from_slice(std::slice::from_raw_parts(start, len));
        }
        tiles.multiply(packed, chunks, whole.as_ptr(), whole.as_mut_ptr());
        std::slice::from_raw_parts_mut(y, len).copy_from_slice(&whole[..len]);
    }
}

/// Calls `work` with some rows and steps of a weight's product as panels, and with the same rows and steps counted from
/// the panels' beginning; coded weights are unpacked for it.
fn with_weight(
    main: &Main<'_>,
    rows: (usize, usize),
    steps: (usize, usize),
    work: impl FnOnce(PanelPart<'_>, (usize, usize), (usize, usize)),
) {
    let coded = match main.weight {
        WeightMatrix::Panels(panels) => {
            let part = PanelPart {
                panels: panels.packed(),
                columns: panels.columns(),
            };
            return work(part, rows, steps);
        }
        WeightMatrix::Coded(coded) => coded,
    };
    let (weight_rows, weight_columns) = match main.is_transposed {
        false => (rows, steps),
        true => (steps, rows),
    };
    let columns = weight_columns.1 - weight_columns.0;
    let count = (weight_rows.1 - weight_rows.0).next_multiple_of(super::PANEL);
    with_own_memory(count * columns, |unpacked| {
        coded.unpack(unpacked, weight_rows, weight_columns);
        let part = PanelPart {
            panels: unpacked,
            columns,
        };
        work(part, (0, rows.1 - rows.0), (0, steps.1 - steps.0));
    });
}
