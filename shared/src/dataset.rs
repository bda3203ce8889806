//! The rows of a data set: from bytes to lines, from a line to a row, and the report on all of them.
//!
//! The platform checks rows when a data set is uploaded, the worker reads them to train, and
//! `trainyard datasets check` does the same at home: all three by this code. It does no I/O.
//!
//! The format is JSON lines: UTF-8 with or without a byte-order mark, LF or CRLF, one object a line,
//! blank lines skipped. What a row may look like is told at [`Row`].

mod lines;
mod report;
mod row;

pub use lines::{LineOverLimit, LineSplitter, MAX_LINE_BYTES};
pub use report::{LineProblem, MAX_KEPT_PROBLEMS, RowChecker, RowReport};
pub use row::{Prompt, Role, Row, RowProblem, RowShape, Turn, parse_row};

/// The one format of data sets that is read: JSON lines.
pub const JSONL: &str = "jsonl";
