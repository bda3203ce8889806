//! The checkpoint that a run goes on from, and whether it is one of that run.

use std::path::Path;

use chrono::{DateTime, FixedOffset};
use serde_json::Value;

use super::LogLevel;
use crate::EngineError;
use crate::checkpoint::{Manifest, OPTIMIZER, RunIdentity, TrainerState};
use crate::model::TrainModel;
use crate::optimizer::Optimizer;

/// A complete checkpoint, opened.
pub(super) struct Resumed<'a> {
    folder: &'a Path,
    pub(super) state: TrainerState,
}

impl<'a> Resumed<'a> {
    /// Checks the folder's files and reads the trainer's state.
    pub(super) fn open(folder: &'a Path) -> Result<Self, EngineError> {
        Manifest::check(folder)?;
        Ok(Self {
            folder,
            state: TrainerState::read(folder)?,
        })
    }

    /// What chat templates were told to be the time, in the time zone of the machine where the run began.
    pub(super) fn chat_time(&self) -> Result<DateTime<FixedOffset>, EngineError> {
        DateTime::parse_from_rfc3339(&self.state.chat_time)
            .map_err(|error| self.invalid(format!("chat_time: {error}")))
    }

    /// Its folder.
    pub(super) fn folder(&self) -> &Path {
        self.folder
    }

    /// Makes sure that it is a checkpoint of this run. Settings that have changed since are named in the log.
    pub(super) fn check(
        &self,
        identity: &RunIdentity,
        log: &mut dyn FnMut(LogLevel, String),
    ) -> Result<(), EngineError> {
        let before = &self.state.run;
        if (&before.dataset_sha256, before.examples)
            != (&identity.dataset_sha256, identity.examples)
        {
            return Err(self.invalid("it was trained on another data set".into()));
        }
        if before.base_model != identity.base_model {
            return Err(self.invalid(format!(
                "it belongs to the base model {}",
                before.base_model
            )));
        }
        let trains = |run: &RunIdentity| run.config.get("use_peft").cloned();
        if trains(before) != trains(identity) {
            let message = "it was saved with another use_peft";
            return Err(self.invalid(message.to_owned()));
        }
        for (field, value) in &identity.config {
            let was = before.config.get(field).unwrap_or(&Value::Null);
            if was != value && field != "resume_from_checkpoint" {
                let line = format!(
                    "{field} was {was} up to step {} and is {value} from now on",
                    self.state.step
                );
                log(LogLevel::Warning, line);
            }
        }
        Ok(())
    }

    /// Takes the optimizer's moments up.
    pub(super) fn restore(
        &self,
        optimizer: &mut Optimizer,
        model: &mut TrainModel,
    ) -> Result<(), EngineError> {
        optimizer.restore(
            &self.folder.join(OPTIMIZER),
            &model.parameters_mut(),
            self.state.updates,
        )
    }

    fn invalid(&self, message: String) -> EngineError {
        EngineError::InvalidCheckpoint {
            path: self.folder.to_owned(),
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_tells_the_time_in_the_zone_in_which_it_began() {
        let late = DateTime::parse_from_rfc3339("2026-11-30T23:30:00-11:00").unwrap();
        let identity = RunIdentity {
            base_model: String::new(),
            dataset_sha256: String::new(),
            examples: 1,
            config: serde_json::Map::new(),
        };
        let folder = tempfile::tempdir().unwrap();
        TrainerState::new(late, identity)
            .write(folder.path())
            .unwrap();
        let resumed = Resumed {
            folder: folder.path(),
            state: TrainerState::read(folder.path()).unwrap(),
        };
        let time = resumed.chat_time().unwrap();
        assert_eq!(time.format("%d %H:%M %z").to_string(), "30 23:30 -1100");
    }
}
