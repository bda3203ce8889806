//! One record of a file: its place, its bytes or values, and the row that they make.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use trainyard_shared::dataset::{Row, RowProblem, parse_row};
use trainyard_shared::json;

use crate::csv::Header;

/// Where a record stands in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It begins on this line, from 1.
    Line(u64),
    /// An element of a JSON array, from 1, and the line on which it begins.
    Element {
        /// The element's number, from 1.
        element: u64,
        /// The line on which it begins, from 1.
        line: u64,
    },
    /// A row of a Parquet file, from 1.
    Row(u64),
}

impl Place {
    /// The line's number, or the row's where a file has no lines.
    pub const fn number(self) -> u64 {
        match self {
            Self::Line(number) | Self::Element { line: number, .. } | Self::Row(number) => number,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Element { element, line } => write!(f, "element {element} (line {line})"),
            Self::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// Why a record is no row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordProblem {
    /// It is longer than is read.
    #[error("{what} over limit: longer than {limit_bytes} bytes")]
    OverLimit {
        /// What it is: a line, a row.
        what: &'static str,
        /// The limit.
        limit_bytes: usize,
    },
    /// A list in it has too many elements.
    #[error("row over limit: a list of more than {limit} elements")]
    TooManyElements {
        /// The limit.
        limit: usize,
    },
    /// Its content makes no row.
    #[error(transparent)]
    Row(#[from] RowProblem),
    /// It has more or fewer cells than there are columns.
    #[error("{found} cells, but the header has {expected}")]
    CellCount {
        /// Cells that it has.
        found: usize,
        /// Columns of the header.
        expected: usize,
    },
    /// Nothing stands in the columns that rows are made of.
    #[error("all of its known columns are empty")]
    NothingGiven,
    /// A quoted cell does not end before the file does.
    #[error("a quote that opens in this record is never closed")]
    UnclosedQuote,
    /// A cell or a document is no text that is taken.
    #[error("{name}: {message}")]
    Text {
        /// The column, or what else it is.
        name: String,
        /// What is wrong.
        message: String,
    },
}

impl RecordProblem {
    pub(crate) fn text(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Text {
            name: name.into(),
            message: message.into(),
        }
    }
}

/// One record, not yet a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Where it stands.
    pub place: Place,
    pub(crate) content: Content,
}

/// What a record holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// One JSON value.
    Json(Vec<u8>),
    /// Cells one behind the other, and where each ends.
    Cells {
        header: Arc<Header>,
        bytes: Vec<u8>,
        ends: Vec<usize>,
    },
    /// Keys and values.
    Keys(Map<String, Value>),
    /// A document.
    Text(Vec<u8>),
    /// It could not be read.
    Problem(RecordProblem),
}

impl Record {
    /// The row that the record makes.
    ///
    /// # Errors
    /// Why it makes none.
    pub fn row(&self) -> Result<Row, RecordProblem> {
        match &self.content {
            Content::Json(bytes) => Ok(parse_row(bytes)?),
            Content::Cells {
                header,
                bytes,
                ends,
            } => Ok(Row::from_keys(&header.keys(bytes, ends)?)?),
            Content::Keys(keys) => Ok(Row::from_keys(keys)?),
            Content::Text(bytes) => Ok(Row::Text(text(bytes, "text")?.to_owned())),
            Content::Problem(problem) => Err(problem.clone()),
        }
    }

    /// The record as JSON, where it is any.
    pub fn to_json(&self) -> Option<Value> {
        match &self.content {
            Content::Json(bytes) => json::parse(std::str::from_utf8(bytes).ok()?).ok(),
            Content::Cells {
                header,
                bytes,
                ends,
            } => header.keys(bytes, ends).ok().map(Value::Object),
            Content::Keys(keys) => Some(Value::Object(keys.clone())),
            Content::Text(bytes) => {
                let text = text(bytes, "text").ok()?;
                Some(serde_json::json!({ "text": text }))
            }
            Content::Problem(_) => None,
        }
    }

    /// About how many bytes it takes up in memory.
    pub fn size_bytes(&self) -> usize {
        const SMALL: usize = 64;
        SMALL
            + match &self.content {
                Content::Json(bytes) | Content::Text(bytes) | Content::Cells { bytes, .. } => {
                    bytes.len()
                }
                Content::Keys(keys) => keys.values().map(value_bytes).sum(),
                Content::Problem(_) => 0,
            }
    }
}

fn value_bytes(value: &Value) -> usize {
    const SMALL: usize = 64;
    SMALL
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(value_bytes).sum(),
            Value::Object(fields) => fields.values().map(value_bytes).sum(),
            _ => 0,
        }
}

/// Bytes that must be text without NUL.
pub(crate) fn text<'a>(bytes: &'a [u8], name: &str) -> Result<&'a str, RecordProblem> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        RecordProblem::text(
            name,
            format!("invalid UTF-8 at byte {}", error.valid_up_to() + 1),
        )
    })?;
    match text.find('\0') {
        None => Ok(text),
        Some(at) => Err(RecordProblem::text(
            name,
            format!("a NUL byte at byte {}", at + 1),
        )),
    }
}

/// The value that a column's text stands for: a chat is JSON in a cell, an empty chat none.
pub(crate) fn column_value(name: &str, text: &str) -> Result<Value, RecordProblem> {
    match name {
        "messages" | "conversations" | "tools" if text.trim().is_empty() => Ok(Value::Null),
        "messages" | "conversations" => json::parse(text).map_err(|error| {
            RecordProblem::text(
                name,
                format!("must hold a chat as JSON, but is not valid JSON: {error}"),
            )
        }),
        _ => Ok(Value::String(text.to_owned())),
    }
}
