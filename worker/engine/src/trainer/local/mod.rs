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
//! and learning rate go. So the same weights, data, config and round give the same bytes on the same device.

mod data;
mod kept;
mod weights;

use std::path::Path;

use chrono::Local;
use trainyard_shared::training::TrainingConfig;

use super::memory::{Fit, Needs};
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
use kept::KeptOptimizer;
use weights::WeightsFile;

pub use data::{LocalData, Part};

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
    /// The folder where AdamW's moments are kept between rounds; without one they begin at zero.
    pub optimizer: Option<&'a Path>,
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
        let wanted = Fit::of_config(config);
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
    /// A file of weights that is not the one meant, or not of this adapter (the tensor is named); what the model and
    /// the memory say; [`EngineError::Diverged`]. Nothing is written then.
    pub fn round(
        &mut self,
        round: &LocalRound<'_>,
        is_stopped: &dyn Fn() -> bool,
        on_event: &mut dyn FnMut(TrainingEvent),
    ) -> Result<LocalOutcome, EngineError> {
        let order = Order::new(
            round.data.examples(),
            round.data.rows().to_vec(),
            round.config,
        );
        let most_tokens = |sequences: usize| order.most_tokens(sequences);
        let kept = round.optimizer.map(KeptOptimizer::new);
        let before = kept
            .as_ref()
            .map(|kept| kept.before(round.round))
            .transpose()?
            .flatten();
        let state = TrainerState {
            step: round.round * round.steps,
            ..before
                .as_ref()
                .map_or_else(|| round.first_state(), |before| before.state.clone())
        };
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
        let total_steps = round.total_rounds.max(round.round + 1) * round.steps;
        let mut steps = Steps::new(round.config, data, (model, optimizer, state), total_steps);
        steps.set_fit(fit, on_event);
        let outcome = run(
            &mut steps,
            round,
            &weights,
            kept.as_ref(),
            is_stopped,
            on_event,
        );
        self.model = Some(steps.model);
        outcome
    }
}

impl LocalRound<'_> {
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
    before: Option<&kept::Kept>,
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
    round: &LocalRound<'_>,
    weights: &WeightsFile,
    kept: Option<&KeptOptimizer<'_>>,
    is_stopped: &dyn Fn() -> bool,
    on_event: &mut dyn FnMut(TrainingEvent),
) -> Result<LocalOutcome, EngineError> {
    let (tokens_before, end) = (steps.state.tokens, (round.round + 1) * round.steps);
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
        ranks: &ranks,
        trains_weights: method.trains_weights(),
        most_tokens,
    };
    needs.fit(wanted, config, available_bytes)
}

#[cfg(test)]
mod tests;
