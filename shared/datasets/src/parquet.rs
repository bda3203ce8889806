//! Rows of an Apache Parquet file, one at a time.
//!
//! 1. The footer is walked ([`footer`]) and then read: which columns there are, where their pages lie.
//! 2. Of the columns whose names rows are made of, each leaf is read by a [`column::Column`], a page at a time.
//!    [`pages`] looks at each page before it is unpacked, so that sizes which are only claimed cost nothing.
//! 3. The leaves' values of one row are put together ([`assemble`]) to the JSON value that the row stands for.
//!
//! Strings, lists and structs are what rows are made of; a string in `messages` is read as JSON. Snappy, gzip, zstd
//! and LZ4 are unpacked.

mod assemble;
mod column;
mod footer;
mod pages;
mod thrift;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::Type;
use serde_json::{Map, Value};
use trainyard_shared::dataset::ROW_KEYS;

use crate::MAX_ROW_BYTES;
use crate::error::{DatasetError, columns_in_words};
use crate::record::{Content, Place, Record, RecordProblem, column_value};
use crate::source::ReadAt;
use assemble::Node;
use column::{Column, ColumnPlan};
use pages::{Chunks, PageBudget, SourceFault};

/// Most elements that the lists of one row may have in all.
pub(crate) const MAX_ELEMENTS: usize = 64 * 1024;

/// Reads rows.
pub(crate) struct ParquetRecords {
    source: Arc<Chunks>,
    metadata: Arc<ParquetMetaData>,
    /// The columns that rows are made of.
    fields: Vec<(&'static str, Node)>,
    plans: Vec<ColumnPlan>,
    columns: Vec<Column>,
    next_group: usize,
    rows_left: u64,
    row: u64,
}

impl ParquetRecords {
    /// Opens a file; none where it has no bytes at all.
    pub(crate) fn open(source: Arc<dyn ReadAt>) -> Result<Option<Self>, DatasetError> {
        if source.size_bytes() == 0 {
            return Ok(None);
        }
        without_panic(|| {
            let source = Arc::new(Chunks::new(source));
            let metadata = footer::read(&source)?;
            let schema = metadata.file_metadata().schema();
            let mut plans = Vec::new();
            let fields = fields(schema, &mut plans)?;
            for (plan, column) in plans.iter_mut().zip(leaves(&metadata, &fields)) {
                plan.complete(
                    column,
                    metadata.file_metadata().schema_descr().column(column),
                )?;
            }
            Ok(Some(Self {
                source,
                metadata: Arc::new(metadata),
                fields,
                plans,
                columns: Vec::new(),
                next_group: 0,
                rows_left: 0,
                row: 0,
            }))
        })
    }

    /// The next row.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, DatasetError> {
        let place = Place::Row(self.row + 1);
        without_panic(|| self.read()).map_err(|error| match error {
            DatasetError::Damaged { message, .. } => DatasetError::damaged(place, message),
            other => other,
        })
    }

    fn read(&mut self) -> Result<Option<Record>, DatasetError> {
        while self.rows_left == 0 {
            if self.next_group == self.metadata.num_row_groups() {
                return Ok(None);
            }
            let group = self.metadata.row_group(self.next_group);
            self.columns = open_columns(&self.source, group, &self.plans)?;
            self.rows_left = u64::try_from(group.num_rows()).map_err(|_| {
                DatasetError::damaged(None, "a row group has a negative number of rows")
            })?;
            self.next_group += 1;
        }
        self.rows_left -= 1;
        self.row += 1;
        let (mut bytes, mut elements) = (0, 0);
        for column in &mut self.columns {
            column.read_row()?;
            bytes += column.row_bytes();
            elements += column.row_elements();
        }
        let content = if bytes > MAX_ROW_BYTES {
            Content::Problem(RecordProblem::OverLimit {
                what: "row",
                limit_bytes: MAX_ROW_BYTES,
            })
        } else if elements > MAX_ELEMENTS + self.columns.len() {
            Content::Problem(RecordProblem::TooManyElements {
                limit: MAX_ELEMENTS,
            })
        } else {
            match self.keys()? {
                Ok(keys) => Content::Keys(keys),
                Err(problem) => Content::Problem(problem),
            }
        };
        Ok(Some(Record {
            place: Place::Row(self.row),
            content,
        }))
    }

