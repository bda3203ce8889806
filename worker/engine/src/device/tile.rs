//! The kernel beneath all matrix products: tiles of outputs kept in registers over a sum of products.

use pulp::{Simd, WithSimd};

use super::{LANES, math, panels::PANEL};

/// How the broadcast side of a product lies in memory: one value per output row and step of the sum.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Weights {
    /// Value (row, step) at `start + row * row_stride + step * step_stride`.
    Strided {
        /// Value (0, 0).
        start: *const f32,
        /// Distance of rows.
        row_stride: usize,
        /// Distance of steps.
        step_stride: usize,
    },
    /// Packed panels: rows are the matrix's rows, steps its columns.
    Panels {
        /// The first panel.
        start: *const f32,
        /// The matrix's columns.
        columns: usize,
    },
    /// Packed panels of the transposed matrix: rows are the matrix's columns, steps its rows.
    PanelsTransposed {
        /// The first panel.
        start: *const f32,
        /// The matrix's columns.
        columns: usize,
    },
}

/// One product of a sum: `y[row][lane] += sum over steps of weights(row, step) * x[step][lane]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    /// The broadcast side.
    pub weights: Weights,
    /// Number of steps.
    pub depth: usize,
    /// The vector side: value (step, lane) of block `b` at `x + b * x_block + step * LANES + lane`.
    pub x: *const f32,
    /// Distance of blocks in `x`.
    pub x_block: usize,
}

impl Term {
    /// A product without steps, for tables that are filled later.
    pub(crate) const EMPTY: Self = Self {
        weights: Weights::Strided {
            start: std::ptr::null(),
            row_stride: 0,
            step_stride: 0,
        },
        depth: 0,
        x: std::ptr::null(),
        x_block: 0,
    };
}

/// Computes `y = scale * (start + sum of terms)` for some rows of some blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileJob<'a> {
    /// Value (row, lane) of block `b` at `y + b * y_block + row * y_row + lane`.
    pub y: *mut f32,
    /// Distance of rows in `y`.
    pub y_row: usize,
    /// Distance of blocks in `y`.
    pub y_block: usize,
    /// What is added to, laid out as `y` (and may be `y`); null for zero.
    pub start: *const f32,
    /// The sum.
    pub terms: &'a [Term],
    /// What the sum is multiplied with.
    pub scale: f32,
    /// The rows to compute; starts at a panel's first row if any term has [`Weights::Panels`].
    pub rows: (usize, usize),
    /// The blocks to compute.
    pub blocks: (usize, usize),
    /// How many lanes of each block to compute, a multiple of 16.
    pub lanes: usize,
}

// SAFETY: a term only describes memory; whoever runs a job of it promises that this memory is valid and unshared.
unsafe impl Send for Term {}
// SAFETY: as above.
unsafe impl Sync for Term {}

impl TileJob<'_> {
    /// Runs the job on the calling thread with the widest registers there are.
    ///
    /// # Safety
    /// As for [`TileJob::run`].
    pub(crate) unsafe fn dispatch(self) {
        math::dispatch(Checked(self));
    }

    /// Runs the job on the calling thread, inside a task that has been dispatched already.
    ///
    /// # Safety
    /// All memory that the job describes is valid, and nobody else reads or writes the rows of `y` meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn run<S: Simd>(self, simd: S) {
        // A call of its own rather than a copy at each place of use.
        simd.vectorize(Checked(self));
    }
}

/// A job whose caller has promised that its memory is valid.
struct Checked<'a>(TileJob<'a>);

impl WithSimd for Checked<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let job = &self.0;
        let pair = 2 * S::F32_LANES;
        for block in job.blocks.0..job.blocks.1 {
            let mut lane = 0;
            while lane + pair <= job.lanes {
                // SAFETY: by the caller of `TileJob::run`.
                unsafe { column::<S, 2>(simd, job, block, lane) };
                lane += pair;
            }
            while lane < job.lanes {
                // SAFETY: by the caller of `TileJob::run`.
                unsafe { column::<S, 1>(simd, job, block, lane) };
                lane += S::F32_LANES;
            }
        }
    }
}

/// All rows of `V` registers' lanes: tiles as high as the registers allow, then lower ones for what is left.
#[inline(always)]
unsafe fn column<S: Simd, const V: usize>(simd: S, job: &TileJob<'_>, block: usize, lane: usize) {
    let (mut row, end) = job.rows;
    let panels = job
        .terms
        .iter()
        .any(|t| matches!(t.weights, Weights::Panels { .. }));
    let fits = |row: usize, height: usize| {
        row + height <= end && (!panels || row % PANEL + height <= PANEL)
    };
    // SAFETY: by the caller of `TileJob::run`.
    unsafe {
        if S::REGISTER_COUNT >= 32 {
            while fits(row, 12) && (panels || row + 16 != end) {
                tile::<S, 12, V>(simd, job, row, block, lane);
                row += 12;
            }
            while fits(row, 8) {
                tile::<S, 8, V>(simd, job, row, block, lane);
                row += 8;
            }
        } else {
            while fits(row, 6) {
                tile::<S, 6, V>(simd, job, row, block, lane);
                row += 6;
            }
        }
        while fits(row, 4) {
            tile::<S, 4, V>(simd, job, row, block, lane);
            row += 4;
        }
        while row < end {
            tile::<S, 1, V>(simd, job, row, block, lane);
            row += 1;
        }
    }
}

/// The registers of one tile: `R` rows of `V` registers.
type Tile<S, const R: usize, const V: usize> = [[<S as Simd>::f32s; V]; R];

