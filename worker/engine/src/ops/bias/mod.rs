//! The bias of a linear layer: one value per feature, added to every token.
//!
//! ```text
//! y = y + b          db += sum over tokens of dy          dy passes unchanged
//! ```

use rayon::prelude::*;

use crate::{
    device::{Activations, ActivationsMut, LANES},
    profile::{Operation, Timed},
};

/// Adds `b` `[width]` to every token of `y` `[tokens, width]`, the lanes past the last token included.
pub fn bias_forward(y: &mut ActivationsMut<'_>, b: &[f32]) {
    assert_eq!(y.width(), b.len(), "one value per feature");
    let _timed = Timed::begin(Operation::Bias, 0);
    let len = y.width() * LANES;
    y.data().par_chunks_exact_mut(len).for_each(|block| {
        for (lanes, b) in block.chunks_exact_mut(LANES).zip(b) {
            lanes.iter_mut().for_each(|y| *y += b);
        }
    });
}

/// Adds `b` `[width]` to each of some tokens, row-major `[tokens, width]`.
pub fn bias_rows(y: &mut [f32], b: &[f32]) {
    for row in y.chunks_exact_mut(b.len()) {
        row.iter_mut().zip(b).for_each(|(y, b)| *y += b);
    }
}

/// Adds the gradient of `b` to `db`; `dy` is zero in the lanes past the last token.
pub fn bias_backward(db: &mut [f32], dy: Activations<'_>) {
    assert_eq!(dy.width(), db.len(), "one value per feature");
    let _timed = Timed::begin(Operation::BiasGradient, 0);
    db.par_iter_mut().enumerate().for_each(|(feature, db)| {
        let lanes = |block: usize| &dy.block(block)[feature * LANES..][..LANES];
        *db += (0..dy.blocks())
            .map(|b| lanes(b).iter().sum::<f32>())
            .sum::<f32>();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::test_values::{Checked, blocks, values};

    #[test]
    fn forward_and_gradients_agree_with_finite_differences() {
        let (tokens, width) = (40, 7);
        let (x, b, dy) = (
            values(1, tokens * width),
            values(2, width),
            values(3, tokens * width),
        );
        let reference = |inputs: &[Vec<f64>]| -> Vec<f64> {
            let rows = inputs[0].chunks(width);
            rows.flat_map(|x| {
                x.iter()
                    .zip(&inputs[1])
                    .map(|(x, b)| x + b)
                    .collect::<Vec<_>>()
            })
            .collect()
        };
        let mut y = blocks(&x, tokens);
        let mut y = ActivationsMut::new(&mut y, width);
        bias_forward(&mut y, &b);
        let dyb = blocks(&dy, tokens);
        let mut db = vec![0.0; width];
        bias_backward(&mut db, Activations::new(&dyb, width));
        Checked::new(&y.view().to_rows(tokens), 1e-7)
            .forward(reference, &[&x, &b])
            .gradients(&dy, &[&dy, &db], 1e-5);

        let mut rows = x.clone();
        bias_rows(&mut rows, &b);
        assert_eq!(
            rows,
            y.view().to_rows(tokens),
            "few tokens get the same bits"
        );
    }
}
