//! `trainyard demo`: the whole main job on this machine, from an empty folder to a model that speaks another way.
//!
//! In order: a platform on a port of its own; the three questions asked of the base model; a worker enrolled with a
//! real key over a real socket; the data set uploaded; a LoRA job submitted and followed; the questions again, with
//! the adapter. Ctrl-C ends it at any moment: worker first, then the platform.

mod answers;
mod chats;
mod yard;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use trainyard_worker::config::HubArgs;
use trainyard_worker::tasks::base_model::ModelSource;
use trainyard_worker::tasks::transfers::{Http, RetryPolicy};

use super::client::Platform;
use super::error::CliError;
use super::jobs::watch;
use super::output::{Output, cell, items, printable, remark};
use answers::Answers;
use yard::Yard;

/// The base model that is fine-tuned.
const BASE_MODEL: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
/// Optimizer steps of the short run; the full one goes through all chats once.
const QUICK_STEPS: u64 = 20;
/// Chats in a step.
const BATCH_SIZE: u64 = 4;
/// How often the platform is asked whether the worker is there.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// As after SIGINT by the shells' rule.
const INTERRUPTED: u8 = 130;

/// Options of `demo`.
#[derive(Args)]
pub struct Options {
    /// A short run: less than 90 seconds instead of a few minutes.
    #[arg(long)]
    quick: bool,
    /// End when done instead of serving on.
    #[arg(long)]
    exit: bool,
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS:PORT")]
    bind: SocketAddr,
    /// Where the demo keeps everything; what an earlier demo left there is removed first.
    #[arg(
        long,
        env = "TRAINYARD_DEMO_DIR",
        default_value = "data/demo",
        value_name = "DIR"
    )]
    data_dir: PathBuf,
    /// Base models, as folders `org/name` or files `org/name.gguf`; a missing one is fetched from the hub.
    #[arg(
        long,
        env = "MODELS_DIR",
        default_value = "data/models",
        value_name = "DIR"
    )]
    models_dir: PathBuf,
    #[command(flatten)]
    hub: HubArgs,
}

/// Told once the demo was asked to end.
const STOPPING: &str = "stopping; Ctrl-C again ends at once";

/// What the demo came to.
struct Outcome {
    first_loss: f64,
    last_loss: f64,
    steps: u64,
    tokens_per_second: f64,
    adapter: PathBuf,
    before: Answers,
    after: Answers,
}

/// Runs the demo to its end, and serves on where that was not declined.
pub fn run(options: &Options, output: &Output) -> Result<ExitCode, CliError> {
    actix_web::rt::System::new().block_on(async {
        let mut yard = Yard::open(&options.data_dir)?;
        let ended = tokio::select! {
            ended = show(options, &mut yard, output) => ended,
            () = interrupted() => {
                remark(STOPPING);
                Ok(ExitCode::from(INTERRUPTED))
            }
        };
        tokio::select! {
            () = yard.stop() => ended,
            () = interrupted() => Ok(ExitCode::from(INTERRUPTED)),
        }
    })
}

async fn show(options: &Options, yard: &mut Yard, output: &Output) -> Result<ExitCode, CliError> {
    let (platform, login) = yard.start_platform(options.bind).await?;
    let dashboard = platform.base().to_string();
    remark(&format!("the platform is at {dashboard} ({login})"));
    let outcome = main_job(options, yard, &platform, output).await?;
    output.result(&outcome.in_json(&dashboard), |_| {
        outcome.in_words(&dashboard, &login)
    })?;
    if !options.exit {
        remark("the platform and its worker go on; Ctrl-C ends them");
        interrupted().await;
        remark(STOPPING);
    }
    Ok(ExitCode::SUCCESS)
}

