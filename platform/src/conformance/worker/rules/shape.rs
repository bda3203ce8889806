//! What fields have to look like.

use serde_json::Value;

use crate::conformance::report::{Outcome, Problem, excerpt, expect};

/// What a field has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text that is not empty.
    Text,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// A number, or null where there is nothing to measure.
    NumberOrNull,
    /// True or false.
    Flag,
    /// An object.
    Object,
}

impl Kind {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::NumberOrNull => "a number or null",
            Self::Flag => "true or false",
            Self::Object => "an object",
        }
    }

    fn fits(self, value: Option<&Value>) -> bool {
        let Some(value) = value else { return false };
        match self {
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::Integer => value.is_u64() || value.is_i64(),
            Self::Number => value.is_number(),
            Self::NumberOrNull => value.is_number() || value.is_null(),
            Self::Flag => value.is_boolean(),
            Self::Object => value.is_object(),
        }
    }
}

/// Every message has all of these fields, named by JSON pointers.
///
/// # Errors
/// The first field that is missing or of another kind; blocked where there is no message.
pub fn all_have<'a>(
    messages: impl IntoIterator<Item = &'a Value>,
    what: &str,
    fields: &[(&str, Kind)],
) -> Outcome {
    let mut seen = false;
    for message in messages {
        seen = true;
        for (pointer, kind) in fields {
            let name = pointer.trim_start_matches('/').replace('/', ".");
            let expected = format!("{name}, {}", kind.in_words());
            expect(kind.fits(message.pointer(pointer)), expected, || {
                excerpt(&message.to_string())
            })?;
        }
    }
    if seen {
        Ok(())
    } else {
        Err(Problem::Blocked(format!("there was no {what}")))
    }
}

/// The first of what came, or what is missing.
pub fn first<T>(came: impl IntoIterator<Item = T>, expected: &str) -> Outcome<T> {
    came.into_iter()
        .next()
        .ok_or_else(|| Problem::broken(expected, "nothing"))
}
