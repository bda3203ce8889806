//! `trainyard federated`: training in rounds on several workers.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

use super::client::Platform;
use super::error::CliError;
use super::jobs::submit::{field, read_config};
use super::output::{Output, cell, figure, given_fields, items, pairs, table, time};
use super::sessions::{self, Sessions};

/// Federated sessions.
const SESSIONS: Sessions = Sessions {
    collection: "federated",
    progress,
    standing,
};
/// An epsilon above this protects next to nothing.
const WEAK_EPSILON: f64 = 10.0;

/// Commands on federated sessions.
#[derive(Subcommand)]
pub enum Command {
    /// Start a session; it begins once enough workers are free.
    Start(Box<Start>),
    /// List the sessions.
    List,
    /// Show one session with its workers and rounds.
    Show {
        /// The session's number.
        id: u64,
    },
    #[command(flatten)]
    Session(sessions::Command),
}

/// Options of `federated start`.
#[derive(Args)]
pub struct Start {
    /// The data set's number; its rows are dealt out to the shards. Several, one for each shard, with commas.
    #[arg(long, value_name = "ID", value_delimiter = ',', required = true)]
    dataset: Vec<u64>,
    /// Parts of one data set; each worker that takes part trains on one.
    #[arg(long, value_name = "COUNT")]
    shards: Option<u64>,
    /// The base model's name at the Hugging Face hub, as HuggingFaceTB/SmolLM2-135M-Instruct.
    #[arg(long, value_name = "NAME")]
    model: String,
    /// How many rounds.
    #[arg(long, value_name = "COUNT")]
    rounds: u64,
    /// Optimizer steps of each worker in a round.
    #[arg(long, value_name = "COUNT")]
    local_steps: u64,
    /// A round needs so many results.
    #[arg(long, value_name = "COUNT")]
    min_workers: Option<u64>,
    /// So many workers take part at most.
    #[arg(long, value_name = "COUNT")]
    max_workers: Option<u64>,
    /// A round closes after this time at the latest, if it has enough results.
    #[arg(long, value_name = "SECONDS")]
    round_timeout: Option<f64>,
    /// How results are merged: nesterov, mean, weighted_mean, trimmed_mean, median, krum.
    #[arg(long, value_name = "RULE")]
    aggregation: Option<String>,
    /// Only these workers may take part, with commas: the numbers that `workers list` shows.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    workers: Vec<u64>,
    /// Differential privacy: workers scale their change down to this L2 norm and add noise before they send it.
    #[arg(long, value_name = "NORM", requires = "noise_multiplier")]
    clip_norm: Option<f64>,
    /// Differential privacy: standard deviation of that noise, in multiples of --clip-norm.
    #[arg(long, value_name = "FACTOR", requires = "clip_norm")]
    noise_multiplier: Option<f64>,
    /// Secure aggregation: workers mask their results, and the platform reads only the sum of a round's.
    #[arg(long)]
    secure_aggregation: bool,
    /// Secure aggregation: least number of results whose sum is read; two thirds of --min-workers when absent.
    #[arg(long, value_name = "COUNT", requires = "secure_aggregation")]
    secure_threshold: Option<u64>,
    /// Let the optimizer begin anew in every round.
    #[arg(long)]
    reset_optimizer: bool,
    /// A field of the training config, as learning_rate=1e-4 or lora_r=8; wins over the file.
    #[arg(long = "set", value_name = "FIELD=VALUE", value_parser = field)]
    fields: Vec<(String, Value)>,
    /// TOML or JSON file with the training config.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The session's name.
    #[arg(long)]
    name: Option<String>,
    /// Follow the session until it ends; the exit code is 0 only if it finished.
    #[arg(long)]
    watch: bool,
}

/// The options that fill the fields of the request.
const OPTIONS: &[(&str, &str)] = &[
    ("base_model", "--model"),
    ("base_model.huggingface_id", "--model"),
    ("dataset_id", "--dataset"),
    ("dataset_ids", "--dataset"),
    ("shards", "--shards"),
    ("rounds", "--rounds"),
    ("local_steps", "--local-steps"),
    ("min_workers", "--min-workers"),
    ("max_workers", "--max-workers"),
    ("round_timeout_seconds", "--round-timeout"),
    ("aggregation", "--aggregation"),
    ("worker_ids", "--workers"),
    ("privacy.differential_privacy.clip_norm", "--clip-norm"),
    (
        "privacy.differential_privacy.noise_multiplier",
        "--noise-multiplier",
    ),
    ("privacy.secure_aggregation.threshold", "--secure-threshold"),
    ("name", "--name"),
];

