//! Embedding: each token's row of the embedding matrix.
//!
//! ```text
//! x[token] = E[id[token]]          dE[id[token]] += dx[token]
//! ```

use rayon::prelude::*;

use crate::{
    device::{Activations, ActivationsMut, LANES, WeightMatrix},
    profile::{Operation, Timed},
};

/// `x` `[tokens, width]` from `ids` and `e` `[vocabulary, width]`; lanes past the last token become zero.
pub fn embedding_forward(x: &mut ActivationsMut<'_>, ids: &[u32], e: &WeightMatrix) {
    let _timed = Timed::begin(Operation::Embedding, 0);
    let width = x.width();
    assert_eq!(width, e.columns(), "width of the embedding");
    let blocks = x.data().par_chunks_exact_mut(width * LANES);
    blocks.zip(ids.par_chunks(LANES)).for_each(|(block, ids)| {
        block.fill(0.0);
        for (lane, &id) in ids.iter().enumerate() {
            for (x, e) in block[lane..]
                .iter_mut()
                .step_by(LANES)
                .zip(e.row(id as usize))
            {
                *x = e;
            }
        }
    });
}

/// `de` row-major `[vocabulary, width]` gets the gradient of each token added to its row.
pub fn embedding_backward(de: &mut [f32], ids: &[u32], dx: Activations<'_>) {
    let _timed = Timed::begin(Operation::EmbeddingGradient, 0);
    // Tokens in order on one thread: rows repeat, and the order of addition must not change.
    for (token, &id) in ids.iter().enumerate() {
        let row = &mut de[id as usize * dx.width()..][..dx.width()];
        for (de, dx) in row.iter_mut().zip(dx.token(token)) {
            *de += dx;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::padded_tokens;

    #[test]
    fn tokens_get_their_rows_and_rows_their_tokens_gradients() {
        let (vocabulary, width) = (20, 6);
        let e: Vec<f32> = (0..vocabulary * width).map(|i| i as f32).collect();
        let panels = WeightMatrix::from_f32(&e, vocabulary, width).unwrap();
        let ids: Vec<u32> = (0..40).map(|i| (i * 7) % 20).collect();
        let mut x = vec![f32::NAN; padded_tokens(ids.len()) * width];
        let mut x = ActivationsMut::new(&mut x, width);
        embedding_forward(&mut x, &ids, &panels);
        for (token, &id) in ids.iter().enumerate() {
            let found: Vec<f32> = x.view().token(token).collect();
            assert_eq!(found, e[id as usize * width..][..width]);
        }
        assert!(x.view().token(63).all(|v| v == 0.0));

        let mut de = vec![1.0; vocabulary * width];
        embedding_backward(&mut de, &ids, x.view());
        for (i, de) in de.iter().enumerate() {
            assert_eq!(
                *de,
                1.0 + 2.0 * i as f32,
                "each id stands twice in the batch"
            );
        }
    }
}
