//! `trainyard coordinators`: sessions in which volunteers train.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, cell, figure, items, pairs, table, time};
use super::sessions::{self, Sessions};

/// Volunteer sessions.
const SESSIONS: Sessions = Sessions {
    collection: "coordinators",
    progress,
    standing,
};
/// Volunteers that `show` lists.
const MOST_SHOWN: usize = 30;

/// Commands on volunteer sessions.
#[derive(Subcommand)]
pub enum Command {
    /// Make a session; its weights and shards are made in the background.
    Create(Box<Create>),
    /// List the sessions.
    List,
    /// Show one session with those who take part and its last rounds.
    Show {
        /// The session's number.
        id: u64,
    },
    #[command(flatten)]
    Session(sessions::Command),
}

/// Options of `coordinators create`.
#[derive(Args)]
pub struct Create {
    /// The session's name: volunteers find it at /c/NAME/.
    name: String,
    /// The base model's name at the hub; a fresh adapter is made for it.
    #[arg(long, value_name = "MODEL", required_unless_present = "job")]
    base_model: Option<String>,
    /// The job whose adapter is the first global one.
    #[arg(long, value_name = "ID", conflicts_with = "base_model")]
    job: Option<u64>,
    /// The data set that volunteers get in shards; else they bring their own data.
    #[arg(long, value_name = "ID")]
    dataset: Option<u64>,
    /// Rounds (toplam_tur); 20 when left out.
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u64>,
    /// Shards (n_parca); 4 when left out.
    #[arg(long, value_name = "COUNT")]
    shards: Option<u64>,
    /// Results that close a round (en_az); 2 when left out.
    #[arg(long, value_name = "COUNT")]
    enough: Option<u64>,
    /// Optimizer steps of a round (ic_adim); 20 when left out.
    #[arg(long, value_name = "COUNT")]
    local_steps: Option<u64>,
    /// Sequences in a batch (bs); 4 when left out.
    #[arg(long, value_name = "COUNT")]
    batch_size: Option<u64>,
    /// Length of a sequence in tokens (seq); 512 when left out.
    #[arg(long, value_name = "TOKENS")]
    sequence_length: Option<u64>,
    /// Learning rate (lr); 0.0002 when left out.
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// cpt (when left out): every token is learned; sft: the assistant's only (mod).
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Seconds after which a round closes with what is there; 0: never (tur_zaman_asimi); 600 when left out.
    #[arg(long, value_name = "SECONDS")]
    round_timeout: Option<f64>,
    /// File with the key that volunteers must send, on its first line (anahtar).
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// nesterov (when left out), mean, weighted_mean, trimmed_mean, median or krum.
    #[arg(long, value_name = "RULE")]
    aggregation: Option<String>,
    /// Volunteers find the session at the root as well.
    #[arg(long)]
    default: bool,
    /// Rank of the fresh adapter; 8 when left out.
    #[arg(long, value_name = "RANK")]
    lora_r: Option<u64>,
    /// Alpha of the fresh adapter; 16 when left out.
    #[arg(long, value_name = "ALPHA")]
    lora_alpha: Option<f64>,
    /// Linear layers of the fresh adapter, or all-linear; q_proj and v_proj when left out.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    target_modules: Vec<String>,
    /// Seed of the fresh adapter and of what volunteers do; 0 when left out.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Learning rate of the outer step; 1 when left out.
    #[arg(long, value_name = "RATE")]
    outer_lr: Option<f64>,
    /// Momentum of the outer step; 0.5 when left out.
    #[arg(long, value_name = "MOMENTUM")]
    outer_momentum: Option<f64>,
    /// Largest L2 norm of what a result may differ from the global adapter by; any when left out.
    #[arg(long, value_name = "NORM")]
    max_delta_norm: Option<f64>,
    /// Invalid uploads of one volunteer above which it gets no more tasks; any number when left out.
    #[arg(long, value_name = "COUNT")]
    max_refused: Option<u64>,
}

/// The options that fill the fields of the request.
const OPTIONS: &[(&str, &str)] = &[
    ("base_model", "--base-model"),
    ("job_id", "--job"),
    ("dataset_id", "--dataset"),
    ("toplam_tur", "--rounds"),
    ("n_parca", "--shards"),
    ("en_az", "--enough"),
    ("ic_adim", "--local-steps"),
    ("bs", "--batch-size"),
    ("seq", "--sequence-length"),
    ("lr", "--learning-rate"),
    ("mod", "--mode"),
    ("tur_zaman_asimi", "--round-timeout"),
    ("anahtar", "--key-file"),
    ("aggregation", "--aggregation"),
    ("lora.r", "--lora-r"),
    ("lora.alpha", "--lora-alpha"),
    ("lora.target_modules", "--target-modules"),
    ("seed", "--seed"),
    ("outer_lr", "--outer-lr"),
    ("outer_momentum", "--outer-momentum"),
    ("max_delta_norm", "--max-delta-norm"),
    ("max_refused", "--max-refused"),
];

