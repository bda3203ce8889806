//! What a run leaves on the disk: checkpoints on the way, and the result.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::progress::finite;
use super::running::Trainer;
use super::steps::OnEvent;
use super::{CHECKPOINTS, FINAL};
use super::{CheckpointSaved, LogLevel, TrainingEvent, TrainingOutcome};
use crate::EngineError;
use crate::checkpoint::{self, BEST, OPTIMIZER};
use crate::export::{self, MAX_SHARD_BYTES, ModelCard};
use crate::model::Parameter;

impl Trainer<'_> {
    /// Whether the weights are to be saved as they are now: every `save_steps` steps, and where they are the best.
    pub(super) fn checkpoint_is_due(&self) -> bool {
        let (step, evaluations) = (self.steps.state.step, &self.steps.state.evaluations);
        let is_due = step.is_multiple_of(self.run.config.save_steps) || evaluations.is_best(step);
        step > 0 && is_due && self.saved != (step, evaluations.newest_step)
    }

    /// Saves a checkpoint of the steps that are done, unless there is one already.
    pub(super) fn stop(
        &mut self,
        on_event: &mut OnEvent<'_>,
    ) -> Result<TrainingOutcome, EngineError> {
        let step = self.steps.state.step;
        if self.saved != (step, self.steps.state.evaluations.newest_step) {
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

    /// Saves a checkpoint.
    pub(super) fn save(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), EngineError> {
        let step = self.steps.state.step;
        let is_best = self.steps.state.evaluations.is_best(step);
        let best_weights = self.best_weights.take().filter(|_| !is_best);
        let parent = self.run.output_dir.join(CHECKPOINTS);
        let parameters = self.steps.model.parameters_mut();
        check_finite(&parameters, step)?;
        let folder = checkpoint::write_folder(&parent, &checkpoint::folder_name(step), |folder| {
            let (method, base) = (&self.method, self.run.model);
            // One file, so that the best weights can be kept as one.
            method.save(folder, &parameters, base, u64::MAX)?;
            if let Some(best) = &best_weights {
                let path = folder.join(BEST);
                fs::copy(best, &path).map_err(|error| EngineError::io("write", path, error))?;
            }
            self.steps
                .optimizer
                .save(&folder.join(OPTIMIZER), &parameters)?;
            self.steps.state.write(folder)
        })?;
        if self.run.config.load_best_model_at_end {
            self.best_weights = match is_best {
                true => Some(folder.join(self.method.weights_file())),
                false => best_weights.map(|_| folder.join(BEST)),
            };
        }
        let best = self.steps.state.evaluations.best.map(|best| best.step);
        checkpoint::prune(&parent, self.run.config.save_total_limit as usize, best)?;
        self.saved = (step, self.steps.state.evaluations.newest_step);
        let mut metrics = BTreeMap::from([
            ("loss".to_owned(), self.steps.state.last_loss),
            ("loss_ema".to_owned(), self.steps.state.loss_ema),
        ]);
        if let Some(loss) = self.steps.state.evaluations.loss_at(step) {
            metrics.insert("eval_loss".to_owned(), Some(loss));
            metrics.insert("eval_perplexity".to_owned(), finite(loss.exp()));
        }
        on_event(TrainingEvent::CheckpointSaved(CheckpointSaved {
            step,
            epoch: self.steps.epoch_of(step),
            folder,
            metrics,
        }));
        Ok(())
    }

    /// Writes the result.
    pub(super) fn publish(
        &mut self,
        on_event: &mut OnEvent<'_>,
    ) -> Result<TrainingOutcome, EngineError> {
        self.check_trained()?;
        if self.run.config.load_best_model_at_end {
            self.take_up_best(on_event)?;
        }
        let parameters = self.steps.model.parameters_mut();
        check_finite(&parameters, self.steps.state.step)?;
        let card = ModelCard {
            state: &self.steps.state,
            dataset: &self.dataset,
            evaluation_rows: self.evaluation_rows.len() as u64,
            adapter: self.method.adapter(),
            base_sha256: self.run.model.digest()?,
        };
        let folder = checkpoint::write_folder(&self.run.output_dir, FINAL, |folder| {
            let (method, base) = (&self.method, self.run.model);
            method.save(folder, &parameters, base, MAX_SHARD_BYTES)?;
            export::write_card(folder, &card)
        })?;
        Ok(TrainingOutcome::Completed {
            final_loss: self.steps.state.last_loss,
            total_steps: self.steps.state.step,
            training_time: Duration::from_secs_f64(self.steps.state.training_seconds),
            folder,
        })
    }

    /// That the weights were changed at all: a run none of whose steps was finite has nothing to publish.
    fn check_trained(&self) -> Result<(), EngineError> {
        let state = &self.steps.state;
        if state.updates > 0 && state.last_loss.is_some() {
            return Ok(());
        }
        let message = "loss or gradients were finite in none of the steps".to_owned();
        Err(EngineError::Diverged {
            step: state.step,
            message,
        })
    }

    /// Puts the weights with the lowest evaluation loss into the model.
    fn take_up_best(&mut self, on_event: &mut OnEvent<'_>) -> Result<(), EngineError> {
        let Some(best) = self.steps.state.evaluations.best else {
            return Ok(());
        };
        if best.step == self.steps.state.step {
            return Ok(());
        }
        let (level, line) = match &self.best_weights {
            Some(path) => {
                self.method
                    .take_up(path, &mut self.steps.model.parameters_mut())?;
                let line = format!(
                    "the result has the weights of step {}, with the lowest evaluation loss ({:.4})",
                    best.step, best.loss
                );
                (LogLevel::Info, line)
            }
            None => {
                let line = format!(
                    "the best weights, of step {}, were not kept: the result has the last ones",
                    best.step
                );
                (LogLevel::Warning, line)
            }
        };
        on_event(TrainingEvent::Log { level, line });
        Ok(())
    }

    /// The file with the best weights that belongs to the checkpoint which the run goes on from.
    pub(super) fn find_best_weights(&mut self) {
        let Some(folder) = &self.run.resume_from else {
            return;
        };
        let file: PathBuf = match self.steps.state.evaluations.is_best(self.steps.state.step) {
            true => folder.join(self.method.weights_file()),
            false => folder.join(BEST),
        };
        self.best_weights = Some(file).filter(|file| file.exists());
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
