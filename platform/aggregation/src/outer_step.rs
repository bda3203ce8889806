//! The outer step: Nesterov momentum on what the mean moved away from the global adapter.

use pulp::{Arch, Simd, WithSimd};

/// How large the outer step is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OuterStep {
    /// Outer learning rate.
    pub lr: f32,
    /// Momentum, `mu`.
    pub momentum: f32,
}

/// g = global - mean, v = mu v + g, global = global - lr (g + mu v), as SGD does with `nesterov=True`.
///
/// All slices are `[values]`. `x` holds the mean, and the new values afterwards; `velocity` its own new ones.
pub(crate) fn outer_step(x: &mut [f32], velocity: &mut [f32], global: &[f32], step: OuterStep) {
    Arch::new().dispatch(Nesterov {
        x,
        velocity,
        global,
        step,
    });
}

struct Nesterov<'a> {
    x: &'a mut [f32],
    velocity: &'a mut [f32],
    global: &'a [f32],
    step: OuterStep,
}

impl WithSimd for Nesterov<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let OuterStep { lr, momentum: mu } = self.step;
        let values = self.x.iter_mut().zip(self.velocity).zip(self.global);
        for ((x, v), global) in values {
            let g = global - *x;
            *v = mu * *v + g;
            *x = global - lr * (g + mu * *v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weight 0 with a mean delta of +1 in two rounds goes to 1.5 and then to 3.25.
    #[test]
    fn g108_the_outer_step_follows_the_common_convention_of_nesterov() {
        let step = OuterStep {
            lr: 1.0,
            momentum: 0.5,
        };
        let (mut x, mut v) = ([1.0], [0.0]);
        outer_step(&mut x, &mut v, &[0.0], step);
        assert_eq!((x, v), ([1.5], [-1.0]));
        x = [2.5];
        outer_step(&mut x, &mut v, &[1.5], step);
        assert_eq!((x, v), ([3.25], [-1.5]));
    }
}
