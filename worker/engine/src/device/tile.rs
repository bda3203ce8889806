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
    /// Activations: rows are features, steps the tokens of blocks one after the other.
    Blocks {
        /// The first block's first row.
        start: *const f32,
        /// Distance of blocks.
        block: usize,
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
        let (mut row, end) = job.rows;
        while row < end {
            // SAFETY: by the caller of `TileJob::run`.
            unsafe {
                row += match height::<S>(job, row) {
                    12 => rows::<S, 12>(simd, job, row),
                    8 => rows::<S, 8>(simd, job, row),
                    6 => rows::<S, 6>(simd, job, row),
                    4 => rows::<S, 4>(simd, job, row),
                    _ => rows::<S, 1>(simd, job, row),
                }
            }
        }
    }
}

/// Height of the tiles that begin at a row: as high as the registers allow, lower ones for what is left.
#[inline(always)]
fn height<S: Simd>(job: &TileJob<'_>, row: usize) -> usize {
    let is_panel = |term: &Term| matches!(term.weights, Weights::Panels { .. });
    let left = job.rows.1 - row;
    let most = match job.terms.iter().any(is_panel) {
        true => left.min(PANEL - row % PANEL),
        // Two tiles of 8 rather than one of 12 and one of 4; two of 4 rather than one of 6 and two of 1.
        false if left == 16 && S::REGISTER_COUNT >= 32 => 8,
        false if left == 8 && S::REGISTER_COUNT < 32 => 4,
        false => left,
    };
    let heights: &[usize] = if S::REGISTER_COUNT >= 32 {
        &[12, 8, 4]
    } else {
        &[6, 4]
    };
    let fits = heights.iter().find(|&&height| height <= most);
    fits.copied().unwrap_or(1)
}

/// All lanes of all blocks for `R` rows, whose weights so stay near; gives `R`.
#[inline(always)]
unsafe fn rows<S: Simd, const R: usize>(simd: S, job: &TileJob<'_>, row: usize) -> usize {
    let pair = 2 * S::F32_LANES;
    for block in job.blocks.0..job.blocks.1 {
        let mut lane = 0;
        while lane + pair <= job.lanes {
            // SAFETY: by the caller of `TileJob::run`.
            unsafe { tile::<S, R, 2>(simd, job, row, block, lane) };
            lane += pair;
        }
        while lane < job.lanes {
            // SAFETY: by the caller of `TileJob::run`.
            unsafe { tile::<S, R, 1>(simd, job, row, block, lane) };
            lane += S::F32_LANES;
        }
    }
    R
}

/// Values of a cache line.
const LINE: usize = 16;

/// How many panels before its use a panel's part is asked for.
const PANELS_AHEAD: usize = 3;

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
        // Asked for now, used at the end.
        for r in 0..R {
            for v in (0..V * S::F32_LANES).step_by(LINE) {
                prefetch(job.y.wrapping_add(offset + r * job.y_row + v));
                if !job.start.is_null() && job.start != job.y {
                    prefetch(job.start.wrapping_add(offset + r * job.y_row + v));
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
                Weights::Blocks { start, block } => {
                    by_block(simd, sum, start.add(row * LANES), block, x, depth)
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
        if !job.start.is_null() {
            let start = job.start.add(offset);
            for (r, sum) in sum.iter_mut().enumerate() {
                for (v, sum) in sum.iter_mut().enumerate() {
                    let start = load(simd, start.add(r * job.y_row + v * S::F32_LANES));
                    *sum = simd.add_f32s(*sum, start);
                }
            }
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
    for _ in 0..depth / PANEL {
        // The next panels' parts are far away, where no hardware prefetcher looks.
        let ahead = weights.wrapping_add(PANELS_AHEAD * panel);
        for i in 0..PANEL {
            if i * LINE < R * PANEL {
                prefetch(ahead.wrapping_add(i * LINE));
            }
            // SAFETY: by the caller of `TileJob::run`.
            unsafe { sum = step(simd, sum, weights.add(i), PANEL, x) };
            x = x.wrapping_add(LANES);
        }
        weights = weights.wrapping_add(panel);
    }
    for i in 0..depth % PANEL {
        // SAFETY: by the caller of `TileJob::run`.
        unsafe { sum = step(simd, sum, weights.add(i), PANEL, x) };
        x = x.wrapping_add(LANES);
    }
    sum
}

/// Adds `sum over steps of weights(row, step) * x[step]` with weights in blocks of tokens, `block` values apart.
#[inline(always)]
unsafe fn by_block<S: Simd, const R: usize, const V: usize>(
    simd: S,
    mut sum: Tile<S, R, V>,
    mut weights: *const f32,
    block: usize,
    mut x: *const f32,
    depth: usize,
) -> Tile<S, R, V> {
    for _ in 0..depth / LANES {
        let next = weights.wrapping_add(block);
        for i in 0..LANES {
            if i * LINE < R * LANES {
                prefetch(next.wrapping_add(i * LINE));
            }
            // SAFETY: by the caller of `TileJob::run`.
            unsafe { sum = step(simd, sum, weights.add(i), LANES, x) };
            x = x.wrapping_add(LANES);
        }
        weights = next;
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

/// As [`prefetch`], but only into the second-level cache, which can wait for more lines at once than the first.
#[inline(always)]
pub(crate) fn prefetch_far(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
