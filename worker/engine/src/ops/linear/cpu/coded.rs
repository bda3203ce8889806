//! Coded weights times a few tokens: each is unpacked once, in registers, for all tokens.
//!
//! ```text
//! y = sum over chunks of scale * (sum over 32 columns of q x) + minimum * (sum over 32 columns of x)
//! ```
//! All sums of a row and a token are taken in the order of the columns, whatever tokens are beside it.

#[cfg(target_arch = "x86_64")]
use pulp::Arch;
use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::{
    TASK_BYTES,
    lanes::{Lanes, Portable},
};
#[cfg(target_arch = "x86_64")]
use crate::device::instructions;
use crate::{
    device::{
        Shared,
        math::dispatch,
        tile::prefetch_far,
        weight::{COLUMNS, Chunk, Coded, GROUP},
    },
    gguf::BlockType,
};

/// Tokens whose totals are kept at once.
const TOKENS: usize = 16;

/// Appends the sum of `x` `[tokens, columns]` over the columns of each chunk, `[tokens, chunks]`.
pub(super) fn extend_sums(sums: &mut Vec<f32>, x: &[f32], columns: usize) {
    let start = sums.len();
    let chunks = columns.div_ceil(COLUMNS);
    sums.resize(start + x.len() / columns * chunks, 0.0);
    let rows = x.chunks_exact(columns);
    for (x, sums) in rows.zip(sums[start..].chunks_exact_mut(chunks)) {
        dispatch(ChunkSums { x, sums });
    }
}

/// The sums of one token's chunks.
struct ChunkSums<'a> {
    x: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for ChunkSums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (chunks, rest) = self.x.as_chunks::<COLUMNS>();
        let (sums, last) = self.sums.split_at_mut(chunks.len());
        for (x, sum) in chunks.iter().zip(sums) {
            let (x, _) = S::as_simd_f32s(x);
            let total = x
                .iter()
                .fold(simd.splat_f32s(0.0), |total, x| simd.add_f32s(total, *x));
            *sum = simd.reduce_sum_f32s(total);
        }
        last.iter_mut().for_each(|sum| *sum = rest.iter().sum());
    }
}

/// Groups per task.
fn groups_per_task(weight: &Coded) -> usize {
    let group_bytes = weight.bytes() / weight.groups();
    TASK_BYTES.div_ceil(group_bytes)
}

/// How many tasks a weight makes.
pub(super) fn tasks(weight: &Coded) -> usize {
    weight.groups().div_ceil(groups_per_task(weight))
}

/// Some groups' rows of one product.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// `[tokens, rows]`.
    pub y: Shared<'a>,
    pub weight: &'a Coded,
    /// Which of the weight's tasks.
    pub task: usize,
    /// `[tokens, columns]`.
    pub x: &'a [f32],
    /// `x` summed over the columns of each chunk, from [`extend_sums`].
    pub sums: &'a [f32],
}

