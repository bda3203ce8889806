//! What runs through a model at once: packed sequences of tokens, and the loss that comes out.

use super::ModelConfig;
use crate::EngineError;

/// The target of a position that has no label.
pub const IGNORE: i32 = -100;

/// Sequences packed one behind the other, without padding.
///
/// `ids`, `positions` and `targets` have one entry per token. Attention never crosses a boundary in `offsets`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// Token ids, below the model's `vocab_size`.
    pub ids: Vec<u32>,
    /// Position of each token in its sequence, for the rotary embedding.
    pub positions: Vec<u32>,
    /// The token to be predicted from each position (labels already shifted), or [`IGNORE`].
    pub targets: Vec<i32>,
    /// Sequence boundaries: sequence `i` is `offsets[i]..offsets[i + 1]`. Starts with 0, ends with `ids.len()`.
    pub offsets: Vec<usize>,
}

/// A sum of losses over labelled tokens; divide to get the mean.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossSum {
    /// Negative log-likelihood of the targets, summed, in nats.
    pub nll_sum: f64,
    /// How many tokens had a target.
    pub tokens: u64,
}

impl LossSum {
    /// Mean loss per labelled token; NaN without any.
    pub fn mean(&self) -> f64 {
        self.nll_sum / self.tokens as f64
    }
}

/// How well one labelled token is predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenScore {
    /// The position in the batch from which it is predicted.
    pub position: usize,
    /// Negative log-likelihood, in nats.
    pub nll: f64,
    /// Whether no other token is more likely.
    pub is_likeliest: bool,
}

impl std::ops::AddAssign<TokenScore> for LossSum {
    fn add_assign(&mut self, score: TokenScore) {
        self.nll_sum += score.nll;
        self.tokens += 1;
    }
}

impl std::ops::AddAssign for LossSum {
    fn add_assign(&mut self, other: Self) {
        self.nll_sum += other.nll_sum;
        self.tokens += other.tokens;
    }
}

impl Batch {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of tokens with a target.
    pub fn labelled_tokens(&self) -> usize {
        self.targets.iter().filter(|&&t| t != IGNORE).count()
    }

    /// Appends one sequence, with positions from 0.
    ///
    /// `targets[i]` is to be predicted from `ids[i]`; both have the same length.
    pub fn push_sequence(&mut self, ids: &[u32], targets: &[i32]) {
        assert_eq!(ids.len(), targets.len(), "one target per token");
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.ids.extend_from_slice(ids);
        self.targets.extend_from_slice(targets);
        self.positions.extend(0..ids.len() as u32);
        self.offsets.push(self.ids.len());
    }

    /// Checks lengths, boundaries and ranges against a model.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] saying what is wrong.
    pub fn validate(&self, config: &ModelConfig) -> Result<(), EngineError> {
        let vocab = config.vocab_size;
        let tokens = self.ids.len();
        let problem = if tokens == 0 {
            "no tokens".to_owned()
        } else if self.positions.len() != tokens || self.targets.len() != tokens {
            format!(
                "{tokens} ids, {} positions, {} targets",
                self.positions.len(),
                self.targets.len()
            )
        } else if self.offsets.first() != Some(&0)
            || self.offsets.last() != Some(&tokens)
            || self.offsets.windows(2).any(|w| w[0] >= w[1])
        {
            format!("offsets do not rise from 0 to {tokens}")
        } else if let Some(id) = self.ids.iter().find(|&&id| id as usize >= vocab) {
            format!("token {id} is outside the vocabulary of {vocab}")
        } else if let Some(target) = self
            .targets
            .iter()
            .find(|&&t| t != IGNORE && usize::try_from(t).map_or(true, |t| t >= vocab))
        {
            format!("target {target} is outside the vocabulary of {vocab}")
        } else {
            return Ok(());
        };
        Err(EngineError::InvalidBatch(problem))
    }
}
