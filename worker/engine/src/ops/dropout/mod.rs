//! Dropout of LoRA's inputs: some values become zero, the others grow so that the mean stays.
//!
//! ```text
//! keep[t, i] = hash(key, t, i) >= p          y[t, i] = keep[t, i] * x[t, i] / (1 - p)
//! dx[t, i] += keep[t, i] * dy[t, i] / (1 - p)
//! ```
//!
//! Whether a value is kept depends on nothing but the key, its feature and its token's place in the optimizer step, so
//! that the backward pass, a resumed run, and a step that is cut into other micro-batches find the same mask again
//! without its being stored.

mod cpu;

use crate::device::{Activations, ActivationsMut};

/// What selects a mask, and how much it drops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Probability of being dropped, 0 up to but not including 1.
    pub probability: f32,
    /// Selects the mask: another one for every step and module.
    pub key: u64,
    /// The place of the first token among those of the step.
    pub first_token: u32,
}

/// `y` and `x` `[tokens, width]`.
pub fn dropout_forward(y: &mut ActivationsMut<'_>, x: Activations<'_>, dropout: Dropout) {
    assert_eq!((y.width(), y.blocks()), (x.width(), x.blocks()));
    cpu::forward(y, x, dropout);
}

/// Adds the gradient of `x` to `dx`.
pub fn dropout_backward(dx: &mut ActivationsMut<'_>, dy: Activations<'_>, dropout: Dropout) {
    assert_eq!((dx.width(), dx.blocks()), (dy.width(), dy.blocks()));
    cpu::backward(dx, dy, dropout);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LANES;

    #[test]
    fn masks_drop_the_asked_share_and_come_back_for_the_same_key() {
        let (width, blocks) = (64, 40);
        let x = vec![1.0; width * LANES * blocks];
        let x = Activations::new(&x, width);
        let mask = |key, probability| {
            let mut y = vec![f32::NAN; x.data().len()];
            dropout_forward(
                &mut ActivationsMut::new(&mut y, width),
                x,
                Dropout {
                    probability,
                    key,
                    first_token: 0,
                },
            );
            y
        };
        let first = mask(1, 0.25);
        assert_eq!(first, mask(1, 0.25));
        assert_ne!(first, mask(2, 0.25));
        assert!(mask(1, 0.0).iter().all(|&v| v == 1.0));
        let dropped = first.iter().filter(|&&v| v == 0.0).count() as f64 / first.len() as f64;
        assert!((dropped - 0.25).abs() < 0.01, "dropped {dropped}");
        assert!(
            first
                .iter()
                .all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6)
        );

        let mut dx = vec![1.0; first.len()];
        let dropout = Dropout {
            probability: 0.25,
            key: 1,
            first_token: 0,
        };
        dropout_backward(&mut ActivationsMut::new(&mut dx, width), x, dropout);
        assert!(dx.iter().zip(&first).all(|(dx, y)| *dx == 1.0 + y));
    }
    #[test]
    fn a_token_has_the_same_mask_whatever_stands_before_it_in_its_batch() {
        let (width, blocks) = (24, 3);
        let x = vec![1.0; width * LANES * blocks];
        let mask = |blocks: usize, first_token| {
            let x = Activations::new(&x[..width * LANES * blocks], width);
            let mut y = vec![f32::NAN; x.data().len()];
            let dropout = Dropout {
                probability: 0.5,
                key: 3,
                first_token,
            };
            dropout_forward(&mut ActivationsMut::new(&mut y, width), x, dropout);
            y
        };
        let whole = mask(blocks, 0);
        assert_eq!(mask(1, 2 * LANES as u32), whole[2 * width * LANES..]);
        let value = |mask: &[f32], token: usize, feature| {
            mask[(token / LANES * width + feature) * LANES + token % LANES]
        };
        let behind_five = mask(1, 5);
        for (token, feature) in [(0, 0), (7, 3), (26, 23), (30, 11)] {
            let same = value(&whole, token + 5, feature);
            assert_eq!(
                value(&behind_five, token, feature),
                same,
                "{token}, {feature}"
            );
        }
    }
}
