//! A linear layer without bias, with its LoRA pair fused in.
//!
//! ```text
//! u   = scale * A x                 y   = W x + B u
//! du  = scale * B^T dy              dx  = W^T dy + A^T du
//! dB += sum over tokens of dy u^T   dA += sum over tokens of du x^T   dW += sum over tokens of dy x^T
//! ```
//! With dropout, A sees `dropout(x)` in place of `x`, and `A^T du` passes through the same mask.
//!
//! The rows of B and A simply lengthen the sums of W's products: a tile of `y` stays in registers throughout.

mod cpu;

use super::dropout::{Dropout, dropout_backward, dropout_forward};
pub use crate::device::product::Start;
use crate::{
    device::{
        Activations, ActivationsMut, LANES, Team, WeightMatrix,
        outer::{accumulate_outer, accumulate_outer_and_multiply, outer_scratch},
        product::{
            Matrix, Product, ProductList, multiply, multiply_with_inner, multiply_with_pair,
        },
        rows_mut, with_own_memory,
    },
    profile::{Operation, Timed},
};

/// The LoRA pair beside a layer.
#[derive(Debug, Clone, Copy)]
pub struct Lora<'a> {
    /// `[rank, in]`, row-major.
    pub a: &'a [f32],
    /// `[out, rank]`, row-major.
    pub b: &'a [f32],
    /// Rank of the pair.
    pub rank: usize,
    /// What `B A x` is multiplied with.
    pub scale: f32,
    /// Dropout of A's input, when training with it.
    pub dropout: Option<Dropout>,
}

/// One of the layers that share an input, for the gradient of that input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Branch<'a> {
    /// Gradient of the layer's output `[tokens, out]`.
    pub dy: Activations<'a>,
    /// The layer's weight `[out, in]`.
    pub w: &'a WeightMatrix,
    /// Its pair, and the pair's `du` from [`lora_backward_b`].
    pub lora: Option<(Lora<'a>, Activations<'a>)>,
}

/// `y = start + W x + B u`, with `u` `[tokens, rank]` kept for the backward pass.
///
/// `scratch` needs as many values as `x` has if there is dropout, else none.
pub fn linear_forward(
    y: &mut ActivationsMut<'_>,
    start: Start<'_>,
    x: Activations<'_>,
    w: &WeightMatrix,
    lora: Option<(Lora<'_>, &mut ActivationsMut<'_>)>,
    scratch: &mut [f32],
) {
    let main = Product {
        matrix: Matrix::Weight(w),
        input: x,
    };
    let Some((lora, u)) = lora else {
        let _timed = Timed::begin(Operation::Linear, product_flops(w, x.tokens()));
        return multiply(y, start, &[main], 1.0);
    };
    let flops = product_flops(w, x.tokens()) + 2 * x.tokens() * lora.b.len();
    if lora.dropout.is_some() {
        inner_forward(u, x, lora, scratch);
        let _timed = Timed::begin(Operation::Linear, flops);
        return multiply_with_pair(y, start, main, (lora.b, u.view()));
    }
    let _timed = Timed::begin(Operation::Linear, flops + 2 * x.tokens() * lora.a.len());
    multiply_with_inner(y, start, main, u, (lora.a, lora.b, lora.scale));
}

/// `u = scale * A dropout(x)`.
fn inner_forward(
    u: &mut ActivationsMut<'_>,
    x: Activations<'_>,
    lora: Lora<'_>,
    scratch: &mut [f32],
) {
    let _timed = Timed::begin(Operation::LoraInner, 2 * x.tokens() * lora.a.len());
    let product = Product {
        matrix: Matrix::Rows(lora.a, x.width()),
        input: lora.input(x, scratch),
    };
    multiply(u, Start::Zero, &[product], lora.scale);
}

/// What a weight's product with so many tokens takes.
fn product_flops(w: &WeightMatrix, tokens: usize) -> usize {
    2 * tokens * w.rows() * w.columns()
}

