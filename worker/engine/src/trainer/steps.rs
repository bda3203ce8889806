//! Optimizer steps one after the other: forward, backward, update, report.

use std::ops::Range;
use std::time::{Duration, Instant};

use trainyard_shared::training::TrainingConfig;

use super::memory::Sparing;
use super::progress::{Speed, finite, per_second, smoothed};
use super::{LogLevel, StepReport, TrainingEvent};
use crate::EngineError;
use crate::checkpoint::TrainerState;
use crate::data::{Examples, Order, Sequences};
use crate::model::{LossSum, Masks, TrainModel};
use crate::optimizer::Optimizer;
use crate::random::Random;
use crate::schedule::Schedule;

/// So many skipped steps in a row end a run.
const SKIPPED_IN_A_ROW: u64 = 3;

/// What happens in a run is told through this.
pub(super) type OnEvent<'e> = dyn FnMut(TrainingEvent) + 'e;

/// Everything that steps need and change.
pub(super) struct Steps<'a> {
    pub(super) config: &'a TrainingConfig,
    examples: Examples,
    order: Order,
    /// The sequences of an epoch, while its steps are done.
    epoch: Option<(u64, Sequences)>,
    schedule: Schedule,
    pub(super) model: TrainModel,
    pub(super) optimizer: Optimizer,
    pub(super) state: TrainerState,
    pub(super) total_steps: u64,
    /// Over the steps done here, but for those whose loss was not finite.
    pub(super) loss: LossSum,
    /// Where memory runs out on the way.
    pub(super) sparing: Sparing,
    speed: Speed,
}

/// What the micro-batches of a step came to.
struct Passes {
    loss: LossSum,
    rows: u64,
    tokens: u64,
    time: Duration,
}

impl<'a> Steps<'a> {
    /// The steps from the one that `state` says, of `total_steps` by which the learning rate goes.
    pub(super) fn new(
        config: &'a TrainingConfig,
        (examples, order): (Examples, Order),
        (model, optimizer, state): (TrainModel, Optimizer, TrainerState),
        total_steps: u64,
    ) -> Self {
        Self {
            config,
            examples,
            order,
            epoch: None,
            schedule: Schedule::new(config, total_steps),
            model,
            optimizer,
            state,
            total_steps,
            loss: LossSum::default(),
            sparing: Sparing::default(),
            speed: Speed::default(),
        }
    }

    /// The model with the rows, to be measured with them.
    pub(super) fn model_and_examples(&mut self) -> (&mut TrainModel, &Examples) {
        (&mut self.model, &self.examples)
    }

    /// The epoch of a step that is done, from 1.
    pub(super) fn epoch_of(&self, step: u64) -> u64 {
        self.order.place_of(step).0 + 1
    }

