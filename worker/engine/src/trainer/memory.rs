//! How much memory a run needs, and how it gets by with less: smaller micro-batches, and activations that are computed
//! again.
//!
//! ```text
//! needed = weights + (value, gradient and two moments of what is trained) + the order of rows
//!          + one pass through the model
//! ```
//! The sequences of an optimizer step stay the same, so loss and gradients do too, but for rounding. What a run once
//! had to do is kept over checkpoints.

use super::steps::{OnEvent, Steps};
use super::{LogLevel, TrainingEvent};
use crate::EngineError;
use crate::checkpoint::TrainerState;
use crate::model::{ModelConfig, PassSize};
use trainyard_shared::training::TrainingConfig;

/// Left free for all else.
const RESERVE_BYTES: u64 = 128 << 20;
/// Value, gradient and two moments of a trained weight, in f32.
const BYTES_PER_TRAINED: u64 = 16;

/// What is done first where memory is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sparing {
    /// Smaller micro-batches, which cost the least time.
    #[default]
    SmallerBatches,
    /// Activations that are computed again, which changes no bit.
    Checkpointing,
}

/// What decides how much memory a run needs.
pub(super) struct Needs<'a> {
    pub(super) model: &'a ModelConfig,
    /// Bytes that the weights take up which passes through the model use.
    pub(super) weight_bytes: u64,
    /// Weights that are trained.
    pub(super) trained: u64,
    /// Bytes that the order of rows takes up.
    pub(super) order_bytes: u64,
    /// Rank of each projection's pair in each layer, 0 for none.
    pub(super) ranks: &'a [[usize; 7]],
    pub(super) trains_weights: bool,
    /// No micro-batch of so many sequences has more tokens.
    pub(super) most_tokens: &'a dyn Fn(usize) -> usize,
    pub(super) sparing: Sparing,
}

/// How a run gets by with the memory that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    pub(super) micro_batch_size: u32,
    pub(super) gradient_checkpointing: bool,
}

impl Fit {
    /// What the config asks for.
    pub(super) fn of_config(config: &TrainingConfig) -> Self {
        Self {
            micro_batch_size: config.batch_size,
            gradient_checkpointing: config.gradient_checkpointing,
        }
    }

    /// What the config asks for, or less where the run had to do with less before.
    pub(super) fn wanted(config: &TrainingConfig, state: &TrainerState) -> Self {
        let before = state.micro_batch_size.unwrap_or(config.batch_size);
        Self {
            micro_batch_size: before.clamp(1, config.batch_size),
            gradient_checkpointing: config.gradient_checkpointing || state.saves_memory,
        }
    }

    /// The next smaller one; none where there is none.
    fn smaller(self, sparing: Sparing) -> Option<Self> {
        let is_one = self.micro_batch_size == 1;
        let checkpoints_next =
            !self.gradient_checkpointing && (is_one || sparing == Sparing::Checkpointing);
        match (checkpoints_next, is_one) {
            (true, _) => Some(Self {
                gradient_checkpointing: true,
                ..self
            }),
            (false, false) => Some(Self {
                micro_batch_size: self.micro_batch_size.div_ceil(2),
                ..self
            }),
            (false, true) => None,
        }
    }
}

