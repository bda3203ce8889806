//! RMSNorm: each token divided by the root of its mean square, times a weight per feature.
//!
//! ```text
//! rstd  = 1 / sqrt(mean(x^2) + eps)                 y = w * x * rstd
//! dx    = rstd * (w * dy - x * rstd^2 * mean(w * dy * x))
//! dw   += sum over tokens of dy * x * rstd
//! ```

mod cpu;

use crate::{
    device::{Activations, ActivationsMut, LANES},
    profile::{Operation, Timed},
};

/// `y` and `x` `[tokens, width]`, `rstd` `[tokens, 1]`, `w` `[width]`.
pub fn rms_norm_forward(
    y: &mut ActivationsMut<'_>,
    rstd: &mut [f32],
    x: Activations<'_>,
    w: &[f32],
    eps: f32,
) {
    assert_eq!(
        (y.width(), y.blocks(), w.len()),
        (x.width(), x.blocks(), x.width())
    );
    assert_eq!(rstd.len(), x.blocks() * LANES);
    let _timed = Timed::begin(Operation::Norm, 0);
    cpu::forward(y, rstd, x, w, eps);
}

/// `y` again from `x` and the `rstd` that the forward pass kept.
pub fn rms_norm_again(y: &mut ActivationsMut<'_>, rstd: &[f32], x: Activations<'_>, w: &[f32]) {
    assert_eq!(
        (y.width(), y.blocks(), w.len()),
        (x.width(), x.blocks(), x.width())
    );
    let _timed = Timed::begin(Operation::Norm, 0);
    cpu::again(y, rstd, x, w);
}

/// One token: `y`, `x` and `w` `[width]`.
pub fn rms_norm_one(y: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    let rstd = cpu::inverse_root_one(x, eps);
    for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
        *y = w * (x * rstd);
    }
}

/// One token in place: `x` and `w` `[width]`.
pub fn rms_norm_in_place(x: &mut [f32], w: &[f32], eps: f32) {
    let rstd = cpu::inverse_root_one(x, eps);
    for (x, w) in x.iter_mut().zip(w) {
        *x = w * (*x * rstd);
    }
}

/// Adds the gradient of `x` to `dx`, which already holds the gradient that came past this layer.
pub fn rms_norm_backward(
    dx: &mut ActivationsMut<'_>,
    dy: Activations<'_>,
    x: Activations<'_>,
    rstd: &[f32],
    w: &[f32],
) {
    assert_eq!((dx.width(), dx.blocks()), (x.width(), x.blocks()));
    assert_eq!(
        (dy.width(), dy.blocks(), w.len()),
        (x.width(), x.blocks(), x.width())
    );
    let _timed = Timed::begin(Operation::NormGradient, 0);
    cpu::backward(dx, dy, x, rstd, w);
}

/// Adds the gradient of `w` to `dw`.
pub fn rms_norm_backward_weight(
    dw: &mut [f32],
    dy: Activations<'_>,
    x: Activations<'_>,
    rstd: &[f32],
) {
    assert_eq!(dw.len(), x.width());
    let _timed = Timed::begin(Operation::NormGradient, 0);
    cpu::backward_weight(dw, dy, x, rstd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::{Checked, blocks, values};

    #[test]
    fn forward_and_gradients_agree_with_finite_differences() {
        let (tokens, width, eps) = (35, 24, 1e-5);
        let (x, w, dy) = (
            values(1, tokens * width),
            values(2, width),
            values(3, tokens * width),
        );
        let reference = |x: &[f64], w: &[f64]| -> Vec<f64> {
            let rows = x.chunks(width).flat_map(|x| {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
                let rstd = 1.0 / (mean + f64::from(eps)).sqrt();
                x.iter()
                    .zip(w)
                    .map(move |(x, w)| x * rstd * w)
                    .collect::<Vec<_>>()
            });
            rows.collect()
        };
        let (xb, dyb) = (blocks(&x, tokens), blocks(&dy, tokens));
        let (xb, dyb) = (Activations::new(&xb, width), Activations::new(&dyb, width));
        let mut y = vec![f32::NAN; xb.data().len()];
        let mut y = ActivationsMut::new(&mut y, width);
        let mut rstd = vec![f32::NAN; xb.blocks() * LANES];
        rms_norm_forward(&mut y, &mut rstd, xb, &w, eps);
        let first = y.data().to_vec();
        y.data().fill(f32::NAN);
        rms_norm_again(&mut y, &rstd, xb, &w);
        assert_eq!(first, y.data(), "the second pass gives the same bits");

        let before = values(4, tokens * width);
        let mut dx = blocks(&before, tokens);
        let mut dx = ActivationsMut::new(&mut dx, width);
        rms_norm_backward(&mut dx, dyb, xb, &rstd, &w);
        let mut dw = vec![0.0; width];
        rms_norm_backward_weight(&mut dw, dyb, xb, &rstd);

        let dx: Vec<f32> = dx
            .view()
            .to_rows(tokens)
            .iter()
            .zip(&before)
            .map(|(dx, b)| dx - b)
            .collect();
        Checked::new(&y.view().to_rows(tokens), 2e-6)
            .forward(|inputs| reference(&inputs[0], &inputs[1]), &[&x, &w])
            .gradients(&dy, &[&dx, &dw], 2e-5);
    }
}
