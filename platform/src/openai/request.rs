//! A chat completion as OpenAI's clients ask for it, brought into this platform's words.
//!
//! What would change the answer and is not supported is refused by name; what does not matter here (`user`,
//! `metadata`, …) is passed over.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, invalid};
use crate::inference::request::{Chat, Sampling};
use crate::inference::routes::Stop;

/// Seeds of OpenAI's clients may be any 64-bit number; ours end here.
const SEEDS: i64 = 1 << 53;

/// A chat completion that is asked for.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// `job-123`, or a base model's name.
    pub model: String,
    messages: Vec<MessageParam>,
    /// Answer with server-sent events, the last one `[DONE]`.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    /// The same by its newer name, which wins.
    max_completion_tokens: Option<u64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    seed: Option<i64>,
    /// Only 1.
    n: Option<u64>,
    /// One text, or a list of up to 16.
    #[schema(value_type = Option<Vec<String>>)]
    stop: Option<Stop>,
    /// Not OpenAI's: 0 or -1 means all tokens.
    top_k: Option<i64>,
    /// Not OpenAI's.
    repetition_penalty: Option<f64>,
    /// Only 0.
    presence_penalty: Option<f64>,
    /// Only 0.
    frequency_penalty: Option<f64>,
    /// Only false.
    logprobs: Option<bool>,
    #[schema(value_type = Option<Object>)]
    logit_bias: Option<Map<String, Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Vec<Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    functions: Option<Vec<Value>>,
    response_format: Option<ResponseFormat>,
}

/// What a stream is to hold beside the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// One more chunk before the end with the counts of tokens.
    include_usage: Option<bool>,
}

/// In which form the answer is wanted: only `text`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponseFormat {
    r#type: String,
}

/// One turn of the chat.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessageParam {
    /// `system`, `developer` (the same), `user`, `assistant` or `tool`.
    role: String,
    #[schema(value_type = Option<String>)]
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

/// How the answer is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Telling {
    /// As it comes.
    pub stream: bool,
    /// With the counts of tokens at a stream's end.
    pub include_usage: bool,
}

impl ChatRequest {
    /// The request in this platform's words.
    ///
    /// # Errors
    /// The first parameter that is not taken.
    pub fn checked(self) -> Result<(String, Chat, Sampling, Telling), OpenAiError> {
        self.refuse_unsupported()?;
        let sampling = Sampling {
            temperature: self.temperature,
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            top_p: self.top_p,
            top_k: self.top_k.and_then(|top_k| u64::try_from(top_k).ok()),
            repetition_penalty: self.repetition_penalty,
            seed: self
                .seed
                .and_then(|seed| u64::try_from(seed.rem_euclid(SEEDS)).ok()),
            stop: self.stop.map(Stop::texts).unwrap_or_default(),
        };
        let stream = self.stream.unwrap_or(false);
        let telling = Telling {
            stream,
            include_usage: self
                .stream_options
                .and_then(|options| options.include_usage)
                .unwrap_or(false),
        };
        let messages = self.messages.into_iter().enumerate();
        let messages = messages
            .map(|(index, message)| message.checked(index))
            .collect::<Result<Vec<_>, _>>()?;
        let chat = Chat::new(messages, None);
        let mut problems = chat.problems();
        problems.extend(sampling.problems());
        if problems.is_empty() {
            Ok((self.model, chat, sampling, telling))
        } else {
            Err(invalid(problems))
        }
    }

    fn refuse_unsupported(&self) -> Result<(), OpenAiError> {
        let is_some =
            |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let is_set = |penalty: Option<f64>| penalty.is_some_and(|penalty| penalty != 0.0);
        let is_not_text = |format: &ResponseFormat| format.r#type != "text";
        let refused = [
            ("n", self.n.is_some_and(|n| n != 1), "must be 1"),
            ("tools", is_some(&self.tools), "is not supported"),
            ("functions", is_some(&self.functions), "is not supported"),
            (
                "response_format",
                self.response_format.as_ref().is_some_and(is_not_text),
                "must be text",
            ),
            ("logprobs", self.logprobs == Some(true), "is not supported"),
            (
                "logit_bias",
                self.logit_bias
                    .as_ref()
                    .is_some_and(|bias| !bias.is_empty()),
                "is not supported",
            ),
            (
                "presence_penalty",
                is_set(self.presence_penalty),
                "must be 0; repetition_penalty is supported",
            ),
            (
                "frequency_penalty",
                is_set(self.frequency_penalty),
                "must be 0; repetition_penalty is supported",
            ),
        ];
        match refused.iter().find(|(_, is_refused, _)| *is_refused) {
            Some((param, _, message)) => Err(OpenAiError::invalid(param, *message)),
            None => Ok(()),
        }
    }
}

impl MessageParam {
    /// Its role and text.
    fn checked(self, index: usize) -> Result<(String, String), OpenAiError> {
        let content = match self.content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let mut joined = String::new();
                for part in parts {
                    match (part.r#type.as_str(), part.text) {
                        ("text", Some(text)) => joined.push_str(&text),
                        (kind, _) => {
                            let param = format!("messages[{index}].content");
                            let message =
                                format!("only parts of type text are taken, not {kind:?}");
                            return Err(OpenAiError::invalid(&param, message));
                        }
                    }
                }
                joined
            }
        };
        Ok((self.role, content))
    }
}