    /// Does the next step. Gives none where the run was stopped meanwhile: nothing is changed then.
    ///
    /// # Errors
    /// Whatever the model says, and [`EngineError::Diverged`] after the last step that may be skipped.
    pub(super) fn next(
        &mut self,
        is_stopped: &dyn Fn() -> bool,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Option<StepReport>, EngineError> {
        let (epoch, place) = self.order.place_of(self.state.step + 1);
        let sequences = match self.epoch.take() {
            Some((number, sequences)) if number == epoch => sequences,
            _ => self.order.epoch(epoch),
        };
        let step = self.order.step(&sequences, place);
        let passes = self.forward_backward(&sequences, step, is_stopped, on_event)?;
        self.epoch = Some((epoch, sequences));
        match passes {
            Some(passes) => self.finish_step(epoch + 1, &passes, on_event).map(Some),
            None => Ok(None),
        }
    }

    /// Runs the micro-batches of the next step; the gradients are those of the mean over all its labelled tokens.
    /// Where memory runs out, they become smaller. Gives none where the run was stopped meanwhile.
    fn forward_backward(
        &mut self,
        sequences: &Sequences,
        step: Range<usize>,
        is_stopped: &dyn Fn() -> bool,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Option<Passes>, EngineError> {
        loop {
            match self.passes(sequences, step.clone(), is_stopped) {
                Err(error @ EngineError::OutOfMemory { .. }) => self.shrink(error, on_event)?,
                passes => return passes,
            }
        }
    }

    fn passes(
        &mut self,
        sequences: &Sequences,
        of_step: Range<usize>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Passes>, EngineError> {
        let begun = Instant::now();
        let step = self.state.step + 1;
        let micro_batches =
            self.order
                .micro_batches(sequences, of_step, self.micro_batch_size() as usize);
        let batches: Vec<_> = micro_batches
            .iter()
            .map(|rows| self.examples.batch(rows))
            .collect();
        let labelled: usize = batches.iter().map(|batch| batch.labelled_tokens()).sum();
        let mut loss = LossSum::default();
        self.model.zero_gradients();
        let mut random = Random::new(self.config.seed, &format!("dropout of step {step}"));
        let mut masks = Masks::of(random.next_u64());
        for batch in &batches {
            if is_stopped() {
                return Ok(None);
            }
            loss += self
                .model
                .forward_backward(batch, 1.0 / labelled as f32, masks)?;
            masks.first_token = masks.first_token.wrapping_add(batch.tokens() as u32);
        }
        Ok(Some(Passes {
            loss,
            rows: micro_batches.iter().map(|rows| rows.len() as u64).sum(),
            tokens: batches.iter().map(|batch| batch.tokens() as u64).sum(),
            time: begun.elapsed(),
        }))
    }

    /// Updates the weights, or skips the step, and makes the report of it.
    fn finish_step(
        &mut self,
        epoch: u64,
        passes: &Passes,
        on_event: &mut OnEvent<'_>,
    ) -> Result<StepReport, EngineError> {
        let begun = Instant::now();
        let step = self.state.step + 1;
        let loss = passes.loss.mean();
        let learning_rate = self.schedule.learning_rate_at(step);
        let grad_norm = match loss.is_finite() {
            true => self.optimizer.update(&mut self.model, learning_rate),
            false => f64::NAN,
        };
        if loss.is_finite() {
            self.loss += passes.loss;
        }
        let time = passes.time + begun.elapsed();
        self.speed.record(time);
        self.count_step(loss, grad_norm, passes.tokens, time);
        let report = StepReport {
            epoch,
            step,
            total_steps: self.total_steps,
            loss: finite(loss),
            loss_ema: self.state.loss_ema,
            perplexity: finite(loss.exp()),
            grad_norm: finite(grad_norm),
            learning_rate,
            skipped: !grad_norm.is_finite(),
            tokens: passes.tokens,
            micro_batch_size: self.micro_batch_size(),
            gradient_accumulation_steps: self.accumulation(),
            evaluation: None,
            throughput: per_second(passes.rows, time),
            token_throughput: per_second(passes.tokens, time),
            eta_seconds: self.seconds_left(step),
        };
        self.log_step(&report, on_event);
        if self.state.skipped_in_a_row == SKIPPED_IN_A_ROW {
            on_event(TrainingEvent::Step(report));
            let message =
                format!("loss or gradients were not finite in {SKIPPED_IN_A_ROW} steps in a row");
            return Err(EngineError::Diverged { step, message });
        }
        Ok(report)
    }

    fn count_step(&mut self, loss: f64, grad_norm: f64, tokens: u64, time: Duration) {
        let state = &mut self.state;
        state.step += 1;
        state.updates = self.optimizer.updates();
        state.tokens += tokens;
        state.training_seconds += time.as_secs_f64();
        if loss.is_finite() {
            state.first_loss = state.first_loss.or(Some(loss));
            state.last_loss = Some(loss);
            state.loss_ema = Some(smoothed(state.loss_ema, loss));
        }
        state.last_grad_norm = finite(grad_norm);
        if grad_norm.is_finite() {
            state.skipped_in_a_row = 0;
        } else {
            state.skipped_in_a_row += 1;
            state.skipped_steps += 1;
        }
    }

    /// Seconds from that step to the end of the run, as it goes now.
    pub(super) fn seconds_left(&self, step: u64) -> Option<f64> {
        self.speed.seconds_for(self.total_steps - step)
    }

    /// What is known of the step after which the checkpoint was saved that the run goes on from.
    pub(super) fn report_from_state(&self) -> StepReport {
        let state = &self.state;
        StepReport {
            epoch: self.epoch_of(state.step),
            step: state.step,
            total_steps: self.total_steps,
            loss: state.last_loss,
            loss_ema: state.loss_ema,
            perplexity: state.last_loss.and_then(|loss| finite(loss.exp())),
            grad_norm: state.last_grad_norm,
            learning_rate: self.schedule.learning_rate_at(state.step),
            skipped: state.skipped_in_a_row > 0,
            tokens: 0,
            micro_batch_size: self.micro_batch_size(),
            gradient_accumulation_steps: self.accumulation(),
            evaluation: None,
            throughput: None,
            token_throughput: None,
            eta_seconds: None,
        }
    }

    fn log_step(&self, report: &StepReport, on_event: &mut OnEvent<'_>) {
        let StepReport {
            step,
            total_steps,
            learning_rate,
            ..
        } = *report;
        let (level, line) = if report.skipped {
            let what = "loss or gradients are not finite; the weights stay as they are";
            (
                LogLevel::Warning,
                format!("step {step} of {total_steps}: {what}"),
            )
        } else if step.is_multiple_of(self.config.logging_steps) || step == total_steps {
            let (loss, speed) = (
                report.loss.unwrap_or(f64::NAN),
                report.token_throughput.unwrap_or_default(),
            );
            let figures =
                format!("loss {loss:.4}, learning rate {learning_rate:.3e}, {speed:.0} tokens/s");
            (
                LogLevel::Info,
                format!("step {step} of {total_steps}: {figures}"),
            )
        } else {
            return;
        };
        on_event(TrainingEvent::Log { level, line });
    }
}
