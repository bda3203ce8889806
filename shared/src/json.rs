//! The strict JSON reader that every text from outside goes through (PROTOCOL 11).
//!
//! Beyond what `serde_json` refuses already (bare `NaN`, numbers such as `1e400`, half a surrogate
//! pair, text after the value) it refuses keys that stand twice in one object and nesting deeper
//! than [`MAX_DEPTH`].

mod typed;

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

pub use typed::Typed;

/// Deepest nesting of arrays and objects that is read.
pub const MAX_DEPTH: usize = 64;

/// Why a text is not JSON that we take, with the place where it went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (line {line}, column {column})")]
pub struct JsonError {
    /// What is wrong, for a person.
    pub message: String,
    /// Line of the text, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
}

/// Reads one JSON value that takes up all of `text`.
pub fn parse(text: &str) -> Result<Value, JsonError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = StrictValue { depth: 0 }
        .deserialize(&mut deserializer)
        .map_err(JsonError::from)?;
    deserializer.end().map_err(JsonError::from)?;
    Ok(value)
}

/// What a value is, in words: "a string", "null", …
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        let full = error.to_string();
        let plain = full
            .rsplit_once(" at line ")
            .map_or(full.as_str(), |(message, _)| message);
        // `serde_json` meets the missing partner as a broken escape; say what it is.
        let message = if plain.contains("surrogate") || plain == "unexpected end of hex escape" {
            "lone surrogate: half of a \\u pair without its partner".to_owned()
        } else {
            plain.to_owned()
        };
        Self {
            message,
            line,
            column,
        }
    }
}

/// Builds a [`Value`] and refuses what a lenient reader would let pass.
struct StrictValue {
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for StrictValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let depth = deeper(self.depth)?;
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(StrictValue { depth })? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let depth = deeper(self.depth)?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key `{}` stands twice",
                    shortened(&key)
                )));
            }
            let value = entries.next_value_seed(StrictValue { depth })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

fn deeper<E: serde::de::Error>(depth: usize) -> Result<usize, E> {
    if depth >= MAX_DEPTH {
        return Err(E::custom(format_args!("nested deeper than {MAX_DEPTH}")));
    }
    Ok(depth + 1)
}

/// The first 60 characters of text that a stranger wrote, for use in a message.
pub fn shortened(text: &str) -> String {
    let mut characters = text.chars();
    let mut short: String = characters.by_ref().take(60).collect();
    if characters.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        "[".repeat(levels) + &"]".repeat(levels)
    }

    #[test]
    fn plain_json_is_read_as_it_is() {
        let text = r#"{"a": [1, -2, 2.5, 80.0, 1e3], "b": {"c": null, "d": true}, "e": "é\n\ud83d\ude0a"}"#;
        assert_eq!(
            parse(text).unwrap(),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }

    #[test]
    fn g036_bare_nan_and_infinity_are_malformed() {
        for text in [
            r#"{"loss": NaN}"#,
            r#"{"loss": Infinity}"#,
            r#"{"loss": -Infinity}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn g038_a_number_that_does_not_fit_is_refused() {
        let error = parse(r#"{"loss": 1e400}"#).unwrap_err();
        assert_eq!(error.message, "number out of range");
    }

    #[test]
    fn g039_a_lone_surrogate_is_refused_with_its_place_and_a_pair_is_one_character() {
        for text in [
            r#"{"c": "hi \ud83d"}"#,
            r#"{"c": "a \ud83d b"}"#,
            r#"{"c": "\ude0a"}"#,
            r#"{"c": "\ud83d\u0041"}"#,
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains("lone surrogate"), "{text}: {error}");
            assert!(error.column > 6, "{text}: {error}");
        }
        assert_eq!(parse(r#""\ud83d\ude0a""#).unwrap(), Value::from("😊"));
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_at_any_depth() {
        assert!(
            parse(r#"{"a": 1, "a": 1}"#)
                .unwrap_err()
                .message
                .contains("`a` stands twice")
        );
        assert!(parse(r#"[{"b": {"a": 1, "\u0061": 2}}]"#).is_err());
        assert!(parse(r#"[{"a": 1}, {"a": 2}]"#).is_ok());
    }

    #[test]
    fn nesting_is_read_to_64_and_refused_beyond() {
        assert!(parse(&nested(64)).is_ok());
        assert!(
            parse(&nested(65))
                .unwrap_err()
                .message
                .contains("nested deeper than 64")
        );
        assert!(parse(&nested(100_000)).is_err());
    }

    #[test]
    fn text_after_the_value_is_refused() {
        assert!(parse("{} {}").is_err());
        assert!(parse("").is_err());
    }
}