    /// The keys and values of the row that the columns hold. The outer error is damage of the file, the inner one of
    /// the row.
    fn keys(&mut self) -> Result<Result<Map<String, Value>, RecordProblem>, DatasetError> {
        let mut keys = Map::new();
        let mut problem = None;
        for (name, node) in &self.fields {
            let value = match node.value(&mut self.columns)? {
                Ok(Value::String(text)) => column_value(name, &text),
                other => other,
            };
            match value {
                Ok(value) => {
                    keys.insert((*name).to_owned(), value);
                }
                Err(found) => problem = problem.or(Some(found)),
            }
        }
        if self.columns.iter().any(|column| !column.is_used_up()) {
            return Err(DatasetError::damaged(
                None,
                "columns of one list do not fit together",
            ));
        }
        Ok(problem.map_or(Ok(keys), Err))
    }
}

/// The columns of a row group.
fn open_columns(
    source: &Arc<Chunks>,
    group: &RowGroupMetaData,
    plans: &[ColumnPlan],
) -> Result<Vec<Column>, DatasetError> {
    let budget = PageBudget::new();
    plans
        .iter()
        .map(|plan| plan.open(source, group, &budget))
        .collect()
}

/// The top-level columns whose names rows are made of.
fn fields(
    schema: &Type,
    plans: &mut Vec<ColumnPlan>,
) -> Result<Vec<(&'static str, Node)>, DatasetError> {
    let mut fields: Vec<(&'static str, Node)> = Vec::new();
    for field in schema.get_fields() {
        let Some(key) = ROW_KEYS.into_iter().find(|key| *key == field.name()) else {
            continue;
        };
        if fields.iter().any(|(there, _)| *there == key) {
            return Err(DatasetError::DuplicateColumn {
                name: key.to_owned(),
            });
        }
        fields.push((key, Node::of(field, plans)?));
    }
    let only_beside = |(name, _): &(&str, Node)| matches!(*name, "system" | "input" | "tools");
    if fields.iter().all(only_beside) {
        let names = schema.get_fields().iter().map(|field| field.name());
        return Err(DatasetError::NoKnownColumn {
            found: columns_in_words(names),
        });
    }
    Ok(fields)
}

/// Numbers of the leaf columns below `fields`, in order.
fn leaves(metadata: &ParquetMetaData, fields: &[(&'static str, Node)]) -> Vec<usize> {
    let schema = metadata.file_metadata().schema_descr();
    let is_read = |column: &usize| {
        let root = schema.get_column_root(*column);
        fields.iter().any(|(name, _)| *name == root.name())
    };
    (0..schema.num_columns()).filter(is_read).collect()
}

/// A damaged file may lead the Parquet reader into a panic: that is damage like any other.
fn without_panic<T>(work: impl FnOnce() -> Result<T, DatasetError>) -> Result<T, DatasetError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(DatasetError::damaged(
            None,
            "the Parquet data is damaged: its parts contradict each other",
        ))
    })
}

impl From<ParquetError> for DatasetError {
    fn from(error: ParquetError) -> Self {
        let message = match error {
            ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
                Ok(error) => match error.downcast::<SourceFault>() {
                    Ok(SourceFault(error)) => return Self::from(error),
                    Err(content) => content.to_string(),
                },
                Err(other) => other.to_string(),
            },
            ParquetError::General(message) => message,
            other => other.to_string(),
        };
        Self::damaged(None, format!("the Parquet data cannot be read: {message}"))
    }
}

#[cfg(test)]
mod tests;
