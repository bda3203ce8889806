//! The outer step: Nesterov momentum on what the mean moved away from the global adapter.

use pulp::Arch;

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
    let OuterStep { lr, momentum: mu } = step;
    Arch::new().dispatch(|| {
        for ((x, v), global) in x.iter_mut().zip(velocity).zip(global) {
            let g = global - *x;
            *v = mu * *v + g;
            *x = global - lr * (g + mu * *v);
        }
    });
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
