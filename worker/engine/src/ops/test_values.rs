//! What the tests of operations share: values that look random, and a check against finite differences in f64.

use crate::device::{ActivationsMut, padded_tokens};

/// Values in -1..1 that look random and are always the same.
pub(crate) fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Row-major values of `tokens` tokens in the layout of activations, missing lanes zero.
pub(crate) fn blocks(rows: &[f32], tokens: usize) -> Vec<f32> {
    let width = rows.len() / tokens;
    let mut data = vec![0.0; padded_tokens(tokens) * width];
    ActivationsMut::new(&mut data, width).set_rows(rows);
    data
}

/// Asserts that values are within `tolerance` of others, both absolutely and relatively to the largest.
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let scale = expected.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= tolerance * scale,
            "{what}, value {i}: {found}, not {expected}"
        );
    }
}

/// An operation's result, to be checked against a reference in f64.
pub(crate) struct Checked<'a> {
    found: &'a [f32],
    tolerance: f64,
}

/// A checked forward pass, whose gradients are checked next.
pub(crate) struct CheckedForward<F> {
    reference: F,
    inputs: Vec<Vec<f64>>,
}

impl<'a> Checked<'a> {
    /// What the operation gave, and how far it may be off.
    pub(crate) fn new(found: &'a [f32], tolerance: f64) -> Self {
        Self { found, tolerance }
    }

    /// Compares with the reference on the same inputs.
    pub(crate) fn forward<F: Fn(&[Vec<f64>]) -> Vec<f64>>(
        self,
        reference: F,
        inputs: &[&[f32]],
    ) -> CheckedForward<F> {
        let inputs: Vec<Vec<f64>> = inputs
            .iter()
            .map(|i| i.iter().map(|&x| f64::from(x)).collect())
            .collect();
        assert_close("forward", self.found, &reference(&inputs), self.tolerance);
        CheckedForward { reference, inputs }
    }
}

impl<F: Fn(&[Vec<f64>]) -> Vec<f64>> CheckedForward<F> {
    /// Compares the gradients of `sum(dy * y)` by each input with central differences.
    pub(crate) fn gradients(self, dy: &[f32], gradients: &[&[f32]], tolerance: f64) {
        const H: f64 = 1e-5;
        for (input, gradient) in gradients.iter().enumerate() {
            let mut inputs = self.inputs.clone();
            let mut loss = |i: usize, change: f64| -> f64 {
                let before = inputs[input][i];
                inputs[input][i] += change;
                let y = (self.reference)(&inputs);
                inputs[input][i] = before;
                y.iter().zip(dy).map(|(y, dy)| y * f64::from(*dy)).sum()
            };
            // An odd stride keeps large inputs quick and still reaches every row and column.
            let stride = (gradient.len() / 100) | 1;
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            for i in (0..gradient.len()).step_by(stride) {
                found.push(gradient[i]);
                expected.push((loss(i, H) - loss(i, -H)) / (2.0 * H));
            }
            assert_close(
                &format!("gradient of input {input}"),
                &found,
                &expected,
                tolerance,
            );
        }
    }
}