impl Needs<'_> {
    /// The largest fit from `wanted` down for which `available` bytes are enough.
    ///
    /// # Errors
    /// [`EngineError::TooLarge`] with the figures, and what would fit.
    pub(super) fn fit(
        &self,
        wanted: Fit,
        config: &TrainingConfig,
        available: u64,
    ) -> Result<Fit, EngineError> {
        let mut fit = wanted;
        while self.bytes(fit, config) > available {
            fit = match fit.smaller(self.sparing) {
                Some(smaller) => smaller,
                None => return Err(self.too_large(fit, config, available)),
            };
        }
        Ok(fit)
    }

    /// Bytes that a run needs at its peak.
    fn bytes(&self, fit: Fit, config: &TrainingConfig) -> u64 {
        self.lasting_bytes()
            + self.pass_bytes(
                (self.most_tokens)(fit.micro_batch_size as usize),
                fit,
                config,
            )
            + RESERVE_BYTES
    }

    fn lasting_bytes(&self) -> u64 {
        self.weight_bytes + self.trained * BYTES_PER_TRAINED + self.order_bytes
    }

    fn pass_bytes(&self, tokens: usize, fit: Fit, config: &TrainingConfig) -> u64 {
        let size = PassSize {
            tokens,
            ranks: self.ranks,
            dropout: config.lora_dropout > 0.0,
            trains_weights: self.trains_weights,
            gradient_checkpointing: fit.gradient_checkpointing,
        };
        size.bytes(self.model)
    }

    fn too_large(&self, fit: Fit, config: &TrainingConfig, available: u64) -> EngineError {
        let longest = (self.most_tokens)(1);
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        let fits = |tokens: usize| {
            self.lasting_bytes() + self.pass_bytes(tokens, fit, config) + RESERVE_BYTES <= available
        };
        let mut shorter = longest;
        while shorter > 1 && !fits(shorter) {
            shorter /= 2;
        }
        let advice = if fits(shorter) {
            format!("sequences of {shorter} tokens would fit (max_length)")
        } else if self.trains_weights {
            "no length would fit; a LoRA adapter (use_peft: true) needs less".to_owned()
        } else {
            "no length would fit; a smaller base model, or load_in_8bit or load_in_4bit, needs less"
                .to_owned()
        };
        EngineError::TooLarge(format!(
            "{} MiB are needed and {} MiB are available: {} for weights, {} for what is trained, {} for the order of \
             rows, {} for one sequence of {longest} tokens with gradient checkpointing, {} for all else; {advice}",
            mebibytes(self.bytes(fit, config)),
            mebibytes(available),
            mebibytes(self.weight_bytes),
            mebibytes(self.trained * BYTES_PER_TRAINED),
            mebibytes(self.order_bytes),
            mebibytes(self.pass_bytes(longest, fit, config)),
            mebibytes(RESERVE_BYTES),
        ))
    }
}

impl Steps<'_> {
    /// Sequences in one micro-batch, as it runs.
    pub(super) fn micro_batch_size(&self) -> u32 {
        self.fit().micro_batch_size
    }

    /// Micro-batches in one full step, as it runs.
    pub(super) fn accumulation(&self) -> u32 {
        let config = &self.config;
        config.gradient_accumulation_steps * config.batch_size.div_ceil(self.micro_batch_size())
    }

    fn fit(&self) -> Fit {
        Fit::wanted(self.config, &self.state)
    }

    /// Runs with this from now on, and says so where it is less than the config asks for.
    pub(super) fn set_fit(&mut self, fit: Fit, on_event: &mut OnEvent<'_>) {
        let before = self.fit();
        let config = &self.config;
        if fit.micro_batch_size < config.batch_size {
            self.state.micro_batch_size = Some(fit.micro_batch_size);
        }
        self.state.saves_memory = fit.gradient_checkpointing && !config.gradient_checkpointing;
        self.model
            .set_gradient_checkpointing(fit.gradient_checkpointing);
        if fit == before {
            return;
        }
        let also = match fit.gradient_checkpointing && !before.gradient_checkpointing {
            true => ", with gradient checkpointing",
            false => "",
        };
        let line = format!(
            "to fit into memory, micro-batches of {} in place of {} sequences run, {} to a step in place of {}{also}",
            fit.micro_batch_size,
            config.batch_size,
            self.accumulation(),
            config.gradient_accumulation_steps
        );
        on_event(TrainingEvent::Log {
            level: LogLevel::Warning,
            line,
        });
    }

    /// After memory has run out: the next smaller fit, or `error` where there is none.
    pub(super) fn shrink(
        &mut self,
        error: EngineError,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), EngineError> {
        let smaller = self.fit().smaller(self.sparing).ok_or(error)?;
        self.set_fit(smaller, on_event);
        Ok(())
    }
}
