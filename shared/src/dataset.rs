//! The rows of data sets: what a row may be, and the names of the formats that files of rows come in.
//!
//! The files themselves are read by the crate `trainyard-datasets`, for the platform and the worker alike.

mod format;
mod row;

pub use format::{DatasetFormat, UnknownFormat};
pub use row::{Prompt, ROW_KEYS, Role, Row, RowProblem, RowShape, Turn, parse_row};
