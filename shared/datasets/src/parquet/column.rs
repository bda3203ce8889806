//! One leaf column: its levels and values, a row at a time.

use std::sync::Arc;

use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::metadata::RowGroupMetaData;
use parquet::schema::types::ColumnDescPtr;
use serde_json::{Number, Value};

use super::pages::{CheckedPages, Chunks, PageBudget};
use crate::error::DatasetError;
use crate::record::{RecordProblem, text};

/// What is known of a leaf before a row group is opened.
#[derive(Debug, Default)]
pub(super) struct ColumnPlan {
    /// Its path in the schema, for a person.
    pub(super) name: String,
    column: usize,
    descriptor: Option<ColumnDescPtr>,
}

impl ColumnPlan {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Adds what the schema says of it.
    pub(super) fn complete(
        &mut self,
        column: usize,
        descriptor: ColumnDescPtr,
    ) -> Result<(), DatasetError> {
        self.name = descriptor.path().string();
        if descriptor.physical_type() == parquet::basic::Type::INT96 {
            return Err(DatasetError::damaged(
                None,
                format!("column `{}`: text is expected, not a time", self.name),
            ));
        }
        self.column = column;
        self.descriptor = Some(descriptor);
        Ok(())
    }

    /// Opens the column's part of a row group.
    pub(super) fn open(
        &self,
        source: &Arc<Chunks>,
        group: &RowGroupMetaData,
        budget: &PageBudget,
    ) -> Result<Column, DatasetError> {
        let damaged = || DatasetError::damaged(None, "a row group lacks a column");
        let descriptor = self.descriptor.clone().ok_or_else(damaged)?;
        let chunk = group.columns().get(self.column).ok_or_else(damaged)?;
        let rows = usize::try_from(group.num_rows()).unwrap_or(0);
        let pages = CheckedPages::new(source, chunk, rows, budget)?;
        let (max_def, max_rep) = (descriptor.max_def_level(), descriptor.max_rep_level());
        Ok(Column {
            name: self.name.clone(),
            reader: get_column_reader(descriptor, Box::new(pages)),
            max_def,
            max_rep,
            def: Vec::new(),
            rep: Vec::new(),
            levels: 0,
            level: 0,
            value: 0,
            values: Values::default(),
        })
    }
}

/// A leaf column with the levels and values of one row.
pub(super) struct Column {
    name: String,
    reader: ColumnReader,
    max_def: i16,
    max_rep: i16,
    def: Vec<i16>,
    rep: Vec<i16>,
    levels: usize,
    /// The next level and the next value.
    level: usize,
    value: usize,
    values: Values,
}

/// The values of one row, in the vector of the column's type.
#[derive(Debug, Default)]
struct Values {
    booleans: Vec<bool>,
    integers: Vec<i32>,
    longs: Vec<i64>,
    floats: Vec<f32>,
    doubles: Vec<f64>,
    bytes: Vec<ByteArray>,
    fixed: Vec<FixedLenByteArray>,
}

impl Column {
    /// Reads the levels and values of the next row.
    pub(super) fn read_row(&mut self) -> Result<(), DatasetError> {
        self.def.clear();
        self.rep.clear();
        (self.level, self.value) = (0, 0);
        let (def, rep) = (Some(&mut self.def), Some(&mut self.rep));
        macro_rules! read {
            ($reader:expr, $values:ident) => {{
                self.values.$values.clear();
                $reader.read_records(1, def, rep, &mut self.values.$values)?
            }};
        }
        let (rows, _, levels) = match &mut self.reader {
            ColumnReader::BoolColumnReader(reader) => read!(reader, booleans),
            ColumnReader::Int32ColumnReader(reader) => read!(reader, integers),
            ColumnReader::Int64ColumnReader(reader) => read!(reader, longs),
            ColumnReader::FloatColumnReader(reader) => read!(reader, floats),
            ColumnReader::DoubleColumnReader(reader) => read!(reader, doubles),
            ColumnReader::ByteArrayColumnReader(reader) => read!(reader, bytes),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => read!(reader, fixed),
            // Refused when the plan was made.
            ColumnReader::Int96ColumnReader(_) => (0, 0, 0),
        };
        if rows != 1 {
            return Err(self.damaged("has fewer rows than its row group"));
        }
        self.levels = levels;
        Ok(())
    }

    /// Bytes of the row's values.
    pub(super) fn row_bytes(&self) -> usize {
        let bytes: usize = self.values.bytes.iter().map(ByteArray::len).sum();
        let fixed: usize = self.values.fixed.iter().map(|value| value.len()).sum();
        bytes + fixed
    }

    /// Values of the row, missing ones counted.
    pub(super) const fn row_elements(&self) -> usize {
        self.levels
    }

    /// Whether all of the row has been taken.
    pub(super) const fn is_used_up(&self) -> bool {
        self.level == self.levels
    }

    /// Definition level of the next value; none where the row has no more.
    pub(super) fn peek_def(&self) -> Option<i16> {
        if self.level == self.levels {
            None
        } else if self.max_def == 0 {
            Some(0)
        } else {
            self.def.get(self.level).copied()
        }
    }

    /// Repetition level of the next value; none where the row has no more.
    pub(super) fn peek_rep(&self) -> Option<i16> {
        if self.level == self.levels {
            None
        } else if self.max_rep == 0 {
            Some(0)
        } else {
            self.rep.get(self.level).copied()
        }
    }

    /// Takes the next value, null where there is none. The outer error is damage of the file, the inner one of the row.
    pub(super) fn take(&mut self) -> Result<Result<Value, RecordProblem>, DatasetError> {
        let def = self
            .peek_def()
            .ok_or_else(|| self.damaged("does not fit the columns beside it"))?;
        self.level += 1;
        if def < self.max_def {
            return Ok(Ok(Value::Null));
        }
        let value = self
            .values
            .get(&self.reader, self.value)
            .ok_or_else(|| self.damaged("has fewer values than it says"))?;
        self.value += 1;
        Ok(match value {
            Scalar::Bytes(bytes) => {
                text(bytes, &self.name).map(|text| Value::String(text.to_owned()))
            }
            Scalar::Json(value) => Ok(value),
        })
    }

    fn damaged(&self, message: &str) -> DatasetError {
        DatasetError::damaged(
            None,
            format!("the Parquet column `{}` {message}", self.name),
        )
    }
}

/// One value.
enum Scalar<'a> {
    Bytes(&'a [u8]),
    Json(Value),
}

impl Values {
    fn get(&self, reader: &ColumnReader, at: usize) -> Option<Scalar<'_>> {
        let float = |value: f64| Number::from_f64(value).map_or(Value::Null, Value::Number);
        Some(match reader {
            ColumnReader::BoolColumnReader(_) => Scalar::Json(Value::Bool(*self.booleans.get(at)?)),
            ColumnReader::Int32ColumnReader(_) => Scalar::Json((*self.integers.get(at)?).into()),
            ColumnReader::Int64ColumnReader(_) => Scalar::Json((*self.longs.get(at)?).into()),
            ColumnReader::FloatColumnReader(_) => {
                Scalar::Json(float(f64::from(*self.floats.get(at)?)))
            }
            ColumnReader::DoubleColumnReader(_) => Scalar::Json(float(*self.doubles.get(at)?)),
            ColumnReader::ByteArrayColumnReader(_) => Scalar::Bytes(self.bytes.get(at)?.data()),
            ColumnReader::FixedLenByteArrayColumnReader(_) => {
                Scalar::Bytes(self.fixed.get(at)?.data())
            }
            ColumnReader::Int96ColumnReader(_) => return None,
        })
    }
}
