//! Rows from keys and values.

use serde_json::{Map, Value};

use super::{Prompt, Role, Row, RowProblem, RowShape, Turn};
use crate::json;

/// The row that these keys and values make, or why they make none.
pub(super) fn row(row: &Map<String, Value>) -> Result<Row, RowProblem> {
    if is_something(row.get("tools")) {
        return Err(field("tools", "rows with tools are not supported"));
    }
    match shape_of(row) {
        Some(shape) => of_shape(shape, row),
        None => Err(unknown_shape(row)),
    }
}

fn of_shape(shape: RowShape, row: &Map<String, Value>) -> Result<Row, RowProblem> {
    Ok(match shape {
        RowShape::Messages => Row::Messages(turns(row, "messages", message_turn)?),
        RowShape::Conversations => {
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
            Row::Conversations(chat)
        }
        RowShape::Instruction => Row::Instruction {
            system: optional_text(row, "system")?,
            instruction: not_empty(text_of(row, "instruction")?, "instruction")?,
            input: optional_text(row, "input")?,
            output: text_of(row, "output")?,
        },
        RowShape::PromptCompletion => prompt_completion(row)?,
        RowShape::Text => Row::Text(text_of(row, "text")?),
    })
}

fn is_given(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

/// Given, and no empty list, object or text: how columns look that a row has no use for.
fn is_something(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

/// The first shape all of whose keys are there; where there is none, the first of which any is, for its problem to be
/// told.
fn shape_of(row: &Map<String, Value>) -> Option<RowShape> {
    let (has, names) = (
        |key| is_something(row.get(key)),
        |key| is_given(row.get(key)),
    );
    let shapes = [
        (RowShape::Messages, has("messages"), names("messages")),
        (
            RowShape::Conversations,
            has("conversations"),
            names("conversations"),
        ),
        (
            RowShape::Instruction,
            has("instruction") && names("output"),
            names("instruction"),
        ),
        (
            RowShape::PromptCompletion,
            has("prompt") && names("completion"),
            names("prompt") || names("completion"),
        ),
        (RowShape::Text, names("text"), names("text")),
    ];
    let whole = shapes.iter().find(|(_, is_whole, _)| *is_whole);
    let begun = || shapes.iter().find(|(_, _, is_begun)| *is_begun);
    whole.or_else(begun).map(|(shape, _, _)| *shape)
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
        if is_something(message.get(key)) {
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
