//! A training run: from a model's files and a data set to an adapter or a model, with checkpoints on the way.
//!
//! 1. The data set is read and tokenised; bad data ends the run before the model is loaded.
//! 2. Rows are set aside for evaluation, where the config asks for it, and the memory that is needed is estimated:
//!    where it does not suffice, micro-batches become smaller, or the run is refused.
//! 3. The model is loaded, and the adapter made; or what the checkpoint to go on from holds is taken up.
//! 4. Each optimizer step runs its micro-batches, divides by all tokens of the step that have a label,
//!    and updates what is trained. A step whose loss or gradients are not finite is skipped and counted;
//!    the third in a row ends the run as diverged.
//! 5. Every `eval_steps` steps, the rows set aside are measured; after so many without a lower loss, the run ends.
//! 6. Every `save_steps` steps, where the evaluation loss is the lowest so far, and when the run is stopped, a
//!    checkpoint is saved.
//! 7. The result is published. Weights that are not finite are never written anywhere.

mod evaluation;
mod event;
pub mod local;
mod memory;
mod method;
mod progress;
mod resume;
mod rows;
mod running;
mod saving;
mod steps;

use std::path::PathBuf;

use chrono::{DateTime, FixedOffset, Local};
use trainyard_shared::training::{MixedPrecision, TrainingConfig};

use super::EngineError;
use super::checkpoint::{RunIdentity, TrainerState};
use super::data::{DataFile, DatasetReport, Order, Split, TokenCache};
use super::model::Holding;
use super::optimizer::Optimizer;
use super::weights::ModelFiles;
use memory::{Fit, Needs, Sparing};
use method::Method;
use resume::Resumed;
use running::Trainer;
use steps::Steps;

pub use rows::RowSource;

pub use event::{
    CheckpointSaved, EvaluationReport, LogLevel, Started, StepReport, TrainingEvent,
    TrainingOutcome,
};

/// Folder of the checkpoints within a run's output folder.
pub const CHECKPOINTS: &str = "checkpoints";
/// Folder of the result within a run's output folder.
pub const FINAL: &str = "final";

/// What to train.
#[derive(Debug)]
pub struct TrainingRun<'a> {
    /// The base model.
    pub model: &'a ModelFiles,
    /// What the base model is called, for the adapter's config and its model card.
    pub base_model: String,
    /// The data set.
    pub dataset: DataFile,
    /// Bad rows that may be skipped.
    pub max_bad_rows: u64,
    /// How to train.
    pub config: TrainingConfig,
    /// Checkpoints go to `checkpoints/step-N`, the result to `final` in this folder.
    pub output_dir: PathBuf,
    /// The checkpoint folder to go on from.
    pub resume_from: Option<PathBuf>,
    /// Memory that the run may take, in bytes.
    pub available_bytes: u64,
    /// Where tokenised data sets are kept.
    pub token_cache: TokenCache,
}

impl TrainingRun<'_> {
    /// The rows that are trained on.
    fn rows(&self, chat_time: DateTime<FixedOffset>) -> RowSource<'_> {
        RowSource {
            model: self.model,
            dataset: &self.dataset,
            config: &self.config,
            max_bad_rows: self.max_bad_rows,
            token_cache: &self.token_cache,
            chat_time,
        }
    }

    /// How the base model is held.
    fn holding(&self) -> Holding {
        match self.config.use_peft {
            true => Holding::for_training(&self.config, self.model, self.available_bytes),
            false => Holding::Unpacked,
        }
    }
}

