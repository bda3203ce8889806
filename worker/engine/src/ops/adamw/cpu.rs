//! AdamW on the CPU: one pass over weights, moments and gradients.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::device::{math::dispatch, run};

/// The step's constants, each rounded once.
pub(super) struct Factors {
    pub gradient: f32,
    pub decay: f32,
    pub beta1: f32,
    pub one_minus_beta1: f32,
    pub beta2: f32,
    pub one_minus_beta2: f32,
    pub step_size: f32,
    pub inverse_root_bias2: f32,
    pub epsilon: f32,
}

/// Values per task.
const PART: usize = 16 * 1024;

pub(super) fn step(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], factors: &Factors) {
    run(|| {
        w.par_chunks_mut(PART)
            .zip(m.par_chunks_mut(PART))
            .zip(v.par_chunks_mut(PART))
            .zip(g.par_chunks(PART))
            .for_each(|(((w, m), v), g)| {
                dispatch(Step {
                    w,
                    m,
                    v,
                    g,
                    factors,
                })
            });
    });
}

struct Step<'a> {
    w: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    g: &'a [f32],
    factors: &'a Factors,
}

impl WithSimd for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (w, w_tail) = S::as_mut_simd_f32s(self.w);
        let (m, m_tail) = S::as_mut_simd_f32s(self.m);
        let (v, v_tail) = S::as_mut_simd_f32s(self.v);
        let (g, g_tail) = S::as_simd_f32s(self.g);
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            (*w, *m, *v) = updated(simd, (*w, *m, *v), *g, self.factors);
        }
        let (new_w, new_m, new_v) = updated(
            simd,
            (
                simd.partial_load_f32s(w_tail),
                simd.partial_load_f32s(m_tail),
                simd.partial_load_f32s(v_tail),
            ),
            simd.partial_load_f32s(g_tail),
            self.factors,
        );
        simd.partial_store_f32s(w_tail, new_w);
        simd.partial_store_f32s(m_tail, new_m);
        simd.partial_store_f32s(v_tail, new_v);
    }
}

/// New weights and moments.
#[inline(always)]
fn updated<S: Simd>(
    simd: S,
    (w, m, v): (S::f32s, S::f32s, S::f32s),
    g: S::f32s,
    f: &Factors,
) -> (S::f32s, S::f32s, S::f32s) {
    let c = |value: f32| simd.splat_f32s(value);
    let g = simd.mul_f32s(g, c(f.gradient));
    let m = simd.mul_add_f32s(c(f.beta1), m, simd.mul_f32s(c(f.one_minus_beta1), g));
    let v = simd.mul_add_f32s(
        c(f.beta2),
        v,
        simd.mul_f32s(simd.mul_f32s(c(f.one_minus_beta2), g), g),
    );
    let root = simd.mul_add_f32s(simd.sqrt_f32s(v), c(f.inverse_root_bias2), c(f.epsilon));
    let change = simd.div_f32s(simd.mul_f32s(c(f.step_size), m), root);
    (simd.sub_f32s(simd.mul_f32s(w, c(f.decay)), change), m, v)
}