/// Runs a command on federated sessions.
pub async fn run(
    command: Command,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    match command {
        Command::Start(options) => return start(&options, platform, output).await,
        Command::Session(command) => return SESSIONS.run(command, platform, output).await,
        Command::List => {
            let list = platform.all(&["api", "federated"], &[]).await?;
            output.result(&list, list_in_words)?;
        }
        Command::Show { id } => {
            let text = id.to_string();
            let mut session = platform.get(&["api", "federated", &text], &[]).await?;
            let rounds = platform
                .all(&["api", "federated", &text, "rounds"], &[])
                .await?;
            session["rounds_so_far"] = json!(items(&rounds));
            output.result(&session, in_words)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn start(
    options: &Start,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    let made = platform
        .post(&["api", "federated"], &request(options)?)
        .await;
    let session = made.map_err(|error| match output.is_json() {
        true => error,
        false => error.with_options(OPTIONS),
    })?;
    output.result(&session, |session| {
        format!(
            "session {} is {}",
            cell(session, "/id"),
            cell(session, "/status")
        )
    })?;
    if !options.watch {
        return Ok(ExitCode::SUCCESS);
    }
    let id = session["id"]
        .as_u64()
        .ok_or_else(|| CliError::UnexpectedAnswer("a session without a number".to_owned()))?;
    SESSIONS.watch(id, platform, output).await
}

/// The body of POST /api/federated.
fn request(options: &Start) -> Result<Value, CliError> {
    let mut config = match &options.config {
        Some(path) => read_config(path)?,
        None => Map::new(),
    };
    config.extend(options.fields.iter().cloned());
    let mut body = json!({
        "base_model": { "huggingface_id": options.model },
        "config": config,
        "rounds": options.rounds,
        "local_steps": options.local_steps,
    });
    match options.dataset.as_slice() {
        [one] => body["dataset_id"] = json!(one),
        several => body["dataset_ids"] = json!(several),
    }
    let workers = (!options.workers.is_empty()).then(|| json!(options.workers));
    let mechanism = options.clip_norm.zip(options.noise_multiplier);
    let mut privacy = Map::new();
    if let Some((clip_norm, noise_multiplier)) = mechanism {
        let mechanism = json!({"clip_norm": clip_norm, "noise_multiplier": noise_multiplier});
        privacy.insert("differential_privacy".to_owned(), mechanism);
    }
    if options.secure_aggregation {
        let mut masks = Map::new();
        if let Some(threshold) = options.secure_threshold {
            masks.insert("threshold".to_owned(), json!(threshold));
        }
        privacy.insert("secure_aggregation".to_owned(), Value::Object(masks));
    }
    let privacy = (!privacy.is_empty()).then_some(Value::Object(privacy));
    let optional = [
        ("privacy", privacy),
        ("shards", options.shards.map(Value::from)),
        ("min_workers", options.min_workers.map(Value::from)),
        ("max_workers", options.max_workers.map(Value::from)),
        (
            "round_timeout_seconds",
            options.round_timeout.map(Value::from),
        ),
        ("aggregation", options.aggregation.clone().map(Value::from)),
        ("worker_ids", workers),
        (
            "keep_optimizer",
            options.reset_optimizer.then(|| json!(false)),
        ),
        ("name", options.name.clone().map(Value::from)),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            body[field] = value;
        }
    }
    Ok(body)
}

/// Rounds that are over, and how many there are.
fn progress(session: &Value) -> (u64, u64) {
    let (round, rounds) = (&session["round"], &session["rounds"]);
    let all = rounds.as_u64().unwrap_or(0);
    match session["status"] == "finished" {
        true => (all, all),
        false => (round.as_u64().unwrap_or(0).saturating_sub(1), all),
    }
}

fn standing(session: &Value) -> String {
    let (round, rounds) = (cell(session, "/round"), cell(session, "/rounds"));
    match session["waiting_because"].as_str() {
        Some(_) => format!(
            "round {round} of {rounds}: {}",
            cell(session, "/waiting_because")
        ),
        None => format!("round {round} of {rounds}"),
    }
}

/// What differential privacy comes to, with a word where that is next to nothing.
fn epsilon(session: &Value, field: &str) -> String {
    let pointer = format!("/privacy/differential_privacy/{field}");
    let told = figure(session, &pointer);
    match session.pointer(&pointer).and_then(Value::as_f64) {
        Some(epsilon) if epsilon > WEAK_EPSILON => {
            format!("{told} (above {WEAK_EPSILON}: protects next to nothing)")
        }
        _ => told,
    }
}

fn list_in_words(list: &Value) -> String {
    let row = |session: &Value| {
        vec![
            cell(session, "/id"),
            cell(session, "/name"),
            cell(session, "/status"),
            format!("{}/{}", cell(session, "/round"), cell(session, "/rounds")),
            cell(session, "/updates"),
            time(session, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(
        &["ID", "NAME", "STATUS", "ROUND", "RESULTS", "CREATED"],
        &rows,
    )
}

fn in_words(session: &Value) -> String {
    let list = |pointer: &str| match session.pointer(pointer).and_then(Value::as_array) {
        Some(all) if !all.is_empty() => {
            let all: Vec<String> = all.iter().map(Value::to_string).collect();
            all.join(", ")
        }
        _ => "-".to_owned(),
    };
    let of_noise = |field: &str| figure(session, &format!("/privacy/differential_privacy/{field}"));
    let all = [
        ("id", cell(session, "/id")),
        ("name", cell(session, "/name")),
        ("status", cell(session, "/status")),
        ("waits because", cell(session, "/waiting_because")),
        ("error", cell(session, "/error")),
        ("model", cell(session, "/model")),
        ("data sets", list("/dataset_ids")),
        ("shards", cell(session, "/shards")),
        ("shards without a worker", list("/idle_shards")),
        ("config", given_fields(session, "/config")),
        ("steps a round", cell(session, "/local_steps")),
        ("rule", cell(session, "/aggregation")),
        ("at least workers", cell(session, "/min_workers")),
        ("clip norm", of_noise("clip_norm")),
        ("noise multiplier", of_noise("noise_multiplier")),
        ("delta", of_noise("delta")),
        ("epsilon so far", epsilon(session, "epsilon")),
        ("epsilon at the end", epsilon(session, "epsilon_at_end")),
        (
            "sums of at least",
            cell(session, "/privacy/secure_aggregation/threshold"),
        ),
        ("base model", cell(session, "/base_model")),
        (
            "round",
            format!(
                "{} of {}",
                cell(session, "/round"),
                cell(session, "/rounds")
            ),
        ),
        ("results", cell(session, "/updates")),
        ("deadline", time(session, "/deadline")),
        ("created", time(session, "/created_at")),
        ("ended", time(session, "/ended_at")),
    ];
    let known: Vec<_> = all.into_iter().filter(|(_, value)| value != "-").collect();
    let mut words = pairs(&known);
    let workers = session["workers"].as_array().into_iter().flatten();
    let rows: Vec<_> = workers
        .map(|worker| {
            [
                "/worker_id",
                "/shard",
                "/status",
                "/accepted",
                "/refused",
                "/late",
                "/error",
            ]
            .map(|pointer| cell(worker, pointer))
            .to_vec()
        })
        .collect();
    if !rows.is_empty() {
        let headings = [
            "WORKER", "SHARD", "STATUS", "ACCEPTED", "REFUSED", "LATE", "ERROR",
        ];
        words.push_str(&format!("\n\n{}", table(&headings, &rows)));
    }
    let rounds = session["rounds_so_far"].as_array().into_iter().flatten();
    let rows: Vec<_> = rounds
        .map(|round| {
            let results = round["results"].as_array().map_or(0, Vec::len);
            vec![
                cell(round, "/round"),
                cell(round, "/status"),
                results.to_string(),
                figure(round, "/loss"),
                time(round, "/closed_at"),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let headings = ["ROUND", "STATUS", "RESULTS", "LOSS", "CLOSED"];
        words.push_str(&format!("\n\n{}", table(&headings, &rows)));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Start,
    }

    fn body(arguments: &[&str]) -> Value {
        let always = [
            "x",
            "--model",
            "org/name",
            "--rounds",
            "3",
            "--local-steps",
            "20",
        ];
        let line = [&always[..], arguments].concat();
        request(&Line::try_parse_from(line).unwrap().options).unwrap()
    }

    #[test]
    fn flags_become_the_request() {
        assert_eq!(
            body(&[
                "--dataset",
                "7",
                "--shards",
                "4",
                "--workers",
                "1,2",
                "--reset-optimizer",
                "--set",
                "lora_r=8"
            ]),
            json!({
                "dataset_id": 7, "shards": 4, "base_model": {"huggingface_id": "org/name"}, "rounds": 3,
                "local_steps": 20, "config": {"lora_r": 8}, "worker_ids": [1, 2], "keep_optimizer": false,
            })
        );
        assert_eq!(body(&["--dataset", "7,8"])["dataset_ids"], json!([7, 8]));
        let masked = ["--dataset", "7", "--secure-aggregation"];
        let privacy = |arguments: &[&str]| body(arguments)["privacy"].clone();
        assert_eq!(privacy(&masked), json!({"secure_aggregation": {}}));
        let all = [
            &masked[..],
            &[
                "--secure-threshold",
                "3",
                "--clip-norm",
                "1",
                "--noise-multiplier",
                "2",
            ],
        ];
        assert_eq!(
            privacy(&all.concat()),
            json!({
                "secure_aggregation": {"threshold": 3},
                "differential_privacy": {"clip_norm": 1.0, "noise_multiplier": 2.0}
            })
        );
    }
}
