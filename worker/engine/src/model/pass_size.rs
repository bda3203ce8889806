//! How much memory a pass through a model takes, before there is a model.

use super::ModelConfig;
use super::memory::{Keep, Plan};
use crate::device::padded_tokens;

/// What decides how much memory a training pass, forward and backward, takes.
#[derive(Debug, Clone, Copy)]
pub struct PassSize<'a> {
    /// Tokens of the batch.
    pub tokens: usize,
    /// Rank of each projection's pair in each layer, 0 for none.
    pub ranks: &'a [[usize; 7]],
    /// Whether LoRA's dropout is on.
    pub dropout: bool,
    /// Whether weights of the model itself are trained.
    pub trains_weights: bool,
    /// Whether only the layers' inputs are kept.
    pub gradient_checkpointing: bool,
}

impl PassSize<'_> {
    /// Bytes that the pass takes, beside weights and gradients.
    pub fn bytes(&self, config: &ModelConfig) -> u64 {
        let plan = Plan {
            config,
            tokens: padded_tokens(self.tokens),
            ranks: self.ranks,
            dropout: self.dropout,
            full: self.trains_weights,
            keep: match self.gradient_checkpointing {
                true => Keep::Inputs,
                false => Keep::All,
            },
        };
        plan.len() as u64 * size_of::<f32>() as u64
    }
}
