//! RMSNorm on the CPU: a block of tokens at a time, one token per lane.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::device::{
    Activations, ActivationsMut, LANES,
    math::{dispatch, dot},
};

pub(super) fn forward(
    y: &mut ActivationsMut<'_>,
    rstd: &mut [f32],
    x: Activations<'_>,
    w: &[f32],
    eps: f32,
) {
    let len = x.width() * LANES;
    let outputs = y
        .data()
        .par_chunks_exact_mut(len)
        .zip(rstd.par_chunks_exact_mut(LANES));
    outputs
        .zip(x.data().par_chunks_exact(len))
        .for_each(|((y, rstd), x)| {
            dispatch(InverseRoot { rstd, x, eps });
            dispatch(Scale { y, rstd, x, w });
        });
}

pub(super) fn again(y: &mut ActivationsMut<'_>, rstd: &[f32], x: Activations<'_>, w: &[f32]) {
    let len = x.width() * LANES;
    let inputs = x
        .data()
        .par_chunks_exact(len)
        .zip(rstd.par_chunks_exact(LANES));
    y.data()
        .par_chunks_exact_mut(len)
        .zip(inputs)
        .for_each(|(y, (x, rstd))| {
            dispatch(Scale { y, rstd, x, w });
        });
}

pub(super) fn backward(
    dx: &mut ActivationsMut<'_>,
    dy: Activations<'_>,
    x: Activations<'_>,
    rstd: &[f32],
    w: &[f32],
) {
    let len = x.width() * LANES;
    let inputs = x
        .data()
        .par_chunks_exact(len)
        .zip(rstd.par_chunks_exact(LANES));
    let gradients = dx
        .data()
        .par_chunks_exact_mut(len)
        .zip(dy.data().par_chunks_exact(len));
    gradients.zip(inputs).for_each(|((dx, dy), (x, rstd))| {
        dispatch(Backward { dx, dy, x, rstd, w });
    });
}

pub(super) fn backward_weight(
    dw: &mut [f32],
    dy: Activations<'_>,
    x: Activations<'_>,
    rstd: &[f32],
) {
    dw.par_chunks_mut(FEATURES)
        .enumerate()
        .for_each(|(chunk, dw)| {
            let first = chunk * FEATURES * LANES;
            let mut sums = [0.0; FEATURES * LANES];
            let sums = &mut sums[..dw.len() * LANES];
            for block in 0..x.blocks() {
                let range = first..first + sums.len();
                dispatch(AddProducts {
                    sums,
                    dy: &dy.block(block)[range.clone()],
                    x: &x.block(block)[range],
                    rstd: &rstd[block * LANES..][..LANES],
                });
            }
            for (dw, sums) in dw.iter_mut().zip(sums.chunks_exact(LANES)) {
                *dw += sums.iter().sum::<f32>();
            }
        });
}

/// `1 / sqrt(mean(x^2) + eps)` of one token.
pub(super) fn inverse_root_one(x: &[f32], eps: f32) -> f32 {
    let mean = dispatch(SquaredSum(x)) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

struct SquaredSum<'a>(&'a [f32]);

impl WithSimd for SquaredSum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        dot(simd, self.0, self.0)
    }
}

/// Features of a norm's weight per task.
const FEATURES: usize = 16;

/// `sums += dy * x * rstd`, lane by lane.
struct AddProducts<'a> {
    sums: &'a mut [f32],
    dy: &'a [f32],
    x: &'a [f32],
    rstd: &'a [f32],
}

impl WithSimd for AddProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (rstd, _) = S::as_simd_f32s(self.rstd);
        let (sums, _) = S::as_mut_simd_f32s(self.sums);
        let (dy, _) = S::as_simd_f32s(self.dy);
        let (x, _) = S::as_simd_f32s(self.x);
        let rstd = rstd.iter().cycle();
        for (((sum, dy), x), rstd) in sums.iter_mut().zip(dy).zip(x).zip(rstd) {
            *sum = simd.mul_add_f32s(*dy, simd.mul_f32s(*x, *rstd), *sum);
        }
    }
}

