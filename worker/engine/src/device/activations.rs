//! The layout of activations: blocks of tokens, features within, one lane per token.

/// Tokens per block.
pub const LANES: usize = 32;

/// `tokens` rounded up to whole blocks. The lanes past the last token hold zeros or other finite values.
pub const fn padded_tokens(tokens: usize) -> usize {
    tokens.next_multiple_of(LANES)
}

/// Activations `[tokens, width]` as `[block][feature][lane]`, read only.
#[derive(Debug, Clone, Copy)]
pub struct Activations<'a> {
    data: &'a [f32],
    width: usize,
}

/// Activations `[tokens, width]` as `[block][feature][lane]`, to be written.
#[derive(Debug)]
pub struct ActivationsMut<'a> {
    data: &'a mut [f32],
    width: usize,
}

impl<'a> Activations<'a> {
    /// No tokens.
    pub(crate) const EMPTY: Self = Self {
        data: &[],
        width: 1,
    };

    /// Views a slice of whole blocks.
    pub fn new(data: &'a [f32], width: usize) -> Self {
        assert_eq!(
            data.len() % (width * LANES),
            0,
            "whole blocks of width {width}"
        );
        Self { data, width }
    }

    /// Features per token.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.data.len() / (self.width * LANES)
    }

    /// Number of tokens, in whole blocks.
    pub fn tokens(&self) -> usize {
        self.data.len() / self.width
    }

    /// The same values with every head of `dim` features by itself: block `i * heads + h` is head `h` of block `i`.
    pub fn heads(self, dim: usize) -> Self {
        assert_eq!(self.width % dim, 0, "heads of {dim} features");
        Self { width: dim, ..self }
    }

    /// All values.
    pub fn data(&self) -> &'a [f32] {
        self.data
    }

    /// The values of one block, `[feature][lane]`.
    pub fn block(&self, block: usize) -> &'a [f32] {
        &self.data[block * self.width * LANES..][..self.width * LANES]
    }

    /// The features of one token.
    pub fn token(&self, token: usize) -> impl Iterator<Item = f32> + use<'a> {
        let lane = token % LANES;
        self.block(token / LANES)
            .iter()
            .skip(lane)
            .step_by(LANES)
            .copied()
    }

    /// Row-major `[tokens, width]`.
    pub fn to_rows(&self, tokens: usize) -> Vec<f32> {
        (0..tokens).flat_map(|token| self.token(token)).collect()
    }
}

impl<'a> ActivationsMut<'a> {
    /// Views a slice of whole blocks.
    pub fn new(data: &'a mut [f32], width: usize) -> Self {
        assert_eq!(
            data.len() % (width * LANES),
            0,
            "whole blocks of width {width}"
        );
        Self { data, width }
    }

    /// Features per token.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.data.len() / (self.width * LANES)
    }

    /// All values.
    pub fn data(&mut self) -> &mut [f32] {
        self.data
    }

    /// As [`Activations::heads`].
    pub fn heads(&mut self, dim: usize) -> ActivationsMut<'_> {
        assert_eq!(self.width % dim, 0, "heads of {dim} features");
        ActivationsMut::new(self.data, dim)
    }

    /// All values, for as long as the view was made for.
    pub fn into_data(self) -> &'a mut [f32] {
        self.data
    }

    /// The same values, read only.
    pub fn view(&self) -> Activations<'_> {
        Activations {
            data: self.data,
            width: self.width,
        }
    }

    /// Sets all values from row-major `[tokens, width]`, and the lanes past the last token to zero.
    pub fn set_rows(&mut self, rows: &[f32]) {
        self.data.fill(0.0);
        for (token, row) in rows.chunks(self.width).enumerate() {
            let start = token / LANES * self.width * LANES + token % LANES;
            for (value, x) in self.data[start..].iter_mut().step_by(LANES).zip(row) {
                *value = *x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_block_layout() {
        let (tokens, width) = (LANES + 3, 5);
        let rows: Vec<f32> = (0..tokens * width).map(|i| i as f32 + 1.0).collect();
        let mut data = vec![9.0; padded_tokens(tokens) * width];
        let mut activations = ActivationsMut::new(&mut data, width);
        activations.set_rows(&rows);
        let view = activations.view();
        assert_eq!(view.to_rows(tokens), rows);
        assert!(
            view.token(tokens).all(|v| v == 0.0),
            "lanes past the end are zero"
        );
    }
}
