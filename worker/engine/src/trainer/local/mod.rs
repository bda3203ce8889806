//! Local training: one worker's part of a round of federated training.
//!
//! From the base model, an adapter's config and a file with the round's weights, some optimizer steps lead to a file
//! with exactly the same tensors and other values. The loop is that of whole runs (`Steps`).
//!
//! 1. [`LocalTraining::load`] estimates the memory and loads the base model once for all rounds.
//! 2. [`LocalTraining::round`] checks the weights' file by its digest, takes its values up, does the steps, and writes
//!    the result. AdamW's moments begin at zero, or go on from a folder where those of earlier rounds are kept.
//!
//! Steps are numbered over all rounds: step `s` of round `r` is step `r * steps + s` of a run, by which data, dropout
//! and learning rate go. So the same weights, data, config and round give the same bytes on the same device, however
//! much memory is free: micro-batches are of `MICRO_BATCH_TOKENS` tokens at most, and where memory is short activations
//! are computed again, which changes no bit. Only where that is not enough are micro-batches made smaller, with a warning.

mod data;
mod kept;
mod weights;

use std::path::Path;

use chrono::Local;
use trainyard_shared::training::TrainingConfig;

use super::memory::{Fit, Needs, Sparing};
use super::method::{Method, adapted};
use super::steps::Steps;
use super::{TrainingEvent, progress::finite};
use crate::EngineError;
use crate::adapter::{self, AdapterConfig};
use crate::checkpoint::{RunIdentity, TrainerState};
use crate::data::Order;
use crate::files::WrittenFile;
use crate::model::{Holding, LossSum, ModelConfig, TrainModel};
use crate::optimizer::Optimizer;
use crate::weights::ModelFiles;
use kept::{Kept, KeptOptimizer};
use weights::WeightsFile;

pub use data::{LocalData, Part};

/// No micro-batch of more sequences than one has more tokens than these.
const MICRO_BATCH_TOKENS: usize = 2048;

/// A base model with an adapter, to be trained a round at a time.
#[derive(Debug)]
pub struct LocalTraining {
    method: Method,
    config: ModelConfig,
    weight_bytes: u64,
    available_bytes: u64,
    /// None only while a round runs.
    model: Option<TrainModel>,
}

/// One worker's part of a round.
#[derive(Debug)]
pub struct LocalRound<'a> {
    /// What to train on.
    pub data: &'a LocalData,
    /// How to train: the adapter's fields count for nothing here.
    pub config: &'a TrainingConfig,
    /// The round, from 0.
    pub round: u64,
    /// Rounds in all, by which the learning rate falls where the config says so.
    pub total_rounds: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// The file with the round's weights.
    pub weights: &'a Path,
    /// SHA-256 of that file in hexadecimal.
    pub weights_sha256: &'a str,
    /// Where the result goes.
    pub output: &'a Path,
    /// Where AdamW's moments are kept between rounds; without that they begin at zero.
    pub moments: Option<MomentsPlace<'a>>,
}

/// Where AdamW's moments are kept between rounds.
#[derive(Debug, Clone, Copy)]
pub struct MomentsPlace<'a> {
    /// The folder, which is made when it is needed.
    pub folder: &'a Path,
    /// What they belong to: those of another session are not taken up.
    pub session: &'a str,
}

/// How a round ended for a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum LocalOutcome {
    /// The result is written.
    Trained(LocalResult),
    /// It was stopped; nothing is written.
    Stopped,
}

/// What a worker's part of a round came to.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalResult {
    /// The file with the new weights.
    pub file: WrittenFile,
    /// Mean loss over all labelled tokens of all steps, in nats.
    pub loss: Option<f64>,
    /// Optimizer steps, those that were skipped included.
    pub steps: u64,
    /// Labelled tokens of all steps.
    pub learned_tokens: u64,
    /// Tokens that ran through the model.
    pub tokens: u64,
}