/// Runs a command on volunteer sessions.
pub async fn run(
    command: Command,
    platform: &Platform,
    output: &Output,
) -> Result<ExitCode, CliError> {
    match command {
        Command::Create(options) => {
            let made = platform
                .post(&["api", "coordinators"], &options.body()?)
                .await;
            let made = made.map_err(|error| match output.is_json() {
                true => error,
                false => error.with_options(OPTIONS),
            })?;
            let url = platform.url(&["c", &options.name, ""]);
            output.result(&made, |made| {
                format!(
                    "session {} is {}; volunteers find it at {url}",
                    cell(made, "/id"),
                    cell(made, "/status")
                )
            })?;
        }
        Command::List => {
            let list = platform.all(&["api", "coordinators"], &[]).await?;
            output.result(&list, list_in_words)?;
        }
        Command::Show { id } => show(id, platform, output).await?,
        Command::Session(command) => return SESSIONS.run(command, platform, output).await,
    }
    Ok(ExitCode::SUCCESS)
}

impl Create {
    fn body(&self) -> Result<Value, CliError> {
        let targets = match self.target_modules.as_slice() {
            [] => None,
            [only] if only == "all-linear" => Some(json!(only)),
            names => Some(json!(names)),
        };
        let lora = given([
            ("r", self.lora_r.map(Value::from)),
            ("alpha", self.lora_alpha.map(Value::from)),
            ("target_modules", targets),
        ]);
        let body = given([
            ("name", Some(json!(self.name))),
            ("base_model", self.base_model.as_deref().map(Value::from)),
            ("job_id", self.job.map(Value::from)),
            ("dataset_id", self.dataset.map(Value::from)),
            ("toplam_tur", self.rounds.map(Value::from)),
            ("n_parca", self.shards.map(Value::from)),
            ("en_az", self.enough.map(Value::from)),
            ("ic_adim", self.local_steps.map(Value::from)),
            ("bs", self.batch_size.map(Value::from)),
            ("seq", self.sequence_length.map(Value::from)),
            ("lr", self.learning_rate.map(Value::from)),
            ("mod", self.mode.as_deref().map(Value::from)),
            ("tur_zaman_asimi", self.round_timeout.map(Value::from)),
            ("anahtar", self.key()?.map(Value::from)),
            ("aggregation", self.aggregation.as_deref().map(Value::from)),
            ("default", self.default.then(|| json!(true))),
            ("lora", (!lora.is_empty()).then_some(Value::Object(lora))),
            ("seed", self.seed.map(Value::from)),
            ("outer_lr", self.outer_lr.map(Value::from)),
            ("outer_momentum", self.outer_momentum.map(Value::from)),
            ("max_delta_norm", self.max_delta_norm.map(Value::from)),
            ("max_refused", self.max_refused.map(Value::from)),
        ]);
        Ok(Value::Object(body))
    }

    /// A key on the command line could be read by everybody on the machine.
    fn key(&self) -> Result<Option<String>, CliError> {
        let Some(path) = &self.key_file else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(path)
            .map_err(|source| CliError::io(path.display().to_string(), source))?;
        Ok(Some(
            text.lines().next().unwrap_or_default().trim().to_owned(),
        ))
    }
}

fn given<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

async fn show(id: u64, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let id = id.to_string();
    let path = |more: &'static str| ["api", "coordinators", id.as_str(), more];
    let session = platform.get(&["api", "coordinators", &id], &[]).await?;
    let participants = platform.all(&path("participants"), &[]).await?;
    let rounds = platform.get(&path("rounds"), &[]).await?;
    let shown = json!({
        "session": session,
        "participants": participants["items"],
        "rounds": rounds["items"],
    });
    output.result(&shown, in_words)
}

/// Rounds that are over, and how many there are.
fn progress(session: &Value) -> (u64, u64) {
    let of = |field: &str| session[field].as_u64().unwrap_or(0);
    (of("tur"), of("toplam_tur"))
}

/// The round, from 1 as everywhere at the terminal; the last one once all are over.
fn round(session: &Value) -> (u64, u64) {
    let (over, all) = progress(session);
    ((over + 1).min(all), all)
}

