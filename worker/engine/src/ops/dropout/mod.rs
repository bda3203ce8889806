//! Dropout of LoRA's inputs: some values become zero, the others grow so that the mean stays.
//!
//! ```text
//! keep[i] = hash(key, i) >= p                y[i] = keep[i] * x[i] / (1 - p)
//! dx[i] += keep[i] * dy[i] / (1 - p)
//! ```
//!
//! Whether a value is kept depends on nothing but the key and its place, so that the backward pass and a resumed
//! run find the same mask again without its being stored.

mod cpu;

use crate::device::{Activations, ActivationsMut};

/// What selects a mask, and how much it drops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Probability of being dropped, 0 up to but not including 1.
    pub probability: f32,
    /// Selects the mask: another one for every step and module.
    pub key: u64,
}

/// `y` and `x` `[tokens, width]`.
pub fn dropout_forward(y: &mut ActivationsMut<'_>, x: Activations<'_>, dropout: Dropout) {
    assert_eq!((y.width(), y.blocks()), (x.width(), x.blocks()));
    cpu::forward(y.data(), x.data(), dropout);
}

/// Adds the gradient of `x` to `dx`.
pub fn dropout_backward(dx: &mut ActivationsMut<'_>, dy: Activations<'_>, dropout: Dropout) {
    assert_eq!((dx.width(), dx.blocks()), (dy.width(), dy.blocks()));
    cpu::backward(dx.data(), dy.data(), dropout);
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
                Dropout { probability, key },
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
        };
        dropout_backward(&mut ActivationsMut::new(&mut dx, width), x, dropout);
        assert!(dx.iter().zip(&first).all(|(dx, y)| *dx == 1.0 + y));
    }
}