/// `rstd = 1 / sqrt(mean(x^2) + eps)`.
struct InverseRoot<'a> {
    rstd: &'a mut [f32],
    x: &'a [f32],
    eps: f32,
}

impl WithSimd for InverseRoot<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (x, _) = S::as_simd_f32s(self.x);
        let (rstd, _) = S::as_mut_simd_f32s(self.rstd);
        let registers = rstd.len();
        let width = (x.len() / registers) as f32;
        for (register, rstd) in rstd.iter_mut().enumerate() {
            // Several sums, so that additions need not wait for each other.
            let mut sums = [simd.splat_f32s(0.0); 4];
            for (i, x) in x[register..].iter().step_by(registers).enumerate() {
                sums[i % 4] = simd.mul_add_f32s(*x, *x, sums[i % 4]);
            }
            let sum = simd.add_f32s(
                simd.add_f32s(sums[0], sums[1]),
                simd.add_f32s(sums[2], sums[3]),
            );
            let mean = simd.div_f32s(sum, simd.splat_f32s(width));
            let root = simd.sqrt_f32s(simd.add_f32s(mean, simd.splat_f32s(self.eps)));
            *rstd = simd.div_f32s(simd.splat_f32s(1.0), root);
        }
    }
}

/// `y = w * (x * rstd)`.
struct Scale<'a> {
    y: &'a mut [f32],
    rstd: &'a [f32],
    x: &'a [f32],
    w: &'a [f32],
}

impl WithSimd for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (rstd, _) = S::as_simd_f32s(self.rstd);
        let features = self
            .y
            .chunks_exact_mut(LANES)
            .zip(self.x.chunks_exact(LANES));
        for ((y, x), w) in features.zip(self.w) {
            let w = simd.splat_f32s(*w);
            let (y, _) = S::as_mut_simd_f32s(y);
            let (x, _) = S::as_simd_f32s(x);
            for ((y, x), rstd) in y.iter_mut().zip(x).zip(rstd) {
                *y = simd.mul_f32s(w, simd.mul_f32s(*x, *rstd));
            }
        }
    }
}

/// `dx += rstd * (w * dy - x * rstd^2 * mean(w * dy * x))`.
struct Backward<'a> {
    dx: &'a mut [f32],
    dy: &'a [f32],
    x: &'a [f32],
    rstd: &'a [f32],
    w: &'a [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (rstd, _) = S::as_simd_f32s(self.rstd);
        let (dx, _) = S::as_mut_simd_f32s(self.dx);
        let (dy, _) = S::as_simd_f32s(self.dy);
        let (x, _) = S::as_simd_f32s(self.x);
        let registers = rstd.len();
        let width = simd.splat_f32s(self.w.len() as f32);
        for (register, &rstd) in rstd.iter().enumerate() {
            let mut sums = [simd.splat_f32s(0.0); 4];
            for (i, w) in self.w.iter().enumerate() {
                let at = i * registers + register;
                let wdy = simd.mul_f32s(simd.splat_f32s(*w), dy[at]);
                sums[i % 4] = simd.mul_add_f32s(wdy, x[at], sums[i % 4]);
            }
            let sum = simd.add_f32s(
                simd.add_f32s(sums[0], sums[1]),
                simd.add_f32s(sums[2], sums[3]),
            );
            let factor = simd.mul_f32s(simd.mul_f32s(rstd, rstd), simd.div_f32s(sum, width));
            for (i, w) in self.w.iter().enumerate() {
                let at = i * registers + register;
                let wdy = simd.mul_f32s(simd.splat_f32s(*w), dy[at]);
                let centred = simd.negate_mul_add_f32s(x[at], factor, wdy);
                dx[at] = simd.mul_add_f32s(rstd, centred, dx[at]);
            }
        }
    }
}
