//! The output projection and the cross-entropy of its logits, fused, a chunk of labelled tokens at a time.
//!
//! ```text
//! z = H x          nll = ln sum_v e^z[v] - z[target]
//! dz[v] = scale * (e^z[v] / sum_w e^z[w] - (v = target))
//! dx = H^T dz      dH += sum over tokens of dz x^T
//! ```
//! A matrix `[tokens, vocabulary]` never exists, and only tokens with a target cost anything.

mod cpu;

use crate::{
    device::{
        Activations, ActivationsMut, Carver, LANES, WeightMatrix,
        outer::{accumulate_outer, outer_scratch},
        padded_tokens,
        product::{Matrix, Product, Start, multiply},
    },
    model::{IGNORE, LossSum, TokenScore},
    profile::{Operation, Timed},
};

/// Labelled tokens per chunk.
const CHUNK: usize = 16 * LANES;

/// Calls `each` with how well every token that has a target is predicted, in order, without gradients.
///
/// `x` `[tokens, hidden]` is the last layer's normalised output, `head` `[vocabulary, hidden]`.
/// `scratch` needs [`cross_entropy_scratch`] values. A token's score is the same bits whatever is beside it.
pub fn cross_entropy_forward(
    x: Activations<'_>,
    head: &WeightMatrix,
    targets: &[i32],
    scratch: &mut [f32],
    mut each: impl FnMut(TokenScore),
) {
    let _timed = Timed::begin(Operation::CrossEntropy, product_flops(targets, head));
    for_each_chunk(targets, |tokens| {
        let mut chunk = Chunk::carve(scratch, tokens.len(), head);
        chunk.project(x, tokens, head);
        chunk.for_each_score(tokens, targets, &mut each);
    });
}

/// The loss, with the gradient of `scale * nll_sum` set in `dx` and added to `dhead` (row-major, as `head`).
pub fn cross_entropy_forward_backward(
    dx: &mut ActivationsMut<'_>,
    mut dhead: Option<&mut [f32]>,
    x: Activations<'_>,
    head: &WeightMatrix,
    targets: &[i32],
    scale: f32,
    scratch: &mut [f32],
) -> LossSum {
    assert_eq!((dx.width(), dx.blocks()), (x.width(), x.blocks()));
    let products = if dhead.is_some() { 3 } else { 2 };
    let _timed = Timed::begin(
        Operation::CrossEntropy,
        products * product_flops(targets, head),
    );
    dx.data().fill(0.0);
    let mut loss = LossSum::default();
    for_each_chunk(targets, |tokens| {
        let mut chunk = Chunk::carve(scratch, tokens.len(), head);
        chunk.project(x, tokens, head);
        chunk.for_each_score(tokens, targets, |score| loss += score);
        chunk.replace_by_gradients(tokens, targets, scale);
        if let Some(dhead) = &mut dhead {
            accumulate_outer(dhead, chunk.logits.view(), chunk.x.view(), chunk.rest);
        }
        let product = Product {
            matrix: Matrix::WeightTransposed(head),
            input: chunk.logits.view(),
        };
        multiply(&mut chunk.x, Start::Zero, &[product], 1.0);
        scatter(dx, chunk.x.view(), tokens);
    });
    loss
}

/// Values of scratch that both functions need for a batch of `tokens`.
pub fn cross_entropy_scratch(
    tokens: usize,
    vocabulary: usize,
    hidden: usize,
    with_dhead: bool,
) -> usize {
    let padded = padded_tokens(tokens.min(CHUNK));
    let outer = if with_dhead {
        outer_scratch(padded / LANES, vocabulary, hidden)
    } else {
        0
    };
    let statistics = cpu::parts(vocabulary) * 2 * padded;
    let parts = [padded * hidden, padded * vocabulary, statistics, padded];
    parts.into_iter().map(Carver::space).sum::<usize>() + outer
}

/// What one product of all labelled tokens with the output projection takes.
fn product_flops(targets: &[i32], head: &WeightMatrix) -> usize {
    let labelled = targets.iter().filter(|&&target| target != IGNORE).count();
    2 * labelled * head.rows() * head.columns()
}

