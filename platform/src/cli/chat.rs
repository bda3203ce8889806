//! `trainyard chat`: talks with a model on a worker, token by token.

use clap::Args;
use reqwest::{Method, Response};
use serde_json::{Map, Value, json};
use std::io::{self, BufRead, IsTerminal, Write};

use super::client::Platform;
use super::error::CliError;
use super::output::{Output, printable, remark};

/// Options of `chat`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: Model,
    /// Say this, print the answer and end; without it lines are read from standard input.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// The system message before the chat.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Sampling temperature; 0 always takes the likeliest token.
    #[arg(long)]
    temperature: Option<f64>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "COUNT")]
    max_tokens: Option<u64>,
    /// Sample from the smallest set of tokens with this probability together.
    #[arg(long)]
    top_p: Option<f64>,
    /// Sample from this many likeliest tokens.
    #[arg(long)]
    top_k: Option<u64>,
    /// Makes tokens that stand already less likely by this factor.
    #[arg(long)]
    repetition_penalty: Option<f64>,
    /// Seed of the sampling: the same gives the same answer.
    #[arg(long)]
    seed: Option<u64>,
    /// A text that ends the answer; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

/// Which model is meant.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct Model {
    /// The job whose adapter answers: the number that `jobs list` shows.
    #[arg(long, value_name = "ID")]
    job: Option<u64>,
    /// A base model's name, as HuggingFaceTB/SmolLM2-135M-Instruct, or job- and a job's number.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

impl Model {
    /// The fields of a request that name it.
    pub fn fields(&self) -> Map<String, Value> {
        let job = self.job.map(|job| ("job_id".to_owned(), json!(job)));
        let model = self.model.as_ref();
        let model = model.map(|model| ("model".to_owned(), json!(model)));
        job.into_iter().chain(model).collect()
    }
}

/// Answers one message, or all lines of standard input.
pub async fn run(options: &Options, platform: &Platform, output: &Output) -> Result<(), CliError> {
    let mut chat = Vec::new();
    if let Some(message) = &options.message {
        answer(options, platform, output, &mut chat, message).await?;
        return Ok(());
    }
    let is_terminal = io::stdin().is_terminal();
    if is_terminal {
        remark("Say something; Ctrl-D ends the chat.");
    }
    loop {
        if is_terminal {
            // Where standard error is closed nobody sees the prompt anyway.
            let _ = write!(io::stderr(), "> ");
        }
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        if read.map_err(|source| CliError::io("standard input", source))? == 0 {
            return Ok(());
        }
        if !line.trim().is_empty() {
            answer(options, platform, output, &mut chat, line.trim()).await?;
        }
    }
}

/// One turn: the message and its answer go behind the chat.
async fn answer(
    options: &Options,
    platform: &Platform,
    output: &Output,
    chat: &mut Vec<Value>,
    message: &str,
) -> Result<(), CliError> {
    chat.push(json!({"role": "user", "content": message}));
    let request = platform
        .request(Method::POST, &["api", "inference"])?
        .json(&body(options, chat));
    let mut events = Events::of(platform.send(request).await?);
    while let Some(text) = events.next(platform).await? {
        let event: Value = serde_json::from_str(&text)
            .map_err(|error| CliError::UnexpectedAnswer(error.to_string()))?;
        if output.is_json() {
            output.line(&text)?;
        }
        match event["type"].as_str() {
            Some("inference_tokens") if !output.is_json() => show(&event)?,
            Some("inference_completed") => {
                if !output.is_json() {
                    output.line("")?;
                }
                chat.push(json!({"role": "assistant", "content": event["data"]["text"]}));
                return Ok(());
            }
            Some("inference_failed") => {
                let error = event["data"]["error"].as_str().unwrap_or_default();
                return Err(CliError::Input(format!("no answer: {}", printable(error))));
            }
            _ => {}
        }
    }
    Err(CliError::UnexpectedAnswer(
        "the answer broke off".to_owned(),
    ))
}

fn body(options: &Options, chat: &[Value]) -> Value {
    let mut body = options.model.fields();
    body.insert("messages".to_owned(), json!(chat));
    body.insert("stream".to_owned(), json!(true));
    let optional = [
        (
            "system_prompt",
            options.system.as_ref().map(|text| json!(text)),
        ),
        ("temperature", options.temperature.map(|value| json!(value))),
        ("max_tokens", options.max_tokens.map(|value| json!(value))),
        ("top_p", options.top_p.map(|value| json!(value))),
        ("top_k", options.top_k.map(|value| json!(value))),
        (
            "repetition_penalty",
            options.repetition_penalty.map(|value| json!(value)),
        ),
        ("seed", options.seed.map(|value| json!(value))),
        (
            "stop",
            (!options.stop.is_empty()).then(|| json!(options.stop)),
        ),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            body.insert(field.to_owned(), value);
        }
    }
    Value::Object(body)
}

/// Shows the next tokens as they are, without a line's end.
fn show(event: &Value) -> Result<(), CliError> {
    let tokens = event["data"]["tokens"].as_array();
    let text: String = tokens
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut stdout = io::stdout().lock();
    write!(stdout, "{}", printable(&text))
        .and_then(|()| stdout.flush())
        .map_err(|source| CliError::io("standard output", source))
}

/// The data of server-sent events, one after the other.
struct Events {
    response: Response,
    buffer: Vec<u8>,
}

impl Events {
    fn of(response: Response) -> Self {
        Self {
            response,
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self, platform: &Platform) -> Result<Option<String>, CliError> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let block = String::from_utf8_lossy(&block);
                if let Some(data) = block.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return Ok(Some(data.to_owned()));
                }
            }
            let chunk = self.response.chunk().await;
            match chunk.map_err(|error| platform.unreachable(&error))? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_request_holds_what_was_given_and_nothing_else() {
        let line = [
            "chat",
            "--job",
            "7",
            "-m",
            "hi",
            "--temperature",
            "0",
            "--stop",
            "a",
            "--stop",
            "b",
        ];
        let options = Line::try_parse_from(line).unwrap().options;
        let chat = [json!({"role": "user", "content": "hi"})];
        assert_eq!(
            body(&options, &chat),
            json!({
                "job_id": 7, "messages": chat, "stream": true, "temperature": 0.0, "stop": ["a", "b"]
            })
        );
    }

    #[test]
    fn one_model_is_named_not_two_and_not_none() {
        assert!(Line::try_parse_from(["chat"]).is_err());
        assert!(Line::try_parse_from(["chat", "--job", "7", "--model", "a/b"]).is_err());
    }
}
