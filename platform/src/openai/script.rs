//! An answer in the words of OpenAI: whole, or in chunks.

use serde_json::{Value, json};
use trainyard_shared::FinishReason;

use super::error::OpenAiError;
use super::request::Telling;
use crate::inference::events::{Script, event};
use crate::inference::record::{Record, Shown};

/// The last event of a stream.
const DONE: &str = "[DONE]";

/// The whole answer.
pub fn completion(record: &Record) -> Value {
    let shown = record.shown();
    let usage = usage(&shown);
    json!({
        "id": id(record), "object": "chat.completion", "created": record.created_at.timestamp(),
        "model": record.request.target.name(), "system_fingerprint": null,
        "choices": [{
            "index": 0, "logprobs": null, "finish_reason": finish_reason(&shown),
            "message": {"role": "assistant", "content": shown.text, "refusal": null},
        }],
        "usage": usage,
    })
}

/// The answer in chunks.
pub struct Chunks {
    telling: Telling,
}

impl Chunks {
    /// Told in this way.
    pub fn new(telling: Telling) -> Self {
        Self { telling }
    }

    fn chunk(&self, record: &Record, delta: &Value, finish_reason: Value) -> String {
        let choice =
            json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
        self.text(record, &json!([choice]), Value::Null)
    }

    fn text(&self, record: &Record, choices: &Value, usage: Value) -> String {
        let mut chunk = json!({
            "id": id(record), "object": "chat.completion.chunk", "created": record.created_at.timestamp(),
            "model": record.request.target.name(), "system_fingerprint": null, "choices": choices,
        });
        if self.telling.include_usage {
            chunk["usage"] = usage;
        }
        event("", &chunk.to_string())
    }
}

impl Script for Chunks {
    fn begin(&mut self, record: &Record) -> String {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        self.chunk(record, &delta, Value::Null)
    }

    fn tokens(&mut self, record: &Record, tokens: Vec<String>) -> String {
        self.chunk(record, &json!({"content": tokens.concat()}), Value::Null)
    }

    fn end(&mut self, record: &Record) -> String {
        let shown = record.shown();
        if let Some(failure) = shown.failure {
            return event("", &OpenAiError::from(failure).to_json());
        }
        let mut text = self.chunk(record, &json!({}), json!(finish_reason(&shown)));
        if self.telling.include_usage {
            text.push_str(&self.text(record, &json!([]), usage(&shown)));
        }
        text.push_str(&event("", DONE));
        text
    }
}

fn id(record: &Record) -> String {
    format!("chatcmpl-{}", record.id)
}

/// OpenAI knows no word for an answer that somebody else has cancelled; it just ends.
fn finish_reason(shown: &Shown) -> &'static str {
    match shown.finish_reason {
        Some(FinishReason::Length) => "length",
        _ => "stop",
    }
}

fn usage(shown: &Shown) -> Value {
    let prompt = shown.prompt_tokens.unwrap_or(0);
    let completion = shown.tokens();
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    })
}
