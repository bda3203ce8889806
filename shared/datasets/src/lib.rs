//! Data sets: files of rows in every format, read as a stream, and the report on all their rows.
//!
//! 1. [`Records::open`] (or [`Records::stream`], for bytes that arrive) checks that the bytes are of the named
//!    format, unpacks gzip and zstd, and gives one [`Record`] after the other, each with its [`Place`].
//! 2. [`Record::row`] makes a record a [`Row`](trainyard_shared::dataset::Row) or says why it is none. It needs
//!    nothing but the record, so records can become rows on many threads.
//! 3. [`RowTally`] counts rows and keeps what is wrong with the bad ones.
//!
//! The platform checks a file with it when it is uploaded, the worker reads its training data with it, and
//! `trainyard datasets check` does the same at home. Whatever a file holds, memory stays within a few times
//! [`MAX_ROW_BYTES`]: records are read one by one, and sizes that a file only claims are not believed.

mod array;
mod csv;
mod decompress;
mod duplicates;
mod error;
mod lines;
mod parquet;
mod record;
mod records;
mod report;
mod sniff;
mod source;
#[cfg(test)]
mod testing;
mod text;

pub use duplicates::Duplicates;
pub use error::DatasetError;
pub use record::{Place, Record, RecordProblem};
pub use records::Records;
pub use report::{LineProblem, MAX_KEPT_PROBLEMS, RowReport, RowTally, report_on};
pub use source::{FileSource, ReadAt};
pub use text::TEXT_ROW_BYTES;

/// Longest row, in bytes as it stands in the file; of Parquet the bytes of its values.
pub const MAX_ROW_BYTES: usize = 64 * 1024 * 1024;