/// Calls `work` with the positions of the labelled tokens, a chunk at a time.
fn for_each_chunk(targets: &[i32], mut work: impl FnMut(&[usize])) {
    let mut positions = [0; CHUNK];
    let mut labelled = targets
        .iter()
        .enumerate()
        .filter(|(_, t)| **t != IGNORE)
        .map(|(i, _)| i);
    loop {
        let mut count = 0;
        for (slot, position) in positions.iter_mut().zip(labelled.by_ref()) {
            *slot = position;
            count += 1;
        }
        if count == 0 {
            return;
        }
        work(&positions[..count]);
        if count < CHUNK {
            return;
        }
    }
}

/// One chunk of labelled tokens, side by side.
struct Chunk<'a> {
    /// The tokens' inputs `[tokens, hidden]`, later their gradients.
    x: ActivationsMut<'a>,
    /// `[tokens, vocabulary]`, later their gradients.
    logits: ActivationsMut<'a>,
    /// Maximum and sum of exponentials of each part of the vocabulary.
    statistics: &'a mut [f32],
    /// ln sum e^z of each token.
    lse: &'a mut [f32],
    /// What is left of the scratch.
    rest: &'a mut [f32],
}

impl<'a> Chunk<'a> {
    fn carve(scratch: &'a mut [f32], tokens: usize, head: &WeightMatrix) -> Self {
        let padded = padded_tokens(tokens);
        let mut carver = Carver::new(scratch);
        Self {
            x: ActivationsMut::new(carver.take(padded * head.columns()), head.columns()),
            logits: ActivationsMut::new(carver.take(padded * head.rows()), head.rows()),
            statistics: carver.take(cpu::parts(head.rows()) * 2 * padded),
            lse: carver.take(padded),
            rest: carver.into_rest(),
        }
    }

    /// Gathers the tokens and computes their logits.
    fn project(&mut self, x: Activations<'_>, tokens: &[usize], head: &WeightMatrix) {
        gather(&mut self.x, x, tokens);
        let product = Product {
            matrix: Matrix::Weight(head),
            input: self.x.view(),
        };
        multiply(&mut self.logits, Start::Zero, &[product], 1.0);
        cpu::statistics(self.statistics, self.logits.view());
        cpu::combine(self.lse, self.statistics);
    }

    fn for_each_score(&self, tokens: &[usize], targets: &[i32], mut each: impl FnMut(TokenScore)) {
        let logits = self.logits.view();
        for (i, &token) in tokens.iter().enumerate() {
            let target = targets[token] as usize;
            let logit = logits.block(i / LANES)[target * LANES + i % LANES];
            each(TokenScore {
                position: token,
                nll: f64::from(self.lse[i]) - f64::from(logit),
                is_likeliest: logit >= cpu::largest(self.statistics, self.lse.len(), i),
            });
        }
    }

    /// Replaces logits by their gradients; lanes without a token get zeros.
    fn replace_by_gradients(&mut self, tokens: &[usize], targets: &[i32], scale: f32) {
        cpu::gradients(&mut self.logits, self.lse, tokens.len(), scale);
        let width = self.logits.width();
        for (i, &token) in tokens.iter().enumerate() {
            let at = i / LANES * width * LANES + targets[token] as usize * LANES + i % LANES;
            self.logits.data()[at] -= scale;
        }
    }
}

/// Copies some tokens side by side; lanes past the last become zero.
fn gather(out: &mut ActivationsMut<'_>, x: Activations<'_>, tokens: &[usize]) {
    let width = x.width();
    out.data().fill(0.0);
    for (i, &token) in tokens.iter().enumerate() {
        let start = i / LANES * width * LANES + i % LANES;
        let lanes = out.data()[start..].iter_mut().step_by(LANES);
        lanes.zip(x.token(token)).for_each(|(out, x)| *out = x);
    }
}

