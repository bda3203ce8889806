//! Weights packed for matrix products: panels of rows, so that one copy serves forward and backward.

use rayon::prelude::*;

use super::{Buffer, run};
use crate::EngineError;

/// Rows per panel.
pub(crate) const PANEL: usize = 12;

/// A weight matrix `[rows, columns]` (outputs by inputs) as `[rows / 12][column][12]`; the last panel's missing
/// rows are zero.
///
/// The forward product walks a panel's columns in order. The backward product needs 12 columns of each row, which
/// lie within 576 neighbouring bytes per panel: both read whole cache lines.
#[derive(Debug)]
pub struct Panels {
    buffer: Buffer,
    rows: usize,
    columns: usize,
    is_bf16: bool,
}

impl Panels {
    /// Packs row-major `values`.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] when there is no room for them.
    pub fn pack(values: &[f32], rows: usize, columns: usize) -> Result<Self, EngineError> {
        assert_eq!(
            values.len(),
            rows * columns,
            "a matrix of {rows} x {columns}"
        );
        let mut panels = Self {
            buffer: Buffer::zeroed(rows.next_multiple_of(PANEL) * columns)?,
            rows,
            columns,
            is_bf16: false,
        };
        panels.repack(values);
        Ok(panels)
    }

    /// Replaces all values by row-major ones of the same shape.
    pub fn repack(&mut self, values: &[f32]) {
        let (rows, columns) = (self.rows, self.columns);
        let packed = self.buffer.as_mut_slice();
        self.is_bf16 = run(|| {
            values
                .par_chunks(columns)
                .all(|row| row.iter().all(|value| value.to_bits() << 16 == 0))
        });
        run(|| {
            packed
                .par_chunks_mut(PANEL * columns)
                .enumerate()
                .for_each(|(p, panel)| {
                    for r in 0..PANEL.min(rows - p * PANEL) {
                        let row = &values[(p * PANEL + r) * columns..][..columns];
                        for (value, x) in panel[r..].iter_mut().step_by(PANEL).zip(row) {
                            *value = *x;
                        }
                    }
                });
        });
    }

    /// Number of rows: the width of the forward product's output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the width of the forward product's input.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Whether every value is a bf16.
    pub fn is_bf16(&self) -> bool {
        self.is_bf16
    }

    /// All packed values.
    pub(crate) fn packed(&self) -> &[f32] {
        self.buffer.as_slice()
    }

    /// One value.
    pub(crate) fn value(&self, row: usize, column: usize) -> f32 {
        self.packed()[(row / PANEL * self.columns + column) * PANEL + row % PANEL]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_panels() {
        let (rows, columns) = (PANEL + 5, 7);
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let panels = Panels::pack(&values, rows, columns).unwrap();
        for row in 0..rows {
            let found: Vec<f32> = (0..columns).map(|c| panels.value(row, c)).collect();
            assert_eq!(found, values[row * columns..][..columns]);
        }
    }
}
