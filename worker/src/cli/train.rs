//! `trainyard-worker train JOB.toml`: a job without a platform, from a file to an adapter or a model.

mod job_file;
mod profile;
mod show;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use trainyard_shared::training::TrainingConfig;

use super::error::CliError;
use super::output::{Output, remark};
use super::signals::stop_when_asked_to_end;
use crate::config::ModelArgs;
use crate::engine::checkpoint::newest_complete;
use crate::engine::trainer::{CHECKPOINTS, FINAL, TrainingOutcome, TrainingRun, train};
use crate::engine::weights::ModelFiles;
use crate::hardware::free_memory_bytes;
use crate::tasks::StopSignal;
use job_file::JobFile;
use profile::Profile;
use show::Show;

/// Options of `train`.
#[derive(Args)]
pub struct Options {
    /// The job: `dataset` (a file: jsonl, json, csv, tsv, parquet or text), `model` (a folder, a .gguf file or a hub name) and a
    /// `[config]` table as in POST /api/jobs
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// Where checkpoints and the result go; made if need be
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Count where the time of the steps goes, operation by operation, and print it at the end
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    models: ModelArgs,
}

/// `resume_from_checkpoint` of a job file: the newest whole one in the output folder.
const NEWEST: &str = "latest";

/// Trains.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    let job = JobFile::read(&options.job)?;
    let token_cache = options.models.token_cache()?;
    let model_path =
        super::model::find(&job.model, job.folder(), options.models.model_settings()?)?;
    let resume_from = checkpoint(&job.config, &options.output, &job)?;
    let model = ModelFiles::open(&model_path)?;
    let run = TrainingRun {
        model: &model,
        base_model: job.model.clone(),
        dataset: job.dataset.clone(),
        max_bad_rows: job.max_bad_rows,
        config: job.config.clone(),
        output_dir: options.output.clone(),
        resume_from,
        available_bytes: free_memory_bytes(),
        token_cache,
    };
    let stop = StopSignal::default();
    stop_when_asked_to_end(&stop)?;
    let mut show = Show::new(output);
    let mut profile = options.profile.then(Profile::start);
    let outcome = train(&run, &|| stop.is_set(), &mut |event| {
        show.event(&event);
        if let Some(profile) = &mut profile {
            profile.event(&event);
        }
    });
    show.finish()?;
    if let Some(profile) = profile {
        let (value, table) = profile.finish();
        output.result(&value, &table)?;
    }
    match outcome? {
        TrainingOutcome::Completed {
            final_loss,
            total_steps,
            training_time,
            folder,
        } => {
            let loss = final_loss.map_or_else(|| "none".to_owned(), |loss| format!("{loss:.4}"));
            let what = if job.config.use_peft {
                "adapter"
            } else {
                "model"
            };
            let in_words = format!(
                "done: {total_steps} steps in {:.0} s, final loss {loss}\n{what}: {}",
                training_time.as_secs_f64(),
                folder.display()
            );
            let result = json!({
                "event": "completed",
                "final_loss": final_loss,
                "total_steps": total_steps,
                "training_time_seconds": training_time.as_secs_f64(),
                what: folder,
            });
            output.result(&result, &in_words)
        }
        TrainingOutcome::Stopped { step, checkpoint } => {
            let kept = match &checkpoint {
                Some(folder) => format!(
                    "; go on with resume_from_checkpoint = \"{NEWEST}\" in [config] ({})",
                    folder.display()
                ),
                None => String::new(),
            };
            Err(CliError::Stopped(format!(
                "stopped after step {step}{kept}"
            )))
        }
    }
}

/// The checkpoint to go on from. A folder that holds another run's files is not written over.
fn checkpoint(
    config: &TrainingConfig,
    output: &std::path::Path,
    job: &JobFile,
) -> Result<Option<PathBuf>, CliError> {
    let checkpoints = output.join(CHECKPOINTS);
    match config.resume_from_checkpoint.as_deref() {
        None if checkpoints.exists() || output.join(FINAL).exists() => {
            Err(CliError::Input(format!(
                "{} holds an earlier run: choose another folder, or set resume_from_checkpoint = \"{NEWEST}\" in [config]",
                output.display()
            )))
        }
        None => Ok(None),
        Some(NEWEST) => {
            let newest = newest_complete(&checkpoints)?;
            for problem in newest.passed_over {
                remark(&format!("passed over: {problem}"));
            }
            newest.folder.map(Some).ok_or_else(|| {
                CliError::Input(format!("{} has no whole checkpoint", checkpoints.display()))
            })
        }
        Some(path) => Ok(Some(job.folder().join(path))),
    }
}
