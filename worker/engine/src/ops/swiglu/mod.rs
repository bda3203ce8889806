//! SwiGLU: the feed-forward layer's gate times its input.
//!
//! ```text
//! s = sigmoid(gate)             h = gate * s * up
//! dgate = dh * up * s * (1 + gate * (1 - s))        dup = dh * gate * s
//! ```

mod cpu;

use crate::{
    device::{Activations, ActivationsMut},
    profile::{Operation, Timed},
};

/// `h`, `gate` and `up` `[tokens, width]`.
pub fn swiglu_forward(h: &mut ActivationsMut<'_>, gate: Activations<'_>, up: Activations<'_>) {
    let shape = (h.width(), h.blocks());
    assert!(shape == (gate.width(), gate.blocks()) && shape == (up.width(), up.blocks()));
    let _timed = Timed::begin(Operation::Swiglu, 0);
    cpu::forward(h, gate, up);
}

/// One token: `gate` becomes `h`.
pub fn swiglu_one(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "one width");
    cpu::one(gate, up);
}

/// Replaces `gate` and `up` by their gradients, and the gradient `dh` by `h` itself, which the gradients of the
/// following layer's weights need.
pub fn swiglu_backward(
    gate: &mut ActivationsMut<'_>,
    up: &mut ActivationsMut<'_>,
    dh: &mut ActivationsMut<'_>,
) {
    let shape = (dh.width(), dh.blocks());
    assert!(shape == (gate.width(), gate.blocks()) && shape == (up.width(), up.blocks()));
    let _timed = Timed::begin(Operation::SwigluGradient, 0);
    cpu::backward(gate, up, dh);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::{Checked, blocks, values};

    #[test]
    fn forward_and_gradients_agree_with_finite_differences() {
        let (tokens, width) = (33, 9);
        let scaled = |seed| -> Vec<f32> {
            values(seed, tokens * width)
                .iter()
                .map(|v| 4.0 * v)
                .collect()
        };
        let (gate, up, dh) = (scaled(1), scaled(2), scaled(3));
        let reference = |inputs: &[Vec<f64>]| -> Vec<f64> {
            let pairs = inputs[0].iter().zip(&inputs[1]);
            pairs.map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
        };
        let (mut gb, mut ub, mut dhb) = (
            blocks(&gate, tokens),
            blocks(&up, tokens),
            blocks(&dh, tokens),
        );
        let mut h = vec![f32::NAN; gb.len()];
        let mut h = ActivationsMut::new(&mut h, width);
        swiglu_forward(
            &mut h,
            Activations::new(&gb, width),
            Activations::new(&ub, width),
        );
        let mut one = gate[..width].to_vec();
        swiglu_one(&mut one, &up[..width]);
        assert_eq!(one, h.view().to_rows(1), "one token gets the same bits");
        let (mut dgate, mut dup) = (
            ActivationsMut::new(&mut gb, width),
            ActivationsMut::new(&mut ub, width),
        );
        let mut again = ActivationsMut::new(&mut dhb, width);
        swiglu_backward(&mut dgate, &mut dup, &mut again);
        assert_eq!(again.data(), h.data());
        Checked::new(&h.view().to_rows(tokens), 1e-6)
            .forward(reference, &[&gate, &up])
            .gradients(
                &dh,
                &[&dgate.view().to_rows(tokens), &dup.view().to_rows(tokens)],
                1e-6,
            );
    }
}
