//! The steps of a run: forward, backward, update, report, save; and what is published at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::method::Method;
use super::progress::{Speed, finite, per_second, smoothed};
use super::{CHECKPOINTS, FINAL, TrainingRun};
use super::{CheckpointSaved, LogLevel, StepReport, TrainingEvent, TrainingOutcome};
use crate::EngineError;
use crate::checkpoint::{self, OPTIMIZER, TrainerState};
use crate::data::{DatasetReport, Examples, MicroBatches, Order};
use crate::export::{self, ModelCard};
use crate::model::{LossSum, Parameter, TrainModel};
use crate::optimizer::Optimizer;
use crate::random::Random;
use crate::schedule::Schedule;

/// So many skipped steps in a row end a run.
const SKIPPED_IN_A_ROW: u64 = 3;

/// What happens in a run is told through this.
type OnEvent<'e> = dyn FnMut(TrainingEvent) + 'e;

/// Everything that a run's steps need and change.
pub(super) struct Trainer<'a> {
    run: &'a TrainingRun<'a>,
    method: Method,
    examples: Examples,
    dataset: DatasetReport,
    order: Order,
    schedule: Schedule,
    model: TrainModel,
    optimizer: Optimizer,
    state: TrainerState,
    total_steps: u64,
    /// The step of the newest checkpoint.
    saved_step: u64,
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
        (examples, dataset, order): (Examples, DatasetReport, Order),
        (model, optimizer, state): (TrainModel, Optimizer, TrainerState),
        total_steps: u64,
    ) -> Self {
        Self {
            run,
            method,
            examples,
            dataset,
            order,
            schedule: Schedule::new(&run.config, total_steps),
            model,
            optimizer,
            saved_step: state.step,
            state,
            total_steps,
            speed: Speed::default(),
        }
    }

    /// Does the steps that are left.
    pub(super) fn run(
        mut self,
        is_stopped: &dyn Fn() -> bool,
        on_event: &mut OnEvent<'_>,
    ) -> Result<TrainingOutcome, EngineError> {
        let mut current: Option<(u64, MicroBatches)> = None;
        while self.state.step < self.total_steps {
            let step = self.state.step + 1;
            let (epoch, place) = self.order.place_of(step);
            let (_, batches) = match &current {
                Some(current) if current.0 == epoch => current,
                _ => current.insert((epoch, self.order.epoch(epoch))),
            };
            let Some(passes) =
                self.forward_backward(step, self.order.step(batches, place), is_stopped)?
            else {
                return self.stop(on_event);
            };
            self.finish_step(epoch + 1, &passes, on_event)?;
            if step.is_multiple_of(self.run.config.save_steps) && step < self.total_steps {
                self.save(on_event)?;
            }
        }
        self.publish()
    }

    /// Runs a step's micro-batches; the gradients are those of the mean over all its labelled tokens.
    /// Gives none where the run was stopped meanwhile.
    fn forward_backward(
        &mut self,
        step: u64,
        micro_batches: &[Vec<u32>],
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Passes>, EngineError> {
        let begun = Instant::now();
        let batches: Vec<_> = micro_batches
            .iter()
            .map(|rows| self.examples.batch(rows))
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

    /// Updates the weights, or skips the step, and reports it.
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
            throughput: per_second(passes.rows, time),
            token_throughput: per_second(passes.tokens, time),
            eta_seconds: self.speed.seconds_for(self.total_steps - step),
        };
        self.log_step(&report, on_event);
        on_event(TrainingEvent::Step(report));
        if self.state.skipped_in_a_row == SKIPPED_IN_A_ROW {
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

    /// Saves a checkpoint of the steps that are done, unless there is one already.
    fn stop(&mut self, on_event: &mut OnEvent<'_>) -> Result<TrainingOutcome, EngineError> {
        let step = self.state.step;
        if step > self.saved_step {
            self.save(on_event)?;
        }
        let own = self
            .run
            .output_dir
            .join(CHECKPOINTS)
            .join(checkpoint::folder_name(step));
        let checkpoint = if own.exists() {
            Some(own)
        } else {
            self.run.resume_from.clone()
        };
        Ok(TrainingOutcome::Stopped { step, checkpoint })
    }

    fn save(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), EngineError> {
        let step = self.state.step;
        let parent = self.run.output_dir.join(CHECKPOINTS);
        let parameters = self.model.parameters_mut();
        check_finite(&parameters, step)?;
        let folder = checkpoint::write_folder(&parent, &checkpoint::folder_name(step), |folder| {
            self.method.save(folder, &parameters, self.run.model)?;
            self.optimizer.save(&folder.join(OPTIMIZER), &parameters)?;
            self.state.write(folder)
        })?;
        checkpoint::prune(&parent, self.run.config.save_total_limit as usize)?;
        self.saved_step = step;
        let metrics = [
            ("loss", self.state.last_loss),
            ("loss_ema", self.state.loss_ema),
        ];
        on_event(TrainingEvent::CheckpointSaved(CheckpointSaved {
            step,
            epoch: self.order.place_of(step).0 + 1,
            folder,
            metrics: BTreeMap::from(metrics.map(|(name, figure)| (name.to_owned(), figure))),
        }));
        Ok(())
    }

    fn publish(&mut self) -> Result<TrainingOutcome, EngineError> {
        let parameters = self.model.parameters_mut();
        check_finite(&parameters, self.state.step)?;
        let card = ModelCard {
            state: &self.state,
            dataset: &self.dataset,
            adapter: self.method.adapter(),
            base_sha256: self.run.model.digest()?,
        };
        let folder = checkpoint::write_folder(&self.run.output_dir, FINAL, |folder| {
            self.method.save(folder, &parameters, self.run.model)?;
            export::write_card(folder, &card)
        })?;
        Ok(TrainingOutcome::Completed {
            final_loss: self.state.last_loss,
            total_steps: self.state.step,
            training_time: Duration::from_secs_f64(self.state.training_seconds),
            folder,
        })
    }
}

/// That no weight has stopped being a finite number.
fn check_finite(parameters: &[Parameter<'_>], step: u64) -> Result<(), EngineError> {
    match parameters
        .iter()
        .find(|parameter| parameter.value.iter().any(|x| !x.is_finite()))
    {
        Some(parameter) => {
            let message = format!("weights of {} are no longer finite", parameter.name);
            Err(EngineError::Diverged { step, message })
        }
        None => Ok(()),
    }
}