impl LocalTraining {
    /// Estimates the memory that rounds with such a config need, with sequences of full length.
    ///
    /// # Errors
    /// [`EngineError::TooLarge`] with the figures, [`EngineError::InvalidSetting`] for targets that match no layer.
    pub fn check_memory(
        model: &ModelFiles,
        adapter: &AdapterConfig,
        config: &TrainingConfig,
        available_bytes: u64,
    ) -> Result<(), EngineError> {
        let holding = Holding::for_training(config, model, available_bytes);
        let method = Method::Adapter(Box::new(adapter.clone()));
        let weight_bytes = holding.bytes(model);
        let full = |sequences: usize| sequences.saturating_mul(config.max_length as usize);
        let wanted = Fit {
            micro_batch_size: micro_batch_size(config, &full),
            ..Fit::of_config(config)
        };
        fit(
            &method,
            &model.config,
            weight_bytes,
            &full,
            wanted,
            config,
            available_bytes,
        )
        .map(|_| ())
    }

    /// Loads the base model with an adapter whose weights come with each round. `config` says how the base model is
    /// held in memory.
    ///
    /// # Errors
    /// As [`LocalTraining::check_memory`], and weights that cannot be read.
    pub fn load(
        model: &ModelFiles,
        adapter: &AdapterConfig,
        config: &TrainingConfig,
        available_bytes: u64,
    ) -> Result<Self, EngineError> {
        Self::check_memory(model, adapter, config, available_bytes)?;
        let holding = Holding::for_training(config, model, available_bytes);
        let fresh = adapter::fresh(adapter, &model.config, config.seed)?;
        let method = Method::Adapter(Box::new(adapter.clone()));
        let whole = method.whole_weights(&model.config)?;
        Ok(Self {
            config: model.config.clone(),
            weight_bytes: holding.bytes(model),
            available_bytes,
            model: Some(adapted(model, holding, &fresh, &whole)?),
            method,
        })
    }

    /// How many values are trained.
    pub fn trainable_count(&self) -> u64 {
        self.model.as_ref().map_or(0, TrainModel::trainable_count)
    }

    /// Trains one worker's part of a round. `is_stopped` is asked before every micro-batch; `on_event` is told every
    /// step and what is written to the log.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] where steps cannot be counted so far; a file of weights that is not the one
    /// meant, or not of this adapter (the tensor is named); what the model and the memory say;
    /// [`EngineError::Diverged`]. Nothing is written then.
    pub fn round(
        &mut self,
        round: &LocalRound<'_>,
        is_stopped: &dyn Fn() -> bool,
        on_event: &mut dyn FnMut(TrainingEvent),
    ) -> Result<LocalOutcome, EngineError> {
        let span = round.span()?;
        let order = Order::new(
            round.data.examples(),
            round.data.rows().to_vec(),
            round.config,
        );
        let most_tokens = |sequences: usize| order.most_tokens(sequences);
        let kept = round.moments.map(KeptOptimizer::new);
        let before = kept
            .as_ref()
            .map(|kept| kept.before(round.round))
            .transpose()?
            .flatten();
        let mut state = TrainerState {
            step: span.begin,
            ..before
                .as_ref()
                .map_or_else(|| round.first_state(), |before| before.state.clone())
        };
        let most = micro_batch_size(round.config, &most_tokens);
        state.micro_batch_size = Some(state.micro_batch_size.map_or(most, |size| size.min(most)));
        let wanted = Fit::wanted(round.config, &state);
        let available = self.available_bytes;
        let fit = fit(
            &self.method,
            &self.config,
            self.weight_bytes,
            &most_tokens,
            wanted,
            round.config,
            available,
        )?;
        let mut model = self.model.take().expect("it is there between rounds");
        let begun = begin(&mut model, round, before.as_ref());
        let (weights, optimizer) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.model = Some(model);
                return Err(error);
            }
        };
        let data = (round.data.examples().clone(), order);
        let state = (model, optimizer, state);
        let mut steps = Steps::new(round.config, data, state, span.total);
        steps.sparing = Sparing::Checkpointing;
        steps.set_fit(fit, on_event);
        let outcome = run(
            &mut steps,
            (round, span.end),
            &weights,
            kept.as_ref(),
            is_stopped,
            on_event,
        );
        self.model = Some(steps.model);
        outcome
    }
}

/// The steps of a round among those of all rounds.
struct Span {
    begin: u64,
    end: u64,
    total: u64,
}