/// One tile, from its start to its place in `y`.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const V: usize>(
    simd: S,
    job: &TileJob<'_>,
    row: usize,
    block: usize,
    lane: usize,
) {
    let offset = block * job.y_block + row * job.y_row + lane;
    let mut sum: Tile<S, R, V> = [[simd.splat_f32s(0.0); V]; R];
    // SAFETY: by the caller of `TileJob::run`; all strides are those that the job describes.
    unsafe {
        if !job.start.is_null() {
            let start = job.start.add(offset);
            for (r, sum) in sum.iter_mut().enumerate() {
                for (v, sum) in sum.iter_mut().enumerate() {
                    *sum = load(simd, start.add(r * job.y_row + v * S::F32_LANES));
                }
            }
        }
        for term in job.terms {
            let x = term.x.add(block * term.x_block + lane);
            let depth = term.depth;
            sum = match term.weights {
                Weights::Panels { start, columns } => {
                    let start = start.add(row / PANEL * PANEL * columns + row % PANEL);
                    strided(simd, sum, (start, 1, PANEL), x, depth)
                }
                Weights::PanelsTransposed { start, columns } => {
                    transposed(simd, sum, start.add(row * PANEL), PANEL * columns, x, depth)
                }
                Weights::Strided {
                    start,
                    row_stride,
                    step_stride,
                } => {
                    let start = start.add(row * row_stride);
                    // The common strides as constants, which the compiler folds into addresses.
                    match (row_stride, step_stride) {
                        (1, LANES) => strided(simd, sum, (start, 1, LANES), x, depth),
                        (LANES, 1) => strided(simd, sum, (start, LANES, 1), x, depth),
                        (1, step) => strided(simd, sum, (start, 1, step), x, depth),
                        (row, step) => strided(simd, sum, (start, row, step), x, depth),
                    }
                }
            };
        }
        let y = job.y.add(offset);
        let scale = simd.splat_f32s(job.scale);
        for (r, sum) in sum.iter().enumerate() {
            for (v, sum) in sum.iter().enumerate() {
                let scaled = if job.scale == 1.0 {
                    *sum
                } else {
                    simd.mul_f32s(*sum, scale)
                };
                store(simd, y.add(r * job.y_row + v * S::F32_LANES), scaled);
            }
        }
    }
}

/// Adds `sum over steps of weights(row, step) * x[step]`.
#[inline(always)]
unsafe fn strided<S: Simd, const R: usize, const V: usize>(
    simd: S,
    mut sum: Tile<S, R, V>,
    (mut weights, row_stride, step_stride): (*const f32, usize, usize),
    mut x: *const f32,
    depth: usize,
) -> Tile<S, R, V> {
    for _ in 0..depth {
        // SAFETY: by the caller of `TileJob::run`.
        unsafe {
            sum = step(simd, sum, weights, row_stride, x);
            weights = weights.wrapping_add(step_stride);
            x = x.wrapping_add(LANES);
        }
    }
    sum
}

/// Adds `sum over steps of weights(step, row) * x[step]` with weights in panels, `panel` values apart.
#[inline(always)]
unsafe fn transposed<S: Simd, const R: usize, const V: usize>(
    simd: S,
    mut sum: Tile<S, R, V>,
    mut weights: *const f32,
    panel: usize,
    mut x: *const f32,
    depth: usize,
) -> Tile<S, R, V> {
    const LINE: usize = 16;
    for _ in 0..depth / PANEL {
        let next = weights.wrapping_add(panel);
        for i in 0..PANEL {
            // The next panel's part is far away, where no hardware prefetcher looks.
            if i * LINE < PANEL * PANEL {
                prefetch(next.wrapping_add(i * LINE));
            }
            // SAFETY: by the caller of `TileJob::run`.
            unsafe { sum = step(simd, sum, weights.add(i), PANEL, x) };
            x = x.wrapping_add(LANES);
        }
        weights = next;
    }
    for i in 0..depth % PANEL {
        // SAFETY: by the caller of `TileJob::run`.
        unsafe { sum = step(simd, sum, weights.add(i), PANEL, x) };
        x = x.wrapping_add(LANES);
    }
    sum
}

/// One step of the sum for the whole tile.
#[inline(always)]
unsafe fn step<S: Simd, const R: usize, const V: usize>(
    simd: S,
    mut sum: Tile<S, R, V>,
    weights: *const f32,
    row_stride: usize,
    x: *const f32,
) -> Tile<S, R, V> {
    // SAFETY: by the caller of `TileJob::run`.
    unsafe {
        let mut lanes = [simd.splat_f32s(0.0); V];
        for (v, lanes) in lanes.iter_mut().enumerate() {
            *lanes = load(simd, x.add(v * S::F32_LANES));
        }
        for (r, sum) in sum.iter_mut().enumerate() {
            let weight = simd.splat_f32s(*weights.add(r * row_stride));
            for (sum, lanes) in sum.iter_mut().zip(lanes) {
                *sum = simd.mul_add_e_f32s(weight, lanes, *sum);
            }
        }
    }
    sum
}

/// Reads one register.
#[inline(always)]
unsafe fn load<S: Simd>(_: S, from: *const f32) -> S::f32s {
    // SAFETY: by the caller.
    unsafe { from.cast::<S::f32s>().read_unaligned() }
}

/// Writes one register.
#[inline(always)]
unsafe fn store<S: Simd>(_: S, to: *mut f32, value: S::f32s) {
    // SAFETY: by the caller.
    unsafe { to.cast::<S::f32s>().write_unaligned(value) }
}

/// Asks for a cache line ahead of its use; any address will do.
#[inline(always)]
pub(crate) fn prefetch(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of an address that is not mapped does nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
