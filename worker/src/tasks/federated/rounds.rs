//! The rounds of a session on the engine: model and data are loaded once, each round runs on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::thread;

use chrono::Local;
use tokio::sync::oneshot;
use trainyard_privacy::GaussianMechanism;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::FederatedSessionId;
use trainyard_shared::message::Shard;
use trainyard_shared::training::LocalConfig;

use super::Outcome;
use crate::engine::adapter::AdapterConfig;
use crate::engine::data::{DataFile, TokenCache};
use crate::engine::trainer::local::{
    LocalData, LocalOutcome, LocalResult, LocalRound, LocalTraining, MomentsPlace, Part,
};
use crate::engine::trainer::{LogLevel, RowSource, TrainingEvent};
use crate::engine::weights::ModelFiles;
use crate::hardware::free_memory_bytes;
use crate::privacy::protect;
use crate::tasks::StopSignal;
use crate::tasks::failure::Failure;

/// Everything that all rounds of a session need, on this machine.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) session: FederatedSessionId,
    pub(super) config: LocalConfig,
    pub(super) base_model: String,
    /// The model's folder or `.gguf` file.
    pub(super) model: PathBuf,
    pub(super) dataset: DataFile,
    pub(super) max_bad_rows: u64,
    pub(super) token_cache: TokenCache,
    pub(super) shard: Shard,
    pub(super) total_rounds: u64,
    /// The folder of AdamW's moments.
    pub(super) optimizer: PathBuf,
    /// What is done to results before they are sent.
    pub(super) mechanism: Option<GaussianMechanism>,
}

/// The rounds of a session.
pub(super) struct Rounds {
    setup: Setup,
    /// Loaded with the first round.
    loaded: Option<Loaded>,
}

struct Loaded {
    training: LocalTraining,
    data: LocalData,
}

/// One round that is to be trained.
pub(super) struct RoundWork {
    /// From 1, as on the wire.
    pub(super) round: u64,
    /// The storage key of its result.
    pub(super) key: String,
    /// The weights that it begins with.
    pub(super) weights: PathBuf,
    /// Their digest.
    pub(super) sha256: String,
    /// Where the result goes.
    pub(super) result: PathBuf,
    /// Is told every step and how many there are.
    pub(super) teller: Box<dyn FnMut(u64, u64) + Send>,
}

/// The result of a round.
#[derive(Debug)]
pub(super) struct RoundResult {
    pub(super) key: String,
    pub(super) file: PathBuf,
    pub(super) num_examples: u64,
    pub(super) made: LocalResult,
}

impl Rounds {
    /// The rounds of that session; nothing is loaded yet.
    pub(super) fn new(setup: Setup) -> Self {
        Self {
            setup,
            loaded: None,
        }
    }

    /// Trains a round, until it is done or told to stop. What is loaded is given back, unless the engine broke down.
    pub(super) async fn train(
        mut self,
        work: RoundWork,
        stop: StopSignal,
    ) -> (Option<Self>, Result<Outcome, Failure>) {
        let (report, reported) = oneshot::channel();
        let train = move || {
            let trained = catch_unwind(AssertUnwindSafe(|| self.round(work, &stop)));
            let done = match trained {
                Ok(outcome) => (Some(self), outcome),
                Err(panic) => (None, Err(Failure::from_panic(&*panic))),
            };
            // Nobody waits any more only when the whole worker has ended.
            let _ = report.send(done);
        };
        let internal = |message: String| (None, Err(Failure::new(FailureKind::Internal, message)));
        if let Err(error) = thread::Builder::new()
            .name("federated".to_owned())
            .spawn(train)
        {
            return internal(format!("no thread for training: {error}"));
        }
        reported
            .await
            .unwrap_or_else(|_| internal("the training thread has gone".to_owned()))
    }

    fn round(&mut self, mut work: RoundWork, stop: &StopSignal) -> Result<Outcome, Failure> {
        let is_stopped = || stop.is_set();
        if self.loaded.is_none() {
            self.loaded = self.setup.load(&is_stopped)?;
        }
        let (setup, Some(Loaded { training, data })) = (&self.setup, &mut self.loaded) else {
            return Ok(Outcome::BrokenOff);
        };
        let steps = setup.config.local_steps;
        // Counted from 0 by the engine.
        let round = work.round.saturating_sub(1);
        let session = setup.session.to_string();
        let local = LocalRound {
            data,
            config: &setup.config.training,
            round,
            total_rounds: setup.total_rounds,
            steps,
            weights: &work.weights,
            weights_sha256: &work.sha256,
            output: &work.result,
            moments: setup.config.keep_optimizer.then_some(MomentsPlace {
                folder: &setup.optimizer,
                session: &session,
            }),
        };
        let teller = &mut work.teller;
        let outcome = training.round(&local, &is_stopped, &mut |event| match event {
            TrainingEvent::Step(step) => teller(step.step - round * steps, steps),
            TrainingEvent::Log { level, line } => setup.log(level, &line),
            TrainingEvent::Started(_) | TrainingEvent::CheckpointSaved(_) => {}
        })?;
        Ok(match outcome {
            LocalOutcome::Stopped => Outcome::BrokenOff,
            LocalOutcome::Trained(mut made) => {
                if let Some(mechanism) = &setup.mechanism {
                    made.file = protect(&work.result, &work.weights, mechanism)?;
                    made.loss = None;
                }
                Outcome::Trained(RoundResult {
                    key: work.key,
                    file: work.result,
                    num_examples: data.row_count(),
                    made,
                })
            }
        })
    }
}

impl Setup {
    /// Reads the data and loads the model; none where it was stopped meanwhile.
    fn load(&self, is_stopped: &(dyn Fn() -> bool + Sync)) -> Result<Option<Loaded>, Failure> {
        let config = &self.config.training;
        let model = ModelFiles::open(&self.model).map_err(|error| Failure::from_model(&error))?;
        let source = RowSource {
            model: &model,
            dataset: &self.dataset,
            config,
            max_bad_rows: self.max_bad_rows,
            token_cache: &self.token_cache,
            chat_time: Local::now().fixed_offset(),
        };
        let part = Part {
            index: self.shard.index,
            count: self.shard.count,
        };
        let read = LocalData::of_rows(&source, part, is_stopped, &mut |level, line| {
            self.log(level, &line);
        });
        if is_stopped() {
            return Ok(None);
        }
        let (data, _) = read?;
        let adapter = AdapterConfig::from_training(config, &self.base_model);
        let training = LocalTraining::load(&model, &adapter, config, free_memory_bytes())?;
        Ok(Some(Loaded { training, data }))
    }

    fn log(&self, level: LogLevel, line: &str) {
        match level {
            LogLevel::Info => tracing::info!(session.id = %self.session, "{line}"),
            LogLevel::Warning => tracing::warn!(session.id = %self.session, "{line}"),
        }
    }
}
