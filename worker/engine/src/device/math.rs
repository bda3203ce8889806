//! Elementary functions on vector registers, of whatever width the machine has.

use pulp::{Simd, WithSimd};

use super::instructions;

/// Runs a task with the vector instructions that this process [computes with](instructions()).
#[inline]
pub(crate) fn dispatch<T: WithSimd>(task: T) -> T::Output {
    instructions().dispatch(task)
}

/// e^x, within 2 units in the last place; below -87.3 the smallest normal number, above 88.7 the largest power. What is
/// no number stays none.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by a polynomial (Cephes), times 2^n through the exponent's bits.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let c = |value: f32| simd.splat_f32s(value);
    let is_number = simd.equal_f32s(x, x);
    let given = x;
    let x = simd.min_f32s(simd.max_f32s(x, c(-87.336_54)), c(88.376_26));
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    let shift = c(12_582_912.0);
    let shifted = simd.mul_add_f32s(x, c(std::f32::consts::LOG2_E), shift);
    let n = simd.sub_f32s(shifted, shift);
    let r = simd.mul_add_f32s(n, c(-0.693_359_4), x);
    let r = simd.mul_add_f32s(n, c(2.121_944_4e-4), r);
    let mut p = c(1.987_569_1e-4);
    for coefficient in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_6e-1,
        0.5,
    ] {
        p = simd.mul_add_f32s(p, r, c(coefficient));
    }
    let p = simd.add_f32s(simd.mul_add_f32s(p, simd.mul_f32s(r, r), r), c(1.0));
    let exponent =
        simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(shifted), simd.splat_u32s(23));
    let power = simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(p), exponent));
    simd.select_f32s(is_number, power, given)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    simd.div_f32s(one, simd.add_f32s(one, exp(simd, simd.neg_f32s(x))))
}

/// The sum of `a * b`, both of one length; several sums side by side, so that additions need not wait for each other.
#[inline(always)]
pub(crate) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let (a_runs, a) = a.as_chunks::<4>();
    let (b_runs, b) = b.as_chunks::<4>();
    let tail = simd.mul_f32s(
        simd.partial_load_f32s(a_tail),
        simd.partial_load_f32s(b_tail),
    );
    let mut sums = [
        tail,
        simd.splat_f32s(0.0),
        simd.splat_f32s(0.0),
        simd.splat_f32s(0.0),
    ];
    for (a, b) in a_runs.iter().zip(b_runs) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum = simd.mul_add_f32s(*a, *b, *sum);
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
        *sum = simd.mul_add_f32s(*a, *b, *sum);
    }
    let [first, second, third, fourth] = sums;
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(first, second), simd.add_f32s(third, fourth)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ExpAll<'a>(&'a mut [f32]);

    impl WithSimd for ExpAll<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for x in S::as_mut_simd_f32s(self.0).0 {
                *x = exp(simd, *x);
            }
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let inputs: Vec<f32> = (-87_000..88_000)
            .map(|i| i as f32 * 1e-3 + 1e-4)
            .take(174_976)
            .collect();
        let mut outputs = inputs.clone();
        dispatch(ExpAll(&mut outputs));
        for (x, y) in inputs.iter().zip(&outputs) {
            let exact = f64::from(*x).exp();
            let error = (f64::from(*y) - exact).abs() / exact;
            assert!(
                error < 2.0 * f64::from(f32::EPSILON),
                "exp({x}) = {y}, not {exact}"
            );
        }
    }

    #[test]
    fn exp_of_extremes_stays_finite() {
        let mut values = vec![-1e30, -f32::MAX, 1e30, f32::MAX, 0.0, -0.0, 89.0, -90.0];
        values.resize(32, 0.0);
        dispatch(ExpAll(&mut values));
        assert!(values.iter().all(|v| v.is_finite() && *v > 0.0));
        assert!(values[0] < 2e-38 && values[2] > 1e38);
        assert_eq!(values[4], 1.0);
    }

    #[test]
    fn exp_of_what_is_no_number_is_none() {
        let mut values = vec![0.0; 32];
        values[5] = f32::NAN;
        dispatch(ExpAll(&mut values));
        for (i, value) in values.iter().enumerate() {
            assert_eq!(value.is_nan(), i == 5, "{i}");
        }
    }
}