impl LocalRound<'_> {
    fn span(&self) -> Result<Span, EngineError> {
        let steps_of = |rounds: u64| rounds.checked_mul(self.steps);
        let next = self.round.checked_add(1);
        let span = || {
            Some(Span {
                begin: steps_of(self.round)?,
                end: steps_of(next?)?,
                total: steps_of(self.total_rounds.max(next?))?,
            })
        };
        span().ok_or_else(|| EngineError::InvalidSetting {
            field: "round",
            message: format!(
                "steps of round {} of {}, {} each, are more than can be counted",
                self.round, self.total_rounds, self.steps
            ),
        })
    }

    /// The state of a worker that was in no round before.
    fn first_state(&self) -> TrainerState {
        let identity = RunIdentity {
            base_model: String::new(),
            dataset_sha256: String::new(),
            examples: self.data.row_count(),
            config: self.config.to_map(),
        };
        TrainerState::new(Local::now(), identity)
    }
}

/// Puts the round's weights into the model, with the optimizer that goes on from them.
fn begin(
    model: &mut TrainModel,
    round: &LocalRound<'_>,
    before: Option<&Kept>,
) -> Result<(WeightsFile, Optimizer), EngineError> {
    let mut parameters = model.parameters_mut();
    let weights = WeightsFile::open(round.weights, round.weights_sha256, &parameters)?;
    weights.take_up(&mut parameters)?;
    let mut optimizer = Optimizer::new(round.config, &parameters);
    if let Some(before) = before {
        let restored = optimizer.restore(&before.moments(), &parameters, before.state.updates);
        if let Err(error) = restored {
            tracing::warn!(%error, "an optimizer's kept state is of another adapter and not used");
            optimizer = Optimizer::new(round.config, &parameters);
        }
    }
    Ok((weights, optimizer))
}

fn run(
    steps: &mut Steps<'_>,
    (round, end): (&LocalRound<'_>, u64),
    weights: &WeightsFile,
    kept: Option<&KeptOptimizer<'_>>,
    is_stopped: &dyn Fn() -> bool,
    on_event: &mut dyn FnMut(TrainingEvent),
) -> Result<LocalOutcome, EngineError> {
    let tokens_before = steps.state.tokens;
    while steps.state.step < end {
        match steps.next(is_stopped, on_event)? {
            Some(report) => on_event(TrainingEvent::Step(report)),
            None => return Ok(LocalOutcome::Stopped),
        }
    }
    let parameters = steps.model.parameters_mut();
    let file = weights.write(&parameters, round.output, steps.state.step)?;
    if let Some(kept) = kept
        && let Err(error) = kept.save(round.round, &steps.optimizer, &parameters, &steps.state)
    {
        // The round itself is done: the next one begins with other moments, no more.
        tracing::warn!(%error, "an optimizer's state is not kept");
    }
    let LossSum { tokens, .. } = steps.loss;
    Ok(LocalOutcome::Trained(LocalResult {
        file,
        loss: finite(steps.loss.mean()),
        steps: round.steps,
        learned_tokens: tokens,
        tokens: steps.state.tokens - tokens_before,
    }))
}

fn fit(
    method: &Method,
    model: &ModelConfig,
    weight_bytes: u64,
    most_tokens: &dyn Fn(usize) -> usize,
    wanted: Fit,
    config: &TrainingConfig,
    available_bytes: u64,
) -> Result<Fit, EngineError> {
    let ranks = method.ranks(model)?;
    let needs = Needs {
        model,
        weight_bytes,
        trained: method.trained(model)?,
        // Of one worker's part, which is small beside what is left free.
        order_bytes: 0,
        ranks: &ranks,
        trains_weights: method.trains_weights(),
        most_tokens,
        sparing: Sparing::Checkpointing,
    };
    needs.fit(wanted, config, available_bytes)
}

/// Sequences in a micro-batch, whatever memory is free.
fn micro_batch_size(config: &TrainingConfig, most_tokens: &dyn Fn(usize) -> usize) -> u32 {
    let mut size = config.batch_size;
    while size > 1 && most_tokens(size as usize) > MICRO_BATCH_TOKENS {
        size = size.div_ceil(2);
    }
    size
}

#[cfg(test)]
mod tests;