/// Runs to the end, or until `is_stopped` says so: it is asked before every micro-batch.
///
/// # Errors
/// Whatever [`EngineError`] ends the run. Checkpoints that were saved stay.
pub fn train(
    run: &TrainingRun<'_>,
    is_stopped: &(dyn Fn() -> bool + Sync),
    on_event: &mut dyn FnMut(TrainingEvent),
) -> Result<TrainingOutcome, EngineError> {
    let mut log = |level, line: String| on_event(TrainingEvent::Log { level, line });
    let resumed = run.resume_from.as_deref().map(Resumed::open).transpose()?;
    let chat_time = match &resumed {
        Some(resumed) => resumed.chat_time()?,
        None => Local::now().fixed_offset(),
    };
    let read = run.rows(chat_time).read(is_stopped, &mut log);
    if is_stopped() {
        return Ok(TrainingOutcome::Stopped {
            step: resumed.as_ref().map_or(0, |resumed| resumed.state.step),
            checkpoint: run.resume_from.clone(),
        });
    }
    let (examples, dataset) = read?;
    announce(
        &run.config,
        &dataset,
        run.model.config.max_position_embeddings,
        &mut log,
    );
    let identity = RunIdentity {
        base_model: run.base_model.clone(),
        dataset_sha256: dataset.sha256.clone(),
        examples: dataset.examples,
        config: run.config.to_map(),
    };
    let method = Method::of(&run.config, &run.base_model);
    let state = match &resumed {
        Some(resumed) => {
            resumed.check(&identity, &mut log)?;
            TrainerState {
                run: identity,
                ..resumed.state.clone()
            }
        }
        None => TrainerState::new(chat_time, identity),
    };
    let split = Split::new(examples.len(), run.config.eval_split, run.config.seed)?;
    let order = Order::new(&examples, split.training, &run.config);
    let fit = fit(run, &method, &order, &state)?;
    let mut model = match &resumed {
        Some(resumed) => method.go_on(run, resumed.folder())?,
        None => method.begin(run)?,
    };
    on_event(TrainingEvent::Log {
        level: LogLevel::Info,
        line: model.model().held().to_string(),
    });
    let mut optimizer = Optimizer::new(&run.config, &model.parameters_mut());
    if let Some(resumed) = &resumed {
        resumed.restore(&mut optimizer, &mut model)?;
    }
    let epochs = u64::from(run.config.epochs);
    let total_steps = run.config.max_steps;
    let total_steps = total_steps.unwrap_or(epochs * order.steps_per_epoch());
    let trainable_parameters = model.trainable_count();
    let total_parameters = match run.config.use_peft {
        true => run.model.config.parameter_count() + trainable_parameters,
        false => trainable_parameters,
    };
    let evaluation_rows = split.evaluation.len() as u64;
    on_event(TrainingEvent::Started(Started {
        total_steps,
        resumed_from_step: state.step,
        trainable_parameters,
        total_parameters,
        training_rows: dataset.examples - evaluation_rows,
        evaluation_rows,
        dataset: dataset.clone(),
    }));
    let state = (model, optimizer, state);
    let mut steps = Steps::new(&run.config, (examples, order), state, total_steps);
    steps.set_fit(fit, on_event);
    let mut trainer = Trainer::new(run, method, steps, dataset, split.evaluation);
    trainer.find_best_weights();
    trainer.run(is_stopped, on_event)
}

/// How the run gets by with the memory that there is.
fn fit(
    run: &TrainingRun<'_>,
    method: &Method,
    order: &Order,
    state: &TrainerState,
) -> Result<Fit, EngineError> {
    let model = &run.model.config;
    let ranks = method.ranks(model)?;
    let needs = Needs {
        model,
        weight_bytes: run.holding().bytes(run.model),
        trained: method.trained(model)?,
        order_bytes: order.bytes(),
        ranks: &ranks,
        trains_weights: method.trains_weights(),
        most_tokens: &|sequences| order.most_tokens(sequences),
        sparing: Sparing::default(),
    };
    let wanted = Fit::wanted(&run.config, state);
    needs.fit(wanted, &run.config, run.available_bytes)
}

/// Says in the log what is done otherwise than one might expect.
fn announce(
    config: &TrainingConfig,
    dataset: &DatasetReport,
    max_positions: usize,
    log: &mut dyn FnMut(LogLevel, String),
) {
    const SHOWN_PROBLEMS: usize = 10;
    let counts = [
        (dataset.skipped_rows, "bad rows are skipped"),
        (
            dataset.dropped_rows,
            "rows with nothing to learn are dropped",
        ),
        (dataset.truncated_rows, "rows are cut to max_length"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        log(LogLevel::Warning, format!("{count} {what}"));
    }
    for problem in dataset.problems.iter().take(SHOWN_PROBLEMS) {
        log(LogLevel::Warning, problem.to_string());
    }
    if config.learning_rate > 1.0 {
        let line = format!(
            "a learning_rate of {} is far above what models learn with: the run is likely to diverge",
            config.learning_rate
        );
        log(LogLevel::Warning, line);
    }
    let max_length = config.max_length;
    if max_length as usize > max_positions {
        let line = format!(
            "max_length {max_length} is beyond the {max_positions} positions that the model was made for"
        );
        log(LogLevel::Warning, line);
    }
    if matches!(
        config.mixed_precision,
        MixedPrecision::Bf16 | MixedPrecision::Fp16
    ) {
        log(
            LogLevel::Warning,
            "mixed_precision: a CPU computes in f32".into(),
        );
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
