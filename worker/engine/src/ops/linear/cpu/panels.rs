//! f32 weights times a few tokens: a panel's rows in lanes, columns in order, each weight read once for all tokens.
//!
//! Every output is one sum in the order of the columns, whatever tokens are beside it.

use pulp::{Simd, WithSimd};

use super::TASK_BYTES;
use crate::device::{PANEL, Panels, Shared, tile::prefetch_far};

/// Panels per task.
fn panels_per_task(weight: &Panels) -> usize {
    TASK_BYTES.div_ceil(PANEL * weight.columns() * size_of::<f32>())
}

/// Columns that all tokens are multiplied with before the next ones; they stay in the first-level cache.
const CHUNK: usize = 32;

/// Tokens whose totals are kept at once.
const TOKENS: usize = 16;

/// A panel's rows in whole registers of whatever width.
const WIDTH: usize = 16;
type Totals = [f32; WIDTH];

/// How many tasks a weight makes.
pub(super) fn tasks(weight: &Panels) -> usize {
    weight.rows().div_ceil(panels_per_task(weight) * PANEL)
}

/// Some panels' rows of one layer's output, for all tokens.
pub(super) struct Rows<'a> {
    /// `[tokens, rows]`.
    pub y: Shared<'a>,
    pub weight: &'a Panels,
    /// Which of the weight's tasks.
    pub task: usize,
    /// `[tokens, columns]`.
    pub x: &'a [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    /// The figures are registers for a panel's rows, and tokens whose sums fit beside them.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.all_tokens::<S, 1, 8>(simd),
            8 => self.all_tokens::<S, 2, 4>(simd),
            4 => self.all_tokens::<S, 3, 2>(simd),
            _ => self.all_tokens::<S, PANEL, 1>(simd),
        }
    }
}

impl Rows<'_> {
    #[inline(always)]
    fn all_tokens<S: Simd, const V: usize, const T: usize>(self, simd: S) {
        let (rows, columns) = (self.weight.rows(), self.weight.columns());
        let each = panels_per_task(self.weight);
        let first = self.task * each * PANEL;
        let panels = &self.weight.packed()[first * columns..];
        let panels = panels.chunks_exact(PANEL * columns).take(each);
        for (i, panel) in panels.enumerate() {
            let row = first + i * PANEL;
            let (panel, _) = panel.as_chunks::<PANEL>();
            for (batch, x) in self.x.chunks(TOKENS * columns).enumerate() {
                let count = x.len() / columns;
                let mut totals = [[0.0; WIDTH]; TOKENS];
                for (chunk, weights) in panel.chunks(CHUNK).enumerate() {
                    prefetch_behind(weights);
                    let x = &x[chunk * CHUNK..];
                    let mut token = 0;
                    while token + T <= count {
                        let totals = &mut totals[token..token + T];
                        add_columns::<S, V, T>(
                            simd,
                            totals,
                            weights,
                            &x[token * columns..],
                            columns,
                        );
                        token += T;
                    }
                    for token in token..count {
                        let totals = &mut totals[token..=token];
                        add_columns::<S, V, 1>(
                            simd,
                            totals,
                            weights,
                            &x[token * columns..],
                            columns,
                        );
                    }
                }
                let len = PANEL.min(rows - row);
                for (token, totals) in totals[..count].iter().enumerate() {
                    // SAFETY: every task has other rows of `y`, and none is read before all are written.
                    let y = unsafe { self.y.part((batch * TOKENS + token) * rows + row, len) };
                    y.copy_from_slice(&totals[..len]);
                }
            }
        }
    }
}

/// Asks for what lies a few kilobytes behind some weights, across the pages' borders at which the hardware stops.
#[inline(always)]
fn prefetch_behind(weights: &[[f32; PANEL]]) {
    const AHEAD: usize = 1024;
    const LINE: usize = 16;
    let weights = weights.as_flattened();
    for line in weights.chunks(LINE) {
        prefetch_far(line.as_ptr().wrapping_add(AHEAD));
    }
}

/// `totals[token][row] += sum over columns of weights[column][row] * x[token][column]` for `T` tokens whose inputs lie
/// `stride` apart.
#[inline(always)]
fn add_columns<S: Simd, const V: usize, const T: usize>(
    simd: S,
    totals: &mut [Totals],
    weights: &[[f32; PANEL]],
    x: &[f32],
    stride: usize,
) {
    let mut sums = [[simd.splat_f32s(0.0); V]; T];
    for (sums, totals) in sums.iter_mut().zip(&*totals) {
        let (totals, _) = S::as_simd_f32s(totals);
        sums.iter_mut()
            .zip(totals)
            .for_each(|(sum, total)| *sum = *total);
    }
    let x: [&[f32]; T] = std::array::from_fn(|t| &x[t * stride..][..weights.len()]);
    let weights = weights.as_flattened();
    // Whole registers also take in what lies behind a column, which no row of the totals is made of.
    for (column, weights) in weights.windows(WIDTH).step_by(PANEL).enumerate() {
        add_column(simd, &mut sums, weights, x.map(|x| x[column]));
    }
    let mut last = [0.0; WIDTH];
    let end = weights.len() - PANEL;
    last[..PANEL].copy_from_slice(&weights[end..]);
    add_column(simd, &mut sums, &last, x.map(|x| x[end / PANEL]));
    for (sums, totals) in sums.iter().zip(totals) {
        let (totals, _) = S::as_mut_simd_f32s(totals);
        totals
            .iter_mut()
            .zip(sums)
            .for_each(|(total, sum)| *total = *sum);
    }
}

/// `sums[token][row] += weights[row] * x[token]`.
#[inline(always)]
fn add_column<S: Simd, const V: usize, const T: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; T],
    weights: &[f32],
    x: [f32; T],
) {
    let (weights, _) = S::as_simd_f32s(weights);
    let weights: [S::f32s; V] = std::array::from_fn(|v| weights[v]);
    for t in 0..T {
        let x = simd.splat_f32s(x[t]);
        for v in 0..V {
            sums[t][v] = simd.mul_add_e_f32s(weights[v], x, sums[t][v]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        device::math::dispatch,
        ops::test_values::{assert_close, values},
    };

    #[test]
    fn products_agree_with_their_definition_and_a_token_is_the_same_alone() {
        let (rows, columns, tokens) = (30 * PANEL + 17, 77, 29);
        let (x, w) = (values(1, tokens * columns), values(2, rows * columns));
        let weight = Panels::pack(&w, rows, columns).unwrap();
        let all = |x: &[f32]| {
            let mut y = vec![f32::NAN; x.len() / columns * rows];
            let shared = Shared::new(&mut y);
            for task in 0..tasks(&weight) {
                dispatch(Rows {
                    y: shared,
                    weight: &weight,
                    task,
                    x,
                });
            }
            y
        };
        let dot = |x: &[f32], w: &[f32]| -> f64 {
            let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            products.sum()
        };
        let expected: Vec<f64> = x
            .chunks(columns)
            .flat_map(|x| w.chunks(columns).map(move |w| dot(x, w)))
            .collect();
        let y = all(&x);
        assert_close("y", &y, &expected, 1e-5);
        for (x, y) in x.chunks(columns).zip(y.chunks(rows)) {
            assert!(all(x) == y, "a token alone");
        }
    }
}