impl Rows<'_> {
    /// Sets the rows with the vectors that this process computes with.
    pub(super) fn run(self) {
        #[cfg(target_arch = "x86_64")]
        match instructions() {
            Arch::V4(_) if self.x.len() >= 8 * self.weight.columns() => {
                // SAFETY: the instructions are there.
                return unsafe { many_with_avx512(self) };
            }
            // SAFETY: as above.
            Arch::V4(_) => return unsafe { with_avx512(self) },
            // SAFETY: as above.
            Arch::V3(_) if is_x86_feature_detected!("f16c") => return unsafe { with_avx2(self) },
            _ => {}
        }
        // SAFETY: plain loops need nothing.
        unsafe { self.all_tokens::<Portable, 6, 2, 1>() };
    }

    /// Each figure is how many vectors of rows are kept in registers with 1, 4 and 8 tokens.
    #[inline(always)]
    unsafe fn all_tokens<L: Lanes, const V1: usize, const V4: usize, const V8: usize>(self) {
        let each = groups_per_task(self.weight);
        for group in (self.task * each..self.weight.groups()).take(each) {
            // SAFETY: by the caller.
            unsafe { self.group::<L, V1, V4, V8>(group) };
        }
    }

    /// Goes through a group once for up to [`TOKENS`] tokens.
    #[inline(always)]
    unsafe fn group<L: Lanes, const V1: usize, const V4: usize, const V8: usize>(
        &self,
        group: usize,
    ) {
        let (rows, columns) = (self.weight.rows(), self.weight.columns());
        let chunks = self.weight.chunks();
        let first = group * GROUP;
        let inputs = self.x.chunks(TOKENS * columns);
        for (batch, (x, sums)) in inputs.zip(self.sums.chunks(TOKENS * chunks)).enumerate() {
            let count = x.len() / columns;
            let mut totals = [[0.0; GROUP]; TOKENS];
            for index in 0..chunks {
                let chunk = self.weight.chunk(group, index);
                prefetch_behind(chunk);
                let mut token = 0;
                while token < count {
                    let inputs = Inputs {
                        x: &x[token * columns + index * COLUMNS..],
                        stride: columns,
                        columns: COLUMNS.min(columns - index * COLUMNS),
                        sums: &sums[token * chunks + index..],
                        sums_stride: chunks,
                    };
                    let totals = &mut totals[token..count];
                    // SAFETY: by the caller.
                    token += unsafe {
                        match count - token {
                            8.. => add_chunk::<L, V8, 8>(totals, chunk, inputs),
                            4.. => add_chunk::<L, V4, 4>(totals, chunk, inputs),
                            _ => add_chunk::<L, V1, 1>(totals, chunk, inputs),
                        }
                    };
                }
            }
            for (token, totals) in totals[..count].iter().enumerate() {
                let at = (batch * TOKENS + token) * rows + first;
                let len = GROUP.min(rows - first);
                // SAFETY: every task has other rows of `y`, and none is read before all are written.
                let y = unsafe { self.y.part(at, len) };
                y.copy_from_slice(&totals[..len]);
            }
        }
    }
}

/// Asks for what lies a few kilobytes behind a chunk: the next chunks, or the next group's, across the pages'
/// borders at which the hardware stops.
#[inline(always)]
fn prefetch_behind(chunk: Chunk<'_>) {
    const AHEAD: usize = 4096;
    let lines = chunk.codes.chunks(64);
    for line in lines {
        prefetch_far(line.as_ptr().wrapping_add(AHEAD).cast());
    }
}

/// The inputs that one chunk is multiplied with.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    /// The first token's first column of the chunk.
    x: &'a [f32],
    /// Distance of tokens.
    stride: usize,
    /// Columns that there are.
    columns: usize,
    /// The sum of each token's columns.
    sums: &'a [f32],
    /// Distance of tokens in `sums`.
    sums_stride: usize,
}

impl Inputs<'_> {
    /// One column's value of a token.
    #[inline(always)]
    fn at(&self, token: usize, column: usize) -> f32 {
        debug_assert!(column < self.columns);
        // SAFETY: the chunk's columns lie within the token's row.
        unsafe { *self.x.get_unchecked(token * self.stride + column) }
    }
}

/// One row of vectors for each token.
type Sums<L, const V: usize, const T: usize> = [[<L as Lanes>::Floats; V]; T];

/// Adds the products of one chunk with `T` tokens to their totals, and gives `T`.
#[inline(always)]
unsafe fn add_chunk<L: Lanes, const V: usize, const T: usize>(
    totals: &mut [[f32; GROUP]],
    chunk: Chunk<'_>,
    x: Inputs<'_>,
) -> usize {
    let (totals, _) = totals.split_at_mut(T);
    for lane in (0..GROUP).step_by(V * L::N) {
        // SAFETY: by the caller; the vectors from `lane` on lie within the group.
        unsafe {
            let sums = products::<L, V, T>(chunk, lane, x);
            // A loop: closures in `from_fn` do not know of the instructions, and each vector would be a call.
            let mut factors = [(L::splat(0.0), None); V];
            for (v, factors) in factors.iter_mut().enumerate() {
                *factors = row_factors::<L>(chunk, lane + v * L::N);
            }
            for (t, (totals, sums)) in totals.iter_mut().zip(sums).enumerate() {
                for (v, (sum, (scale, minimum))) in sums.into_iter().zip(factors).enumerate() {
                    let total = totals.as_mut_ptr().add(lane + v * L::N);
                    let mut sum = L::mul_add(scale, sum, L::load(total));
                    if let Some(minimum) = minimum {
                        sum = L::mul_add(minimum, L::splat(x.sums[t * x.sums_stride]), sum);
                    }
                    L::store(sum, total);
                }
            }
        }
    }
    T
}