/// Sets `du`, and adds to the gradient of B; `u` is what the forward pass kept.
///
/// `scratch` needs [`lora_scratch`] values.
pub(crate) fn lora_backward_b(
    du: &mut ActivationsMut<'_>,
    db: &mut [f32],
    dy: Activations<'_>,
    u: Activations<'_>,
    lora: Lora<'_>,
    scratch: &mut [f32],
) {
    let _timed = Timed::begin(Operation::LoraGradient, 4 * dy.tokens() * lora.b.len());
    accumulate_outer_and_multiply(db, dy, u, scratch, (du, lora.b, lora.scale));
}

/// Adds to the gradient of A, from the layer's input `x` and the `du` of [`lora_backward_b`].
///
/// `scratch` needs [`lora_scratch`] values.
pub(crate) fn lora_backward_a(
    da: &mut [f32],
    du: Activations<'_>,
    x: Activations<'_>,
    lora: Lora<'_>,
    scratch: &mut [f32],
) {
    let _timed = Timed::begin(Operation::LoraGradient, 2 * x.tokens() * lora.a.len());
    let (dropped, scratch) = scratch.split_at_mut(lora.dropout.map_or(0, |_| x.data().len()));
    accumulate_outer(da, du, lora.input(x, dropped), scratch);
}

/// Values of scratch that a pair's gradients need beside a layer of these widths.
pub(crate) fn lora_scratch(
    blocks: usize,
    input: usize,
    output: usize,
    rank: usize,
    dropout: bool,
) -> usize {
    let dropped = if dropout { blocks * LANES * input } else { 0 };
    dropped + outer_scratch(blocks, output, rank).max(outer_scratch(blocks, rank, input))
}

/// Values of scratch that [`linear_backward_weight`] needs for a layer of these widths.
pub(crate) fn full_scratch(blocks: usize, input: usize, output: usize) -> usize {
    outer_scratch(blocks, output, input)
}

/// One of the layers that share the inputs of a few tokens.
pub(crate) struct FewTokens<'a, P> {
    /// `[tokens, out]`, row-major.
    pub y: &'a mut [f32],
    /// `[out, in]`.
    pub w: &'a WeightMatrix,
    /// The layer's pair for a token, without dropout; every token may have another one.
    pub lora: P,
}

/// `y = W x + B (scale * A x)` for several layers and the tokens of `x`, row-major `[tokens, in]`, on a team's threads;
/// `scratch` is grown as needed.
///
/// Each weight is read once for all tokens, and each token's result is the same bits whatever tokens are beside it.
pub(crate) fn linear_few_tokens<'l, const N: usize, P>(
    mut layers: [FewTokens<'_, P>; N],
    x: &[f32],
    scratch: &mut Vec<f32>,
    team: &Team,
) where
    P: Fn(usize) -> Option<Lora<'l>> + Sync,
{
    cpu::products(&mut layers, x, scratch, team);
    for FewTokens { y, w, lora } in layers {
        let (rows, columns) = (w.rows(), w.columns());
        if (0..x.len() / columns).all(|token| lora(token).is_none()) {
            continue;
        }
        team.share(rows_mut(y, rows), |token, y| {
            if let Some(lora) = lora(token) {
                let x = &x[token * columns..][..columns];
                with_own_memory(lora.rank, |u| cpu::add_pair(y, x, lora, u));
            }
        });
    }
}

