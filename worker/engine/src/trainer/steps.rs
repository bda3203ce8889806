//! The steps of a run: forward, backward, update, report.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::method::Method;
use super::progress::{Speed, finite, per_second, smoothed};
use super::{EvaluationReport, TrainingRun};
use super::{LogLevel, StepReport, TrainingEvent, TrainingOutcome};
use crate::EngineError;
use crate::checkpoint::TrainerState;
use crate::data::{DatasetReport, Examples, Order, Sequences};
use crate::model::{LossSum, TrainModel};
use crate::optimizer::Optimizer;
use crate::random::Random;
use crate::schedule::Schedule;

/// So many skipped steps in a row end a run.
const SKIPPED_IN_A_ROW: u64 = 3;

/// What happens in a run is told through this.
pub(super) type OnEvent<'e> = dyn FnMut(TrainingEvent) + 'e;

/// The data set as a run uses it.
pub(super) struct Data {
    pub(super) examples: Examples,
    pub(super) report: DatasetReport,
    pub(super) order: Order,
    /// Rows that are kept for evaluation.
    pub(super) evaluation_rows: Vec<u32>,
}

/// Everything that a run's steps need and change.
pub(super) struct Trainer<'a> {
    pub(super) run: &'a TrainingRun<'a>,
    pub(super) method: Method,
    pub(super) data: Data,
    schedule: Schedule,
    pub(super) model: TrainModel,
    pub(super) optimizer: Optimizer,
    pub(super) state: TrainerState,
    pub(super) total_steps: u64,
    /// The steps of the newest checkpoint and of the newest evaluation that it knows.
    pub(super) saved: (u64, u64),
    /// The file with the weights that `state.evaluations.best` tells of, where they were saved.
    pub(super) best_weights: Option<PathBuf>,
    /// Of the newest step, which is told once it is evaluated.
    report: Option<StepReport>,
    speed: Speed,
}

/// What the micro-batches of a step came to.
struct Passes {
    loss: LossSum,
    rows: u64,
    tokens: u64,
    time: Duration,
}

impl<'a> Trainer<'a> {
    /// A run at the step that `state` says.
    pub(super) fn new(
        run: &'a TrainingRun<'a>,
        method: Method,
        data: Data,
        (model, optimizer, state): (TrainModel, Optimizer, TrainerState),
        total_steps: u64,
    ) -> Self {
        Self {
            run,
            method,
            data,
            schedule: Schedule::new(&run.config, total_steps),
            model,
            optimizer,
            saved: (state.step, state.evaluations.newest_step),
            best_weights: None,
            report: None,
            state,
            total_steps,
            speed: Speed::default(),
        }
    }

    /// Does the steps that are left.
    pub(super) fn run(
        mut self,
        is_stopped: &(dyn Fn() -> bool + Sync),
        on_event: &mut OnEvent<'_>,
    ) -> Result<TrainingOutcome, EngineError> {
        let mut current: Option<(u64, Sequences)> = None;
        loop {
            if self.evaluation_is_due() {
                let Some(found) = self.evaluate(is_stopped, on_event)? else {
                    self.tell(None, on_event);
                    return self.stop(on_event);
                };
                self.tell(Some(found), on_event);
            } else {
                self.tell(None, on_event);
            }
            if self.is_over(on_event) {
                return self.publish(on_event);
            }
            if self.checkpoint_is_due() {
                self.save(on_event)?;
            }
            let (epoch, place) = self.data.order.place_of(self.state.step + 1);
            let sequences = match current.take() {
                Some((number, sequences)) if number == epoch => sequences,
                _ => self.data.order.epoch(epoch),
            };
            let step = self.data.order.step(&sequences, place);
            let Some(passes) = self.forward_backward(step, is_stopped, on_event)? else {
                return self.stop(on_event);
            };
            current = Some((epoch, sequences));
            self.finish_step(epoch + 1, &passes, on_event)?;
        }
    }

    /// Runs the micro-batches of the next step; the gradients are those of the mean over all its labelled tokens.
    /// Where memory runs out, they become smaller. Gives none where the run was stopped meanwhile.
    fn forward_backward(
        &mut self,
        sequences: &[Vec<u32>],
        is_stopped: &dyn Fn() -> bool,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Option<Passes>, EngineError> {
        loop {
            match self.passes(sequences, is_stopped) {
                Err(error @ EngineError::OutOfMemory { .. }) => self.shrink(error, on_event)?,
                passes => return passes,
            }
        }
    }

    fn passes(
        &mut self,
        sequences: &[Vec<u32>],
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Passes>, EngineError> {
        let begun = Instant::now();
        let step = self.state.step + 1;
        let micro_batches = self
            .data
            .order
            .micro_batches(sequences, self.micro_batch_size() as usize);
        let batches: Vec<_> = micro_batches
            .iter()
            .map(|rows| self.data.examples.batch(rows))
            .collect();
        let labelled: usize = batches.iter().map(|batch| batch.labelled_tokens()).sum();
        let mut loss = LossSum::default();
        self.model.zero_gradients();
        for (index, batch) in batches.iter().enumerate() {
            if is_stopped() {
                return Ok(None);
            }
            let mut dropout = Random::new(
                self.run.config.seed,
                &format!("dropout of step {step}.{index}"),
            );
            loss +=
                self.model
                    .forward_backward(batch, 1.0 / labelled as f32, dropout.next_u64())?;
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
    ) -> Result<(), EngineError> {
        let begun = Instant::now();
        let step = self.state.step + 1;
        let loss = passes.loss.mean();
        let learning_rate = self.schedule.learning_rate_at(step);
        let grad_norm = match loss.is_finite() {
            true => self
                .optimizer
                .update(&mut self.model.parameters_mut(), learning_rate),
            false => f64::NAN,
        };
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
            eta_seconds: self.speed.seconds_for(self.total_steps - step),
        };
        self.log_step(&report, on_event);
        self.report = Some(report);
        if self.state.skipped_in_a_row == SKIPPED_IN_A_ROW {
            self.tell(None, on_event);
            let message =
                format!("loss or gradients were not finite in {SKIPPED_IN_A_ROW} steps in a row");
            return Err(EngineError::Diverged { step, message });
        }
        Ok(())
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
        if grad_norm.is_finite() {
            state.skipped_in_a_row = 0;
        } else {
            state.skipped_in_a_row += 1;
            state.skipped_steps += 1;
        }
    }

    /// Tells the newest step, with what its evaluation found, unless it was told.
    fn tell(&mut self, evaluation: Option<EvaluationReport>, on_event: &mut OnEvent<'_>) {
        if let Some(report) = self.report.take() {
            on_event(TrainingEvent::Step(StepReport {
                evaluation,
                ..report
            }));
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
        } else if step.is_multiple_of(self.run.config.logging_steps) || step == total_steps {
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