/// What a row's products and its inputs are multiplied with, for the rows from `lane` on.
#[inline(always)]
unsafe fn row_factors<L: Lanes>(chunk: Chunk<'_>, lane: usize) -> (L::Floats, Option<L::Floats>) {
    use BlockType::{Q4_0, Q4_1, Q4K, Q8_0};
    // SAFETY: by the caller; all offsets are those of the layout.
    unsafe {
        let head = chunk.head.as_ptr().cast::<u16>().wrapping_add(lane);
        let header = chunk.header.as_ptr().cast::<u16>().wrapping_add(lane);
        match chunk.block_type {
            Q8_0 => (L::f16s(head), None),
            Q4_0 => {
                let d = L::f16s(head);
                (d, Some(L::mul(d, L::splat(-8.0))))
            }
            Q4_1 => (L::f16s(head), Some(L::f16s(head.add(GROUP)))),
            Q4K => {
                let bytes = chunk.head.as_ptr().add(lane);
                let m = L::mul(L::f16s(header.add(GROUP)), L::splat(-1.0));
                (
                    L::mul(L::f16s(header), L::bytes(bytes)),
                    Some(L::mul(m, L::bytes(bytes.add(GROUP)))),
                )
            }
            _ => (L::splat(1.0), None),
        }
    }
}

/// The sums over the chunk's columns of code times input; of value times input where a type has no kernel of its own.
#[inline(always)]
unsafe fn products<L: Lanes, const V: usize, const T: usize>(
    chunk: Chunk<'_>,
    lane: usize,
    x: Inputs<'_>,
) -> Sums<L, V, T> {
    use BlockType::{Bf16, F16, Q4_0, Q4_1, Q4K, Q8_0};
    // SAFETY: by the caller; all offsets are those of the layout.
    unsafe {
        let mut sums = [[L::splat(0.0); V]; T];
        match chunk.block_type {
            Q4_0 | Q4_1 | Q4K => {
                let words = chunk.codes.as_ptr().cast::<u32>().add(lane);
                for word in 0..COLUMNS / 8 {
                    let mut low = [L::words(words.add(word * GROUP)); V];
                    for (v, low) in low.iter_mut().enumerate().skip(1) {
                        *low = L::words(words.add(word * GROUP + v * L::N));
                    }
                    // Eight columns, written out so that shifts are constants.
                    macro_rules! columns {
                        ($($index:literal)*) => {$(
                            add_column::<L, V, T>(&mut sums, x, 8 * word + $index, |v| {
                                L::nibbles(low[v], $index)
                            });
                        )*};
                    }
                    columns!(0 1 2 3 4 5 6 7);
                }
            }
            Q8_0 => {
                let codes = chunk.codes.as_ptr().add(lane);
                for column in 0..COLUMNS {
                    add_column::<L, V, T>(&mut sums, x, column, |v| {
                        L::signed_bytes(codes.add(column * GROUP + v * L::N))
                    });
                }
            }
            F16 => {
                let codes = chunk.codes.as_ptr().cast::<u16>().add(lane);
                for column in 0..x.columns {
                    add_column::<L, V, T>(&mut sums, x, column, |v| {
                        L::f16s(codes.add(column * GROUP + v * L::N))
                    });
                }
            }
            Bf16 => {
                let codes = chunk.codes.as_ptr().cast::<u16>().add(lane);
                for column in 0..x.columns {
                    add_column::<L, V, T>(&mut sums, x, column, |v| {
                        L::bf16s(codes.add(column * GROUP + v * L::N))
                    });
                }
            }
            _ => {
                let mut values = [[0.0; GROUP]; COLUMNS];
                chunk.unpack(&mut values);
                let values = values.as_flattened().as_ptr().add(lane);
                for column in 0..COLUMNS {
                    add_column::<L, V, T>(&mut sums, x, column, |v| {
                        L::load(values.add(column * GROUP + v * L::N))
                    });
                }
            }
        }
        sums
    }
}