async fn main_job(
    options: &Options,
    yard: &mut Yard,
    platform: &Platform,
    output: &Output,
) -> Result<Outcome, CliError> {
    let settings = options.hub.model_settings(options.models_dir.clone());
    let http =
        Http::new(RetryPolicy::default()).map_err(|error| CliError::Input(error.to_string()))?;
    let models = ModelSource::new(settings.clone(), http);
    remark("asking the base model three questions");
    let before = answers::ask(&models, BASE_MODEL, None).await?;

    remark("starting a worker, which enrols with a key and measures this machine");
    let key = platform
        .post(
            &["api", "enrollment-keys"],
            &json!({"max_uses": 1, "name_prefix": "demo"}),
        )
        .await?;
    yard.start_worker(platform.base(), &text(&key, "key")?, settings)?;
    let worker = yard.worker_while(idle_worker(platform)).await?;
    remark(&format!("{} is ready", cell(&worker, "/name")));

    let dataset = upload(platform).await?;
    remark(&format!(
        "uploaded {} chats; submitting the job",
        cell(&dataset, "/rows")
    ));
    let job = platform
        .post(&["api", "jobs"], &job(options, &dataset, &worker))
        .await?;
    let id = job["id"]
        .as_u64()
        .ok_or_else(|| CliError::UnexpectedAnswer("a job without a number".to_owned()))?;
    if yard.worker_while(watch::run(id, platform, output)).await? != ExitCode::SUCCESS {
        return Err(CliError::Input("the job did not complete".to_owned()));
    }

    remark("asking the fine-tuned model the same questions");
    let adapter = yard.adapter_of(id);
    let after = answers::ask(&models, BASE_MODEL, Some(&adapter)).await?;
    let metrics = platform
        .get(&["api", "jobs", &id.to_string(), "metrics"], &[])
        .await?;
    let points = metrics["points"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Err(CliError::UnexpectedAnswer(
            "a completed job without metrics".to_owned(),
        ));
    };
    Ok(Outcome {
        first_loss: number(first, "loss")?,
        last_loss: number(last, "loss")?,
        steps: last["step"].as_u64().unwrap_or_default(),
        tokens_per_second: median(
            points
                .iter()
                .filter_map(|point| point["token_throughput"].as_f64())
                .collect(),
        ),
        adapter,
        before,
        after,
    })
}

/// The worker that is ready for jobs.
async fn idle_worker(platform: &Platform) -> Result<Value, CliError> {
    loop {
        let workers = platform.get(&["api", "workers"], &[]).await?;
        if let Some(idle) = items(&workers)
            .iter()
            .find(|worker| worker["status"] == "idle")
        {
            return Ok(idle.clone());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn upload(platform: &Platform) -> Result<Value, CliError> {
    let request = platform
        .request(Method::POST, &["api", "datasets"])?
        .query(&[
            ("name", "yard foreman"),
            (
                "format",
                trainyard_shared::dataset::DatasetFormat::Jsonl.as_str(),
            ),
        ])
        .body(chats::json_lines());
    platform.json(request).await
}

/// The body of POST /api/jobs.
fn job(options: &Options, dataset: &Value, worker: &Value) -> Value {
    let mut config = json!({
        "epochs": 1,
        "batch_size": BATCH_SIZE,
        "packing": false,
        "max_length": 256,
        "lora_r": 16,
        "learning_rate": 2e-3,
        "logging_steps": 20,
    });
    if options.quick {
        config["max_steps"] = json!(QUICK_STEPS);
    }
    json!({
        "name": "speak like a yard foreman",
        "dataset_id": dataset["id"],
        "base_model": {"huggingface_id": BASE_MODEL},
        "config": config,
        "worker_id": worker["id"],
    })
}

impl Outcome {
    fn in_json(&self, dashboard: &str) -> Value {
        json!({
            "first_loss": self.first_loss,
            "last_loss": self.last_loss,
            "steps": self.steps,
            "tokens_per_second": self.tokens_per_second,
            "adapter": self.adapter,
            "dashboard": dashboard,
            "before": self.before,
            "after": self.after,
        })
    }

    fn in_words(&self, dashboard: &str, login: &str) -> String {
        let mut words = format!(
            "\nloss {:.3} at the first of {} steps, {:.3} at the last; {:.0} tokens/s\n",
            self.first_loss, self.steps, self.last_loss, self.tokens_per_second
        );
        for ((question, before), after) in
            chats::QUESTIONS.iter().zip(&self.before).zip(&self.after)
        {
            let (before, after) = (printable(before), printable(after));
            words.push_str(&format!(
                "\n{question}\n  before  {before}\n  after   {after}\n"
            ));
        }
        let adapter = self.adapter.display();
        words.push_str(&format!(
            "\nadapter    {adapter}\ndashboard  {dashboard} ({login})"
        ));
        words
    }
}

/// A field of an answer that must be text.
fn text(answer: &Value, field: &str) -> Result<String, CliError> {
    let text = answer[field].as_str().map(str::to_owned);
    text.ok_or_else(|| CliError::UnexpectedAnswer(format!("no {field}")))
}

fn number(answer: &Value, field: &str) -> Result<f64, CliError> {
    answer[field]
        .as_f64()
        .ok_or_else(|| CliError::UnexpectedAnswer(format!("no {field}")))
}

/// The middle one, 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Returns when the person presses Ctrl-C or the process is told to end.
async fn interrupted() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
}
