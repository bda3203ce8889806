//! A linear layer for a few tokens on the CPU: bound by reading the weights once.

use pulp::{Simd, WithSimd};

mod coded;
mod lanes;
mod panels;

use super::{FewTokens, Lora};
use crate::device::{Count, Shared, Team, WeightMatrix, math, math::dispatch};

/// Bytes of a task's weights at least: what a task asks for ahead at its end another one reads, so there are few ends;
/// not many more, so that threads end a product at nearly the same time.
const TASK_BYTES: usize = 48 * 1024;

/// One of the layers that share an input.
struct Output<'a> {
    /// `[tokens, rows]`.
    y: Shared<'a>,
    w: &'a WeightMatrix,
    tasks: usize,
}

/// Sets each `y` `[tokens, rows]` to its weight times the same `x` `[tokens, columns]`.
pub(super) fn products<const N: usize, P>(
    layers: &mut [FewTokens<'_, P>; N],
    x: &[f32],
    scratch: &mut Vec<f32>,
    team: &Team,
) {
    scratch.clear();
    if let Some(layer) = layers.iter().find(|layer| is_coded(layer.w)) {
        coded::extend_sums(scratch, x, layer.w.columns());
    }
    let sums = &*scratch;
    let outputs = layers.each_mut().map(|layer| {
        let (rows, columns) = (layer.w.rows(), layer.w.columns());
        assert_eq!(
            (layer.y.len() * columns, x.len() % columns),
            (rows * x.len(), 0),
            "shapes of a product"
        );
        Output {
            y: Shared::new(layer.y),
            w: layer.w,
            tasks: match layer.w {
                WeightMatrix::Panels(panels) => panels::tasks(panels),
                WeightMatrix::Coded(coded) => coded::tasks(coded),
            },
        }
    });
    let tasks = outputs.iter().map(|output| output.tasks).sum();
    team.share(Count(tasks), |mut task, ()| {
        for &Output { y, w, tasks } in &outputs {
            if task >= tasks {
                task -= tasks;
                continue;
            }
            return match w {
                WeightMatrix::Panels(weight) => dispatch(panels::Rows { y, weight, task, x }),
                WeightMatrix::Coded(weight) => coded::Rows {
                    y,
                    weight,
                    task,
                    x,
                    sums,
                }
                .run(),
            };
        }
    });
}

fn is_coded(w: &WeightMatrix) -> bool {
    matches!(w, WeightMatrix::Coded(_))
}

/// `y += B (scale * A x)` for one token; `u` has room for the pair's inner values.
pub(super) fn add_pair(y: &mut [f32], x: &[f32], lora: Lora<'_>, u: &mut [f32]) {
    dispatch(AddPair { y, x, lora, u });
}

struct AddPair<'a> {
    y: &'a mut [f32],
    x: &'a [f32],
    lora: Lora<'a>,
    u: &'a mut [f32],
}

impl WithSimd for AddPair<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { y, x, lora, u } = self;
        for (u, a) in u.iter_mut().zip(lora.a.chunks_exact(x.len())) {
            *u = lora.scale * math::dot(simd, a, x);
        }
        for (y, b) in y.iter_mut().zip(lora.b.chunks_exact(lora.rank)) {
            *y += math::dot(simd, b, u);
        }
    }
}