fn standing(session: &Value) -> String {
    let (round, all) = round(session);
    format!(
        "{}: round {round} of {all}, {} of {} results, {} volunteers",
        cell(session, "/status"),
        cell(session, "/results"),
        cell(session, "/en_az"),
        cell(session, "/volunteers"),
    )
}

fn list_in_words(list: &Value) -> String {
    let row = |session: &Value| {
        let (round, all) = round(session);
        vec![
            cell(session, "/id"),
            cell(session, "/name"),
            cell(session, "/status"),
            format!("{round}/{all}"),
            results(session, "/"),
            cell(session, "/volunteers"),
            time(session, "/created_at"),
        ]
    };
    let rows: Vec<_> = items(list).iter().map(row).collect();
    table(
        &[
            "ID",
            "NAME",
            "STATUS",
            "ROUND",
            "RESULTS",
            "VOLUNTEERS",
            "CREATED",
        ],
        &rows,
    )
}

/// Results of the open round; none once there is none.
fn results(session: &Value, of: &str) -> String {
    match session["round_status"].is_null() {
        true => "-".to_owned(),
        false => format!(
            "{}{of}{}",
            cell(session, "/results"),
            cell(session, "/en_az")
        ),
    }
}

fn seconds(session: &Value, pointer: &str) -> String {
    match session.pointer(pointer).and_then(Value::as_f64) {
        Some(seconds) => format!("{seconds} s"),
        None => cell(session, pointer),
    }
}

fn in_words(shown: &Value) -> String {
    let session = &shown["session"];
    let (round, all) = round(session);
    let all = [
        ("id", cell(session, "/id")),
        ("name", cell(session, "/name")),
        ("status", cell(session, "/status")),
        ("error", cell(session, "/error")),
        ("path", cell(session, "/path")),
        ("base model", cell(session, "/base_model")),
        ("data set", cell(session, "/dataset_id")),
        ("mode", cell(session, "/mod")),
        ("shards", cell(session, "/n_parca")),
        ("steps a round", cell(session, "/ic_adim")),
        ("batch", cell(session, "/bs")),
        ("length", cell(session, "/seq")),
        ("rule", cell(session, "/aggregation")),
        ("key needed", cell(session, "/locked")),
        ("round timeout", seconds(session, "/tur_zaman_asimi")),
        ("round", format!("{round} of {all}")),
        ("results", results(session, " of ")),
        ("waits because", cell(session, "/waiting_because")),
        ("model", cell(session, "/model")),
        ("created", time(session, "/created_at")),
        ("ended", time(session, "/ended_at")),
    ];
    let known: Vec<_> = all.into_iter().filter(|(_, value)| value != "-").collect();
    let mut words = pairs(&known);
    let list = |name: &str| shown[name].as_array().cloned().unwrap_or_default();
    let mut all = list("participants");
    // Those who have brought most first; of equals by name.
    all.sort_by_key(|one| std::cmp::Reverse(one["accepted"].as_u64()));
    let unshown = all.len().saturating_sub(MOST_SHOWN);
    let participants: Vec<_> = all
        .iter()
        .take(MOST_SHOWN)
        .map(|one| {
            [
                "isci",
                "parca",
                "accepted",
                "refused",
                "eliminated",
                "late",
                "blocked",
            ]
            .map(|field| cell(one, &format!("/{field}")))
            .to_vec()
        })
        .collect();
    if !participants.is_empty() {
        words.push_str("\n\n");
        words.push_str(&table(
            &[
                "VOLUNTEER",
                "SHARD",
                "ACCEPTED",
                "REFUSED",
                "ELIMINATED",
                "LATE",
                "BLOCKED",
            ],
            &participants,
        ));
        if unshown > 0 {
            words.push_str(&format!("\nand {unshown} more (--json shows all)"));
        }
    }
    // Behind the last round the platform lists what came of it.
    let total = session["toplam_tur"].as_u64();
    let rounds: Vec<_> = list("rounds")
        .iter()
        .filter(|round| round["tur"].as_u64() < total)
        .map(|round| {
            let results = round["results"].as_array().map_or(0, Vec::len);
            vec![
                (round["tur"].as_u64().unwrap_or(0) + 1).to_string(),
                results.to_string(),
                cell(round, "/merged"),
                figure(round, "/update_norm"),
                time(round, "/closed_at"),
            ]
        })
        .collect();
    words.push_str("\n\n");
    words.push_str(&table(
        &["ROUND", "RESULTS", "MERGED", "STEP", "CLOSED"],
        &rounds,
    ));
    words
}
