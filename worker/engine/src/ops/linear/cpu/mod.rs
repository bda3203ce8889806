//! A linear layer for a few tokens on the CPU: bound by reading the weights once.

use pulp::{Simd, WithSimd};

mod coded;
mod lanes;

use super::Lora;
use crate::device::{PANEL, Shared, Team, WeightMatrix, math::dispatch};

/// Values of a panel that are multiplied together: a whole number of registers and of columns.
const RUN: usize = 4 * PANEL;

/// Panels per task.
const TASK_PANELS: usize = 8;

/// Sets each `y` `[tokens, rows]` to its weight times the same `x` `[tokens, columns]`.
pub(super) fn products(
    outputs: &mut [(&mut [f32], &WeightMatrix)],
    x: &[f32],
    scratch: &mut Vec<f32>,
    team: &Team,
) {
    scratch.clear();
    let is_coded = |w: &WeightMatrix| matches!(w, WeightMatrix::Coded(_));
    if outputs.iter().any(|(_, w)| !is_coded(w)) {
        // Every value of x once per row of a panel, so that panels are multiplied as they lie.
        scratch.extend(x.iter().flat_map(|&x| [x; PANEL]));
    }
    let spread = scratch.len();
    if let Some((_, w)) = outputs.iter().find(|(_, w)| is_coded(w)) {
        coded::extend_sums(scratch, x, w.columns());
    }
    let (spread, sums) = scratch.split_at(spread);
    let mut parts = Vec::new();
    for (y, w) in outputs {
        let (rows, columns) = (w.rows(), w.columns());
        assert_eq!(
            (y.len() * columns, x.len() % columns),
            (rows * x.len(), 0),
            "shapes of a product"
        );
        let y = Shared::new(y);
        match w {
            WeightMatrix::Panels(panels) => {
                let tasks = panels.packed().chunks(TASK_PANELS * PANEL * columns);
                parts.extend(tasks.enumerate().map(|(task, panels)| {
                    Part::Panels(Rows {
                        y,
                        rows,
                        first: task * TASK_PANELS * PANEL,
                        panels,
                        columns,
                        spread,
                    })
                }));
            }
            WeightMatrix::Coded(weight) => {
                parts.extend((0..weight.groups()).map(|group| {
                    Part::Coded(coded::Rows {
                        y,
                        weight,
                        group,
                        x,
                        sums,
                    })
                }));
            }
        }
    }
    team.share(parts, |part| match part {
        Part::Panels(rows) => dispatch(rows),
        Part::Coded(rows) => rows.run(),
    });
}

/// One task.
enum Part<'a> {
    Panels(Rows<'a>),
    Coded(coded::Rows<'a>),
}

/// Some panels' rows of one layer's output, for all tokens.
struct Rows<'a> {
    /// `[tokens, rows]`.
    y: Shared<'a>,
    rows: usize,
    /// The first row of `panels`.
    first: usize,
    panels: &'a [f32],
    columns: usize,
    spread: &'a [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (i, panel) in self.panels.chunks_exact(PANEL * self.columns).enumerate() {
            let first = self.first + i * PANEL;
            let count = PANEL.min(self.rows - first);
            let (runs, tail) = panel.as_chunks::<RUN>();
            for (token, spread) in self.spread.chunks_exact(panel.len()).enumerate() {
                let (spread_runs, spread_tail) = spread.as_chunks::<RUN>();
                let mut sums = [0.0; RUN];
                add_products(simd, &mut sums, runs, spread_runs);
                for (i, (weight, x)) in tail.iter().zip(spread_tail).enumerate() {
                    sums[i] += weight * x;
                }
                // SAFETY: every task has other rows of `y`, and none is read before all are written.
                let y = unsafe { self.y.part(token * self.rows + first, count) };
                for (row, y) in y.iter_mut().enumerate() {
                    *y = sums[row..].iter().step_by(PANEL).sum();
                }
            }
        }
    }
}

/// `y += B (scale * A x)` for one token.
pub(super) fn add_pair(y: &mut [f32], x: &[f32], lora: Lora<'_>) {
    let u: Vec<f32> = lora
        .a
        .chunks_exact(x.len())
        .map(|a| lora.scale * dot(a, x))
        .collect();
    for (y, b) in y.iter_mut().zip(lora.b.chunks_exact(lora.rank)) {
        *y += dot(b, &u);
    }
}

/// Many sums side by side, which the compiler turns into registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (a_runs, a_tail) = a.as_chunks::<LANES>();
    let (b_runs, b_tail) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a_runs.iter().zip(b_runs) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + tail
}

/// `sums[i] += sum over runs of a[run][i] * b[run][i]`.
#[inline(always)]
fn add_products<S: Simd>(simd: S, sums: &mut [f32; RUN], a: &[[f32; RUN]], b: &[[f32; RUN]]) {
    /// Registers that hold the sums at most: those of 4 lanes.
    const REGISTERS: usize = RUN / 4;
    let mut registers = [simd.splat_f32s(0.0); REGISTERS];
    let count = RUN / S::F32_LANES;
    if count > REGISTERS {
        for (a, b) in a.iter().zip(b) {
            sums.iter_mut()
                .zip(a)
                .zip(b)
                .for_each(|((sum, a), b)| *sum += a * b);
        }
        return;
    }
    for (a, b) in a.iter().zip(b) {
        let (a, _) = S::as_simd_f32s(a);
        let (b, _) = S::as_simd_f32s(b);
        for i in 0..count {
            registers[i] = simd.mul_add_e_f32s(a[i], b[i], registers[i]);
        }
    }
    let (sums, _) = S::as_mut_simd_f32s(sums);
    sums.iter_mut()
        .zip(registers)
        .for_each(|(sum, register)| *sum = register);
}
