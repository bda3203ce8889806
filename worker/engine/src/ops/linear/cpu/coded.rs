//! Coded weights times a few tokens: a chunk is unpacked once and used for all tokens.

use pulp::{Simd, WithSimd};

use crate::device::{
    Shared,
    math::dispatch,
    weight::{COLUMNS, Coded, GROUP},
};

/// Tokens whose sums are kept at once.
const TOKENS: usize = 8;

/// Sets the rows of one group in `y` `[tokens, rows]` to their weights times `x` `[tokens, columns]`.
pub(super) fn rows(y: Shared<'_>, weight: &Coded, group: usize, x: &[f32]) {
    dispatch(Rows {
        y,
        weight,
        group,
        x,
    });
}

struct Rows<'a> {
    y: Shared<'a>,
    weight: &'a Coded,
    group: usize,
    x: &'a [f32],
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self {
            y,
            weight,
            group,
            x,
        } = self;
        let first = group * GROUP;
        let count = GROUP.min(weight.rows() - first);
        let mut values = [[0.0; GROUP]; COLUMNS];
        for (batch, x) in x.chunks(TOKENS * weight.columns()).enumerate() {
            let mut sums = [[0.0; GROUP]; TOKENS];
            for chunk in 0..weight.chunks() {
                weight.chunk(group, chunk).unpack(&mut values);
                let tokens = x.chunks_exact(weight.columns());
                for (sums, x) in sums.iter_mut().zip(tokens) {
                    let x = x[chunk * COLUMNS..].iter();
                    for (values, x) in values.iter().zip(x) {
                        for (sum, value) in sums.iter_mut().zip(values) {
                            *sum += value * x;
                        }
                    }
                }
            }
            for (token, sums) in sums.iter().enumerate().take(x.len() / weight.columns()) {
                let at = (batch * TOKENS + token) * weight.rows() + first;
                // SAFETY: every task has other rows of `y`, and none is read before all are written.
                let y = unsafe { y.part(at, count) };
                y.copy_from_slice(&sums[..count]);
            }
        }
    }
}
