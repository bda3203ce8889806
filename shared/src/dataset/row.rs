//! One row of a data set: which shapes there are and how a line becomes one of them.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::json;

/// One example to train on. A line is of the first of these shapes whose keys it holds with a value
/// other than null; further keys are ignored.
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
        if is_given(row.get("tools")) {
            return Err(field("tools", "rows with tools are not supported"));
        }
        if is_given(row.get("messages")) {
            Ok(Row::Messages(turns(row, "messages", message_turn)?))
        } else if is_given(row.get("conversations")) {
            let mut chat = turns(row, "conversations", sharegpt_turn)?;
            if let Some(content) = optional_text(row, "system")? {
                chat.insert(
                    0,
                    Turn {
                        role: Role::System,
                        content,
                    },
                );
            }
            Ok(Row::Conversations(chat))
        } else if is_given(row.get("instruction")) {
            Ok(Row::Instruction {
                system: optional_text(row, "system")?,
                instruction: not_empty(text_of(row, "instruction")?, "instruction")?,
                input: optional_text(row, "input")?,
                output: text_of(row, "output")?,
            })
        } else if is_given(row.get("prompt")) || is_given(row.get("completion")) {
            prompt_completion(row)
        } else if is_given(row.get("text")) {
            Ok(Row::Text(text_of(row, "text")?))
        } else {
            Err(unknown_shape(row))
        }
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
    /// space. A row without is dropped and counted, not refused.
    pub fn is_trainable(&self) -> bool {
        match self {
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

fn has_answer(turns: &[Turn]) -> bool {
    turns
        .iter()
        .any(|turn| turn.role == Role::Assistant && has_text(&turn.content))
}

fn is_given(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

fn field(field: impl Into<String>, message: impl Into<String>) -> RowProblem {
    RowProblem::Field {
        field: field.into(),
        message: message.into(),
    }
}

fn unknown_shape(row: &Map<String, Value>) -> RowProblem {
    let found = if row.is_empty() {
        "no keys".to_owned()
    } else {
        let name = |(key, value): (&String, &Value)| {
            let key = json::shortened(key);
            if value.is_null() {
                format!("`{key}` (null)")
            } else {
                format!("`{key}`")
            }
        };
        row.iter().take(12).map(name).collect::<Vec<_>>().join(", ")
    };
    RowProblem::UnknownShape { found }
}

fn prompt_completion(row: &Map<String, Value>) -> Result<Row, RowProblem> {
    let prompt = side(row, "prompt")?;
    let completion = side(row, "completion")?;
    match (&prompt, &completion) {
        (Prompt::Text(text), Prompt::Text(_)) if text.is_empty() => {
            Err(field("prompt", "is empty"))
        }
        (Prompt::Text(_), Prompt::Text(_)) | (Prompt::Turns(_), Prompt::Turns(_)) => {
            Ok(Row::PromptCompletion { prompt, completion })
        }
        _ => Err(field(
            "completion",
            "must be a text if the prompt is one, and a list of messages if that is one",
        )),
    }
}

fn side(row: &Map<String, Value>, key: &str) -> Result<Prompt, RowProblem> {
    match row.get(key) {
        Some(Value::Array(_)) => Ok(Prompt::Turns(turns(row, key, message_turn)?)),
        _ => Ok(Prompt::Text(text_of(row, key)?)),
    }
}

type TurnReader = fn(&Map<String, Value>, &str) -> Result<Turn, RowProblem>;

fn turns(row: &Map<String, Value>, key: &str, turn: TurnReader) -> Result<Vec<Turn>, RowProblem> {
    let items = match row.get(key) {
        Some(Value::Array(items)) => items,
        other => return Err(wrong_type(key, "a list of messages", other)),
    };
    if items.is_empty() {
        return Err(field(key, "is empty"));
    }
    let read = |(index, item): (usize, &Value)| {
        let place = format!("{key}[{index}]");
        match item {
            Value::Object(message) => turn(message, &place),
            other => Err(wrong_type(place, "an object", Some(other))),
        }
    };
    items.iter().enumerate().map(read).collect()
}

fn message_turn(message: &Map<String, Value>, place: &str) -> Result<Turn, RowProblem> {
    for key in ["tool_calls", "function_call"] {
        if is_given(message.get(key)) {
            return Err(field(
                format!("{place}.{key}"),
                "tool calls are not supported",
            ));
        }
    }
    let role = match word(message, place, "role")? {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            return Err(unknown_role(
                place,
                "role",
                other,
                "system, user, assistant, tool",
            ));
        }
    };
    Ok(Turn {
        role,
        content: content(message.get("content"), &format!("{place}.content"))?,
    })
}

fn sharegpt_turn(message: &Map<String, Value>, place: &str) -> Result<Turn, RowProblem> {
    let role = match word(message, place, "from")? {
        "system" => Role::System,
        "human" | "user" => Role::User,
        "gpt" | "assistant" | "chatgpt" | "model" => Role::Assistant,
        "tool" | "observation" => Role::Tool,
        other => {
            return Err(unknown_role(
                place,
                "from",
                other,
                "system, human, gpt, tool",
            ));
        }
    };
    Ok(Turn {
        role,
        content: content(message.get("value"), &format!("{place}.value"))?,
    })
}

fn word<'a>(
    message: &'a Map<String, Value>,
    place: &str,
    key: &str,
) -> Result<&'a str, RowProblem> {
    match message.get(key) {
        Some(Value::String(word)) => Ok(word),
        other => Err(wrong_type(format!("{place}.{key}"), "a string", other)),
    }
}

fn unknown_role(place: &str, key: &str, role: &str, known: &str) -> RowProblem {
    field(
        format!("{place}.{key}"),
        format!(
            "`{}` is not known; known are {known}",
            json::shortened(role)
        ),
    )
}

/// A string, or text parts joined.
fn content(value: Option<&Value>, place: &str) -> Result<String, RowProblem> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            let mut joined = String::new();
            for (index, part) in parts.iter().enumerate() {
                match (part.get("type").and_then(Value::as_str), part.get("text")) {
                    (Some("text"), Some(Value::String(text))) => joined.push_str(text),
                    (Some("text") | None, _) => {
                        return Err(field(
                            format!("{place}[{index}]"),
                            "a part is {\"type\":\"text\",\"text\":\"…\"}",
                        ));
                    }
                    (Some(kind), _) => {
                        let message = format!(
                            "parts of type `{}` are not supported",
                            json::shortened(kind)
                        );
                        return Err(field(format!("{place}[{index}]"), message));
                    }
                }
            }
            Ok(joined)
        }
        Some(Value::Array(_)) => Err(field(place, "is empty")),
        other => Err(wrong_type(place, "a string", other)),
    }
}

fn text_of(row: &Map<String, Value>, key: &str) -> Result<String, RowProblem> {
    match row.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong_type(key, "a string", other)),
    }
}

/// A text that may be missing, null or empty; all three mean that there is none.
fn optional_text(row: &Map<String, Value>, key: &str) -> Result<Option<String>, RowProblem> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        other => Err(wrong_type(key, "a string", other)),
    }
}

fn not_empty(text: String, key: &str) -> Result<String, RowProblem> {
    if text.is_empty() {
        Err(field(key, "is empty"))
    } else {
        Ok(text)
    }
}

fn wrong_type(place: impl Into<String>, expected: &str, found: Option<&Value>) -> RowProblem {
    let message = match found {
        None => "is missing".to_owned(),
        Some(value) => format!("{expected} is expected, not {}", json::kind(value)),
    };
    field(place, message)
}

#[cfg(test)]
mod tests;
