//! `trainyard-worker generate`: lets a model answer, with or without an adapter.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use chrono::Local;
use clap::Args;
use serde_json::{Value, json};
use trainyard_shared::dataset::{Role, Turn};
use trainyard_shared::message::ChatMessage;

use super::error::CliError;
use super::output::Output;
use super::signals::stop_when_asked_to_end;
use crate::config::ModelArgs;
use crate::engine::EngineError;
use crate::engine::adapter;
use crate::engine::chat_template::Chat;
use crate::engine::generate::{AnswerText, Finish, Generator, Next, Piece, SamplingOptions};
use crate::engine::model::{Holding, Llama};
use crate::engine::weights::ModelFiles;
use crate::hardware::rounded;
use crate::tasks::StopSignal;

/// Options of `generate`.
#[derive(Args)]
pub struct Options {
    /// The base model: a folder, a .gguf file or a hub name
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Folder of a LoRA adapter in PEFT's form
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    question: Question,
    /// Put before the chat as its system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens to generate
    #[arg(long, default_value_t = 256, value_name = "N")]
    max_tokens: usize,
    /// Sampling temperature; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.7, value_name = "T")]
    temperature: f32,
    /// Pick only from the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    top_p: f32,
    /// Pick only from so many of the likeliest tokens; 0 for all
    #[arg(long, default_value_t = 0, value_name = "K")]
    top_k: usize,
    /// What makes tokens that stand already less likely: above 1 for less, 1 for nothing
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    repetition_penalty: f32,
    /// A text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Selects the random numbers: the same seed gives the same answer
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    #[command(flatten)]
    models: ModelArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Question {
    /// What the user says
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// A chat to go on with: a JSON array of {"role", "content"}
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

/// What came out.
struct Answer {
    text: String,
    tokens: usize,
    finish: Finish,
    first_token_ms: Option<f64>,
    total_ms: f64,
}

/// Generates and prints, as it comes on a terminal or into a file.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    let turns = turns(&options)?;
    let here = Path::new("");
    let path = super::model::find(&options.model, here, options.models.model_settings()?)?;
    let files = ModelFiles::open(&path)?;
    let chat = files.chat(Local::now())?;
    let sampling = SamplingOptions {
        max_tokens: options.max_tokens,
        temperature: options.temperature,
        top_p: options.top_p,
        top_k: options.top_k,
        repetition_penalty: options.repetition_penalty,
        seed: options.seed,
        stop_ids: files.stop_token_ids(&chat)?,
    };
    sampling.validate()?;
    let adapter = options
        .adapter
        .as_deref()
        .map(|folder| adapter::load_all(folder, &files.config))
        .transpose()?;
    let mut model = Llama::load_as(&files, Holding::AsStored)?;
    if let Some(adapter) = &adapter {
        adapter.whole.put_into(&mut model)?;
    }
    let mut generator =
        Generator::new(Arc::new(model), adapter.as_ref().map(|saved| &saved.pairs))?;
    let answer = answer(
        &mut generator,
        &chat,
        (&turns, &options.stop),
        &sampling,
        output,
    )?;
    if answer.finish == Finish::Cancelled {
        return Err(CliError::Stopped(format!(
            "stopped after {} tokens",
            answer.tokens
        )));
    }
    if output.is_json() {
        output.line(&answer.to_json().to_string())
    } else {
        output.text("\n")
    }
}

fn answer(
    generator: &mut Generator,
    chat: &Chat,
    (turns, stops): (&[Turn], &[String]),
    sampling: &SamplingOptions,
    output: &Output,
) -> Result<Answer, CliError> {
    let stop = StopSignal::default();
    stop_when_asked_to_end(&stop)?;
    let prompt = chat.encode_prompt(turns)?;
    let mut told = Told {
        output,
        text: String::new(),
    };
    let mut answer_text = AnswerText::new(stops);
    let mut problem = None;
    let mut first_token_ms = None;
    let start = Instant::now();
    let generated =
        generator.generate(prompt.as_slice(), sampling, &|| stop.is_set(), &mut |id| {
            first_token_ms.get_or_insert_with(|| start.elapsed().as_secs_f64() * 1000.0);
            match told.tell(answer_text.push(chat.tokenizer(), id)) {
                Ok(false) => Next::GoOn,
                Ok(true) => Next::Leave,
                Err(error) => {
                    problem = Some(error);
                    Next::Leave
                }
            }
        })?;
    if let Some(error) = problem {
        return Err(error);
    }
    let total_ms = start.elapsed().as_secs_f64() * 1000.0;
    let stopped = told.tell(answer_text.finish(chat.tokenizer()))?;
    Ok(Answer {
        text: told.text,
        tokens: generated.ids.len(),
        finish: if stopped {
            Finish::Stop
        } else {
            generated.finish
        },
        first_token_ms,
        total_ms,
    })
}

/// An answer's text so far, told as it comes where people read it.
struct Told<'a> {
    output: &'a Output,
    text: String,
}

impl Told<'_> {
    /// Tells a piece; gives whether a stop string ends the answer.
    fn tell(&mut self, piece: Result<Piece, EngineError>) -> Result<bool, CliError> {
        let piece = piece?;
        self.text.push_str(&piece.text);
        if !self.output.is_json() {
            self.output.text(&piece.text)?;
        }
        Ok(piece.stopped)
    }
}

impl Answer {
    fn to_json(&self) -> Value {
        let finish = match self.finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        };
        let later_ms = self.total_ms - self.first_token_ms.unwrap_or(0.0);
        let tokens_per_second = (self.tokens > 1 && later_ms > 0.0)
            .then(|| (self.tokens - 1) as f64 / later_ms * 1000.0);
        json!({
            "text": self.text,
            "tokens_generated": self.tokens,
            "finish": finish,
            "metrics": {
                "ttft_ms": self.first_token_ms.map(rounded),
                "tps": tokens_per_second.map(rounded),
                "total_time_ms": rounded(self.total_ms),
            },
        })
    }
}

fn turns(options: &Options) -> Result<Vec<Turn>, CliError> {
    let mut turns = Vec::new();
    if let Some(system) = &options.system {
        turns.push(Turn {
            role: Role::System,
            content: system.clone(),
        });
    }
    if let Some(prompt) = &options.question.prompt {
        turns.push(Turn {
            role: Role::User,
            content: prompt.clone(),
        });
    }
    if let Some(path) = &options.question.messages {
        turns.extend(read_messages(path)?);
    }
    Ok(turns)
}

fn read_messages(path: &Path) -> Result<Vec<Turn>, CliError> {
    let wrong = |message: String| CliError::Input(format!("{}: {message}", path.display()));
    let text = fs::read_to_string(path)
        .map_err(|source| CliError::io(path.display().to_string(), source))?;
    let messages: Vec<ChatMessage> =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    messages
        .into_iter()
        .map(|message| {
            let role = match message.role.as_str() {
                "system" => Role::System,
                "user" => Role::User,
                "assistant" => Role::Assistant,
                "tool" => Role::Tool,
                other => return Err(wrong(format!("there is no role `{other}`"))),
            };
            Ok(Turn {
                role,
                content: message.content,
            })
        })
        .collect()
}
