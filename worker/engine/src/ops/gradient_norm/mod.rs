//! The norm of all gradients together, and the factor that clips it.
//!
//! ```text
//! norm = sqrt(sum over all gradients of g^2)
//! clip = min(1, max_norm / (norm + 1e-6))
//! ```

use rayon::prelude::*;

use crate::{
    device::run,
    profile::{Operation, Timed},
};

/// Values per partial sum; fixed, so that the result does not depend on the number of threads.
const PART: usize = 4096;

/// Partial sums that are held at once.
const PARTS: usize = 256;

/// The sum of squares of one gradient, in f64.
pub fn squared_norm(gradient: &[f32]) -> f64 {
    let _timed = Timed::begin(Operation::GradientNorm, 0);
    let of_some_parts = |gradient: &[f32]| -> f64 {
        let mut sums = [0.0; PARTS];
        sums.par_iter_mut()
            .zip(gradient.par_chunks(PART))
            .for_each(|(sum, part)| *sum = sum_of_squares(part));
        sums.iter().sum()
    };
    run(|| gradient.chunks(PARTS * PART).map(of_some_parts).sum())
}

/// Several sums side by side, of which the compiler makes vectors.
fn sum_of_squares(part: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    for values in part.chunks(sums.len()) {
        for (sum, &g) in sums.iter_mut().zip(values) {
            *sum += f64::from(g) * f64::from(g);
        }
    }
    sums.iter().sum()
}

/// The factor for all gradients that brings their norm down to `max_norm`; 1 where it already is below, and
/// where `max_norm` is 0, which means no clipping.
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    if max_norm == 0.0 {
        return 1.0;
    }
    (max_norm / (norm + 1e-6)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_add_up_over_parts() {
        let gradient: Vec<f32> = (0..3 * PART + 5).map(|i| (i % 7) as f32 - 3.0).collect();
        let exact: f64 = gradient.iter().map(|&g| f64::from(g * g)).sum();
        assert_eq!(squared_norm(&gradient), exact);
        assert_eq!(squared_norm(&[]), 0.0);
    }

    #[test]
    fn clipping_only_shrinks() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(10.0, 0.0), 1.0);
        assert!((clip_factor(10.0, 1.0) - 0.1).abs() < 1e-7);
    }
}