/// `dx = start + sum over branches of W^T dy + A^T du`.
///
/// `scratch` needs as many values as `dx` has if there is dropout, else none.
pub(crate) fn linear_backward_input(
    dx: &mut ActivationsMut<'_>,
    start: Start<'_>,
    branches: &[Branch<'_>],
    scratch: &mut [f32],
) {
    let width = dx.width();
    let flops = branches.iter().map(|branch| {
        let pair = branch.lora.map_or(0, |(lora, _)| lora.a.len());
        product_flops(branch.w, branch.dy.tokens()) + 2 * branch.dy.tokens() * pair
    });
    let _timed = Timed::begin(Operation::LinearInputGradient, flops.sum());
    let mut products = ProductList::new();
    for branch in branches {
        products.push(Matrix::WeightTransposed(branch.w), branch.dy);
        if let Some((lora, du)) = branch.lora.filter(|(lora, _)| lora.dropout.is_none()) {
            products.push(Matrix::RowsTransposed(lora.a, width), du);
        }
    }
    multiply(dx, start, products.as_slice(), 1.0);
    for (lora, du) in branches.iter().filter_map(|b| b.lora) {
        let Some(dropout) = lora.dropout else {
            continue;
        };
        let mut masked = ActivationsMut::new(&mut scratch[..dx.view().data().len()], width);
        let product = Product {
            matrix: Matrix::RowsTransposed(lora.a, width),
            input: du,
        };
        multiply(&mut masked, Start::Zero, &[product], 1.0);
        dropout_backward(dx, masked.view(), dropout);
    }
}

/// Adds the gradient of a full weight to `dw`, row-major `[out, in]`.
///
/// `scratch` needs [`full_scratch`] values.
pub(crate) fn linear_backward_weight(
    dw: &mut [f32],
    dy: Activations<'_>,
    x: Activations<'_>,
    scratch: &mut [f32],
) {
    let _timed = Timed::begin(Operation::WeightGradient, 2 * x.tokens() * dw.len());
    accumulate_outer(dw, dy, x, scratch);
}

impl Lora<'_> {
    /// What A sees of `x`.
    fn input<'a>(&self, x: Activations<'a>, scratch: &'a mut [f32]) -> Activations<'a> {
        let Some(dropout) = self.dropout else {
            return x;
        };
        let mut dropped = ActivationsMut::new(&mut scratch[..x.data().len()], x.width());
        dropout_forward(&mut dropped, x, dropout);
        Activations::new(dropped.into_data(), x.width())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::{Checked, blocks, values};

    const TOKENS: usize = 37;
    const INPUT: usize = 20;
    const OUTPUT: usize = 14;
    const RANK: usize = 3;
    const SCALE: f32 = 1.5;

    /// Runs forward and backward and compares all results with finite differences.
    fn check(dropout: Option<Dropout>) {
        let (x, w) = (values(1, TOKENS * INPUT), values(2, OUTPUT * INPUT));
        let (a, b) = (values(3, RANK * INPUT), values(4, OUTPUT * RANK));
        let (dy, start) = (values(5, TOKENS * OUTPUT), values(6, TOKENS * OUTPUT));
        let ones = blocks(&[1.0; TOKENS * INPUT], TOKENS);
        let mut mask = ones.clone();
        if let Some(dropout) = dropout {
            dropout_forward(
                &mut ActivationsMut::new(&mut mask, INPUT),
                Activations::new(&ones, INPUT),
                dropout,
            );
        }
        let mask = Activations::new(&mask, INPUT).to_rows(TOKENS);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let reference = |inputs: &[Vec<f64>]| -> Vec<f64> {
            let [x, w, a, b] = [&inputs[0], &inputs[1], &inputs[2], &inputs[3]];
            let mut y: Vec<f64> = start.iter().map(|&s| f64::from(s)).collect();
            for token in 0..TOKENS {
                let x = &x[token * INPUT..][..INPUT];
                let mask = &mask[token * INPUT..][..INPUT];
                let dropped: Vec<f64> =
                    x.iter().zip(mask).map(|(x, m)| x * f64::from(*m)).collect();
                let u: Vec<f64> = a
                    .chunks(INPUT)
                    .map(|a| f64::from(SCALE) * dot(a, &dropped))
                    .collect();
                for row in 0..OUTPUT {
                    let (w, b) = (&w[row * INPUT..][..INPUT], &b[row * RANK..][..RANK]);
                    y[token * OUTPUT + row] += dot(w, x) + dot(b, &u);
                }
            }
            y
        };

        let panels = WeightMatrix::from_f32(&w, OUTPUT, INPUT).unwrap();
        let lora = Lora {
            a: &a,
            b: &b,
            rank: RANK,
            scale: SCALE,
            dropout,
        };
        let (xb, dyb, start_b) = (
            blocks(&x, TOKENS),
            blocks(&dy, TOKENS),
            blocks(&start, TOKENS),
        );
        let (xb, dyb) = (Activations::new(&xb, INPUT), Activations::new(&dyb, OUTPUT));
        let count = xb.blocks();
        let mut scratch = vec![f32::NAN; lora_scratch(count, INPUT, OUTPUT, RANK, true) + 10_000];
        let mut y = vec![f32::NAN; count * LANES * OUTPUT];
        let mut y = ActivationsMut::new(&mut y, OUTPUT);
        let (mut u, mut du) = (
            vec![f32::NAN; count * LANES * RANK],
            vec![f32::NAN; count * LANES * RANK],
        );
        let (mut u, mut du) = (
            ActivationsMut::new(&mut u, RANK),
            ActivationsMut::new(&mut du, RANK),
        );
        let start_view = Start::From(Activations::new(&start_b, OUTPUT));
        linear_forward(
            &mut y,
            start_view,
            xb,
            &panels,
            Some((lora, &mut u)),
            &mut scratch,
        );

        let (mut da, mut db, mut dw) = (vec![0.0; a.len()], vec![0.0; b.len()], vec![0.0; w.len()]);
        lora_backward_b(&mut du, &mut db, dyb, u.view(), lora, &mut scratch);
        lora_backward_a(&mut da, du.view(), xb, lora, &mut scratch);
        linear_backward_weight(&mut dw, dyb, xb, &mut scratch);
        let mut dx = vec![f32::NAN; xb.data().len()];
        let mut dx = ActivationsMut::new(&mut dx, INPUT);
        let branch = Branch {
            dy: dyb,
            w: &panels,
            lora: Some((lora, du.view())),
        };
        linear_backward_input(&mut dx, Start::Zero, &[branch], &mut scratch);

        Checked::new(&y.view().to_rows(TOKENS), 1e-6)
            .forward(reference, &[&x, &w, &a, &b])
            .gradients(&dy, &[&dx.view().to_rows(TOKENS), &dw, &da, &db], 2e-6);
    }

    #[test]
    fn forward_and_gradients_agree_with_finite_differences() {
        check(None);
    }

    #[test]
    fn dropout_masks_what_the_pair_sees_and_its_gradient() {
        check(Some(Dropout {
            probability: 0.3,
            key: 7,
            first_token: 3,
        }));
    }

    #[test]
    fn branches_of_one_input_add_up() {
        let (x1, x2) = (values(1, TOKENS * OUTPUT), values(2, TOKENS * OUTPUT));
        let (w1, w2) = (values(3, OUTPUT * INPUT), values(4, OUTPUT * INPUT));
        let (p1, p2) = (
            WeightMatrix::from_f32(&w1, OUTPUT, INPUT).unwrap(),
            WeightMatrix::from_f32(&w2, OUTPUT, INPUT).unwrap(),
        );
        let (b1, b2) = (blocks(&x1, TOKENS), blocks(&x2, TOKENS));
        let branches = [(&b1, &p1), (&b2, &p2)].map(|(dy, w)| Branch {
            dy: Activations::new(dy, OUTPUT),
            w,
            lora: None,
        });
        let run = |start: &[Branch<'_>]| {
            let mut dx = vec![0.0; padded() * INPUT];
            linear_backward_input(
                &mut ActivationsMut::new(&mut dx, INPUT),
                Start::Zero,
                start,
                &mut [],
            );
            dx
        };
        let both = run(&branches);
        let single = run(&branches[..1]);
        let other = run(&branches[1..]);
        for ((both, a), b) in both.iter().zip(single).zip(other) {
            assert!((both - (a + b)).abs() < 1e-5);
        }
    }

    fn padded() -> usize {
        TOKENS.next_multiple_of(LANES)
    }
}
