//! SwiGLU on the CPU, element by element.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::device::{
    Activations, ActivationsMut,
    math::{dispatch, sigmoid},
};

/// Values per task.
const PART: usize = 8 * 1024;

pub(super) fn forward(h: &mut ActivationsMut<'_>, gate: Activations<'_>, up: Activations<'_>) {
    let inputs = gate.data().par_chunks(PART).zip(up.data().par_chunks(PART));
    h.data()
        .par_chunks_mut(PART)
        .zip(inputs)
        .for_each(|(h, (gate, up))| {
            dispatch(Forward { h, gate, up });
        });
}

pub(super) fn backward(
    gate: &mut ActivationsMut<'_>,
    up: &mut ActivationsMut<'_>,
    dh: &mut ActivationsMut<'_>,
) {
    let inputs = gate
        .data()
        .par_chunks_mut(PART)
        .zip(up.data().par_chunks_mut(PART));
    dh.data()
        .par_chunks_mut(PART)
        .zip(inputs)
        .for_each(|(dh, (gate, up))| {
            dispatch(Backward { gate, up, dh });
        });
}

pub(super) fn one(gate: &mut [f32], up: &[f32]) {
    dispatch(One { gate, up });
}

struct One<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl WithSimd for One<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (gate, gate_tail) = S::as_mut_simd_f32s(self.gate);
        let (up, up_tail) = S::as_simd_f32s(self.up);
        for (gate, up) in gate.iter_mut().zip(up) {
            *gate = gated(simd, *gate, *up);
        }
        let gate = simd.partial_load_f32s(gate_tail);
        let tail = gated(simd, gate, simd.partial_load_f32s(up_tail));
        simd.partial_store_f32s(gate_tail, tail);
    }
}

/// `gate * sigmoid(gate) * up`.
#[inline(always)]
fn gated<S: Simd>(simd: S, gate: S::f32s, up: S::f32s) -> S::f32s {
    simd.mul_f32s(simd.mul_f32s(gate, sigmoid(simd, gate)), up)
}

struct Forward<'a> {
    h: &'a mut [f32],
    gate: &'a [f32],
    up: &'a [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (h, _) = S::as_mut_simd_f32s(self.h);
        let (gate, _) = S::as_simd_f32s(self.gate);
        let (up, _) = S::as_simd_f32s(self.up);
        for ((h, gate), up) in h.iter_mut().zip(gate).zip(up) {
            *h = gated(simd, *gate, *up);
        }
    }
}

struct Backward<'a> {
    gate: &'a mut [f32],
    up: &'a mut [f32],
    dh: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let one = simd.splat_f32s(1.0);
        let (gates, _) = S::as_mut_simd_f32s(self.gate);
        let (ups, _) = S::as_mut_simd_f32s(self.up);
        let (dhs, _) = S::as_mut_simd_f32s(self.dh);
        for ((gate, up), dh) in gates.iter_mut().zip(ups).zip(dhs) {
            let s = sigmoid(simd, *gate);
            let silu = simd.mul_f32s(*gate, s);
            // s * (1 + gate * (1 - s)) = s + silu * (1 - s)
            let slope = simd.mul_add_f32s(silu, simd.sub_f32s(one, s), s);
            let h = simd.mul_f32s(silu, *up);
            *gate = simd.mul_f32s(simd.mul_f32s(*dh, *up), slope);
            *up = simd.mul_f32s(*dh, silu);
            *dh = h;
        }
    }
}
