//! One row of a data set: which shapes there are and how a line becomes one of them.

mod read;

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::json;
use crate::training::TrainOn;

/// One example to train on. A line is of the first of these shapes all of whose keys it holds, with values
/// that are neither null nor, but for what is to be learned, empty; further keys are ignored.
///
/// | keys | shape |
/// | --- | --- |
/// | `messages` | OpenAI chat: a list of {role, content} |
/// | `conversations` | ShareGPT: a list of {from, value}; `system` may stand beside it |
/// | `instruction`, `output`, `input` where there is one | Alpaca; `system` may stand beside it |
/// | `prompt`, `completion` | both texts, or both lists of {role, content} |
/// | `text` | plain text |
///
/// `content` is a string or a list of parts, all of them `{"type":"text","text":…}`, which are joined
/// without anything between. Tool calls and parts of other types are refused, not left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// A chat in OpenAI's form.
    Messages(Vec<Turn>),
    /// A chat in ShareGPT's form.
    Conversations(Vec<Turn>),
    /// An instruction in Alpaca's form.
    Instruction {
        /// What stands before the instruction as the system's word.
        system: Option<String>,
        /// What is asked. Not empty.
        instruction: String,
        /// What it is asked about. Not empty.
        input: Option<String>,
        /// The answer.
        output: String,
    },
    /// A prompt and what follows it; both of the same kind.
    PromptCompletion {
        /// What is given. Not empty.
        prompt: Prompt,
        /// What is to be learned.
        completion: Prompt,
    },
    /// Plain text.
    Text(String),
}

/// Either side of a prompt–completion pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Turns of a chat.
    Turns(Vec<Turn>),
}

/// One turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What is said. May be empty.
    pub content: String,
}

/// Who speaks in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Sets the scene.
    System,
    /// Asks.
    User,
    /// Answers: what is trained on.
    Assistant,
    /// Gives a tool's result.
    Tool,
}

/// The shapes of rows, by the names that reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowShape {
    /// [`Row::Messages`]
    Messages,
    /// [`Row::Conversations`]
    Conversations,
    /// [`Row::Instruction`]
    Instruction,
    /// [`Row::PromptCompletion`]
    PromptCompletion,
    /// [`Row::Text`]
    Text,
}

/// Why a line is no row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowProblem {
    /// The line is not UTF-8.
    #[error("invalid UTF-8 at byte {byte}")]
    InvalidUtf8 {
        /// The first wrong byte of the line, from 1.
        byte: usize,
    },
    /// The line is not JSON that is taken.
    #[error("not valid JSON at column {column}: {message}")]
    InvalidJson {
        /// What is wrong.
        message: String,
        /// Column in bytes, from 1.
        column: usize,
    },
    /// The line is JSON and no object.
    #[error("a row is a JSON object, not {found}")]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
    /// None of the known keys is there.
    #[error(
        "no known kind of row: it has {found}; known are messages, conversations, instruction and output, \
         prompt and completion, text"
    )]
    UnknownShape {
        /// The keys that are there, in words.
        found: String,
    },
    /// A field does not fit.
    #[error("{field}: {message}")]
    Field {
        /// The field, as `messages[2].content`.
        field: String,
        /// What is wrong with it.
        message: String,
    },
}

/// The keys that rows are made of. All others are ignored.
pub const ROW_KEYS: [&str; 10] = [
    "messages",
    "conversations",
    "system",
    "instruction",
    "input",
    "output",
    "prompt",
    "completion",
    "text",
    "tools",
];

/// Reads one line as a row.
///
/// # Errors
///
/// What is wrong with the line. The line's number is the caller's to add.
pub fn parse_row(line: &[u8]) -> Result<Row, RowProblem> {
    let text = std::str::from_utf8(line).map_err(|error| RowProblem::InvalidUtf8 {
        byte: error.valid_up_to() + 1,
    })?;
    let value = json::parse(text).map_err(|error| RowProblem::InvalidJson {
        message: error.message,
        column: error.column,
    })?;
    let Value::Object(row) = value else {
        return Err(RowProblem::NotAnObject {
            found: json::kind(&value),
        });
    };
    Row::from_keys(&row)
}

impl Row {
    /// The row that these keys and values make.
    ///
    /// # Errors
    ///
    /// Why they make none.
    pub fn from_keys(row: &Map<String, Value>) -> Result<Self, RowProblem> {
        read::row(row)
    }

    /// The row's shape.
    pub const fn shape(&self) -> RowShape {
        match self {
            Self::Messages(_) => RowShape::Messages,
            Self::Conversations(_) => RowShape::Conversations,
            Self::Instruction { .. } => RowShape::Instruction,
            Self::PromptCompletion { .. } => RowShape::PromptCompletion,
            Self::Text(_) => RowShape::Text,
        }
    }

    /// Whether there is anything to train on: an answer, completion or text that is more than white
    /// space; with `all` any text at all. A row without is dropped and counted, not refused.
    pub fn is_trainable(&self, train_on: TrainOn) -> bool {
        match self {
            Self::Messages(turns) | Self::Conversations(turns) if train_on == TrainOn::All => {
                has_words(turns)
            }
            // Instructions and prompts are never empty.
            Self::Instruction { .. } | Self::PromptCompletion { .. }
                if train_on == TrainOn::All =>
            {
                true
            }
            Self::PromptCompletion {
                prompt: Prompt::Turns(turns),
                ..
            } if train_on == TrainOn::Assistant && has_answer(turns) => true,
            Self::Messages(turns) | Self::Conversations(turns) => has_answer(turns),
            Self::Instruction { output, .. } => has_text(output),
            Self::PromptCompletion {
                completion: Prompt::Turns(turns),
                ..
            } => has_answer(turns),
            Self::PromptCompletion {
                completion: Prompt::Text(text),
                ..
            }
            | Self::Text(text) => has_text(text),
        }
    }
}

impl Role {
    /// The word for the role in a chat template.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl RowShape {
    /// The shape's name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Conversations => "conversations",
            Self::Instruction => "instruction",
            Self::PromptCompletion => "prompt_completion",
            Self::Text => "text",
        }
    }
}

impl fmt::Display for RowShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

fn has_text(text: &str) -> bool {
    !text.trim().is_empty()
}

fn has_words(turns: &[Turn]) -> bool {
    turns.iter().any(|turn| has_text(&turn.content))
}

fn has_answer(turns: &[Turn]) -> bool {
    turns
        .iter()
        .any(|turn| turn.role == Role::Assistant && has_text(&turn.content))
}

#[cfg(test)]
mod tests;