/// Adds `weight * x` of one column for all tokens.
#[inline(always)]
unsafe fn add_column<L: Lanes, const V: usize, const T: usize>(
    sums: &mut Sums<L, V, T>,
    x: Inputs<'_>,
    column: usize,
    weight: impl Fn(usize) -> L::Floats,
) {
    // SAFETY: by the caller.
    unsafe {
        let mut weights = [L::splat(0.0); V];
        for (v, slot) in weights.iter_mut().enumerate() {
            *slot = weight(v);
        }
        for (t, sums) in sums.iter_mut().enumerate() {
            let x = L::splat(x.at(t, column));
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = L::mul_add(weight, x, *sum);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn with_avx512(rows: Rows<'_>) {
    // SAFETY: by the caller.
    unsafe { rows.all_tokens::<Avx512, 3, 3, 1>() };
}

/// For eight tokens and more, apart so that fewer tokens' registers are not short of what these need.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn many_with_avx512(rows: Rows<'_>) {
    // SAFETY: by the caller.
    unsafe { rows.all_tokens::<Avx512, 3, 3, 3>() };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn with_avx2(rows: Rows<'_>) {
    // SAFETY: by the caller.
    unsafe { rows.all_tokens::<Avx2, 6, 2, 1>() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::{StoredRows, WeightMatrix, weight::tests::stored_bytes},
        ops::test_values::{assert_close, values},
    };

    const TYPES: [BlockType; 9] = [
        BlockType::F16,
        BlockType::Bf16,
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_1,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
    ];

    /// `y` of all groups, by one way of computing a group.
    fn all(weight: &Coded, x: &[f32], rows: impl Fn(Rows<'_>)) -> Vec<f32> {
        let mut y = vec![f32::NAN; x.len() / weight.columns() * weight.rows()];
        let mut sums = Vec::new();
        extend_sums(&mut sums, x, weight.columns());
        let shared = Shared::new(&mut y);
        for task in 0..tasks(weight) {
            rows(Rows {
                y: shared,
                weight,
                task,
                x,
                sums: &sums,
            });
        }
        y
    }

    fn check(rows: impl Fn(Rows<'_>)) {
        let (outputs, columns, tokens) = (GROUP + 29, 512, 29);
        let x = values(3, tokens * columns);
        for block_type in TYPES {
            let bytes = stored_bytes(block_type, outputs, columns);
            let w = block_type.dequantise(&bytes);
            let held = WeightMatrix::from_stored(StoredRows {
                block_type,
                bytes: &bytes,
                rows: outputs,
                columns,
            });
            let Ok(WeightMatrix::Coded(weight)) = held else {
                panic!("{block_type} is held as f32");
            };
            let expected: Vec<f64> = x
                .chunks(columns)
                .flat_map(|x| w.chunks(columns).map(move |w| (x, w)))
                .map(|(x, w)| {
                    let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    products.sum()
                })
                .collect();
            let y = all(&weight, &x, &rows);
            // Sums of 512 products whose codes reach 16 times the values.
            assert_close(&block_type.to_string(), &y, &expected, 1e-5);
            for (x, y) in x.chunks(columns).zip(y.chunks(outputs)) {
                assert!(all(&weight, x, &rows) == y, "{block_type}: a token alone");
            }
        }
    }

    #[test]
    fn products_agree_with_their_definition_and_a_token_is_the_same_alone() {
        check(|rows| rows.run());
        // SAFETY: plain loops need nothing.
        check(|rows| unsafe { rows.all_tokens::<Portable, 6, 2, 1>() });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn products_with_narrower_vectors_agree_with_their_definition() {
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            // SAFETY: the instructions are there.
            check(|rows| unsafe { with_avx2(rows) });
        }
    }
}