/// Copies tokens back to where they came from.
fn scatter(out: &mut ActivationsMut<'_>, x: Activations<'_>, tokens: &[usize]) {
    let width = x.width();
    for (i, &token) in tokens.iter().enumerate() {
        let start = token / LANES * width * LANES + token % LANES;
        let lanes = out.data()[start..].iter_mut().step_by(LANES);
        lanes.zip(x.token(i)).for_each(|(out, x)| *out = x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::{Checked, blocks, values};

    fn check(tokens: usize, vocabulary: usize, hidden: usize, target: impl Fn(usize) -> i32) {
        let (x, head) = (values(1, tokens * hidden), values(2, vocabulary * hidden));
        let head: Vec<f32> = head.iter().map(|h| 3.0 * h).collect();
        let targets: Vec<i32> = (0..tokens).map(target).collect();
        let scale = 0.25;
        let reference = |inputs: &[Vec<f64>]| -> Vec<f64> {
            let mut loss = 0.0;
            for (x, &target) in inputs[0].chunks(hidden).zip(&targets) {
                if target != IGNORE {
                    let dot = |h: &[f64]| h.iter().zip(x).map(|(h, x)| h * x).sum::<f64>();
                    let z: Vec<f64> = inputs[1].chunks(hidden).map(dot).collect();
                    loss += z.iter().map(|z| z.exp()).sum::<f64>().ln() - z[target as usize];
                }
            }
            vec![loss]
        };
        let panels = WeightMatrix::from_f32(&head, vocabulary, hidden).unwrap();
        let xb = blocks(&x, tokens);
        let xa = Activations::new(&xb, hidden);
        let mut scratch = vec![f32::NAN; cross_entropy_scratch(tokens, vocabulary, hidden, true)];
        let mut dx = vec![f32::NAN; xb.len()];
        let mut dx = ActivationsMut::new(&mut dx, hidden);
        let mut dhead = vec![0.0; head.len()];
        let loss = cross_entropy_forward_backward(
            &mut dx,
            Some(&mut dhead),
            xa,
            &panels,
            &targets,
            scale,
            &mut scratch,
        );
        let mut again = LossSum::default();
        cross_entropy_forward(xa, &panels, &targets, &mut scratch, |score| {
            let x = &x[score.position * hidden..][..hidden];
            let dot = |h: &[f32]| h.iter().zip(x).map(|(h, x)| h * x).sum::<f32>();
            let z: Vec<f32> = head.chunks(hidden).map(dot).collect();
            let largest = z.iter().copied().fold(f32::MIN, f32::max);
            let target = z[targets[score.position] as usize];
            let is_near = (target - largest).abs() < 1e-4;
            assert!(
                is_near || !score.is_likeliest,
                "position {}",
                score.position
            );
            again += score;
        });
        assert_eq!(loss, again);
        assert_eq!(
            loss.tokens as usize,
            targets.iter().filter(|&&t| t != IGNORE).count()
        );
        Checked::new(&[loss.nll_sum as f32], 2e-6)
            .forward(reference, &[&x, &head])
            .gradients(&[scale], &[&dx.view().to_rows(tokens), &dhead], 3e-6);
    }

    #[test]
    fn loss_and_gradients_agree_with_finite_differences() {
        check(40, 50, 10, |t| {
            if t % 3 == 0 {
                IGNORE
            } else {
                (t * 7 % 50) as i32
            }
        });
    }

    #[test]
    fn several_chunks_of_labelled_tokens_add_up() {
        check(CHUNK + 45, 30, 4, |t| {
            if t == 5 { IGNORE } else { (t % 30) as i32 }
        });
    }

    #[test]
    fn without_labels_there_is_no_loss_and_no_gradient() {
        check(33, 20, 4, |_| IGNORE);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let (vocabulary, hidden) = (5000, 2);
        let head: Vec<f32> = (0..vocabulary * hidden).map(|i| i as f32).collect();
        let panels = WeightMatrix::from_f32(&head, vocabulary, hidden).unwrap();
        let x = blocks(&[1.0, 1.0], 1);
        let mut scratch = vec![0.0; cross_entropy_scratch(1, vocabulary, hidden, false)];
        let mut loss = LossSum::default();
        let x = Activations::new(&x, hidden);
        cross_entropy_forward(x, &panels, &[0], &mut scratch, |score| {
            assert!(!score.is_likeliest);
            loss += score;
        });
        assert!(
            (loss.nll_sum - (4.0 * 4999.0 + (1.0 / (1.0 - (-4.0f64).exp())).ln())).abs() < 0.01
        );
    }

    #[test]
    fn a_logit_that_is_no_number_is_not_passed_over() {
        let (vocabulary, hidden) = (500, 2);
        let mut head = values(1, vocabulary * hidden);
        head[301 * hidden] = f32::NAN;
        let panels = WeightMatrix::from_f32(&head, vocabulary, hidden).unwrap();
        let x = blocks(&[1.0, 1.0], 1);
        let mut scratch = vec![0.0; cross_entropy_scratch(1, vocabulary, hidden, false)];
        let mut loss = LossSum::default();
        let x = Activations::new(&x, hidden);
        cross_entropy_forward(x, &panels, &[0], &mut scratch, |score| loss += score);
        assert!(loss.nll_sum.is_nan(), "{}", loss.nll_sum);
    }
}
