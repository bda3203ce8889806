//! A linear layer for one token on the CPU: bound by reading the weights once.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::device::{PANEL, Panels, math::dispatch};

/// Values of a panel that are multiplied together: a whole number of registers and of columns.
const RUN: usize = 4 * PANEL;

/// Panels per task.
const TASK_PANELS: usize = 8;

/// Sets each `y` to its weight times the same `x`.
pub(super) fn products(outputs: &mut [(&mut [f32], &Panels)], x: &[f32], scratch: &mut Vec<f32>) {
    // Every value of x once per row of a panel, so that panels are multiplied as they lie.
    scratch.clear();
    scratch.extend(x.iter().flat_map(|&x| [x; PANEL]));
    let spread: &[f32] = scratch;
    let parts: Vec<(&mut [f32], &[f32])> = outputs
        .iter_mut()
        .flat_map(|(y, w)| {
            assert_eq!(
                (y.len(), x.len()),
                (w.rows(), w.columns()),
                "shapes of a product"
            );
            let panels = w.packed().chunks(TASK_PANELS * PANEL * w.columns());
            y.chunks_mut(TASK_PANELS * PANEL).zip(panels)
        })
        .collect();
    parts
        .into_par_iter()
        .for_each(|(y, panels)| dispatch(Rows { y, panels, spread }));
}

/// Some panels' rows.
struct Rows<'a> {
    y: &'a mut [f32],
    panels: &'a [f32],
    spread: &'a [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (y, panel) in self
            .y
            .chunks_mut(PANEL)
            .zip(self.panels.chunks_exact(self.spread.len()))
        {
            let (runs, tail) = panel.as_chunks::<RUN>();
            let (spread_runs, spread_tail) = self.spread.as_chunks::<RUN>();
            let mut sums = [0.0; RUN];
            add_products(simd, &mut sums, runs, spread_runs);
            for (i, (weight, x)) in tail.iter().zip(spread_tail).enumerate() {
                sums[i] += weight * x;
            }
            for (row, y) in y.iter_mut().enumerate() {
                *y = sums[row..].iter().step_by(PANEL).sum();
            }
        }
    }
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
