//! The records of a file, whatever its format.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use trainyard_shared::dataset::DatasetFormat;

use crate::MAX_ROW_BYTES;
use crate::array::Elements;
use crate::csv::{self, CsvRecords};
use crate::decompress::Packing;
use crate::error::DatasetError;
use crate::lines::Lines;
use crate::parquet::ParquetRecords;
use crate::record::{Content, Place, Record, RecordProblem};
use crate::sniff::{self, SNIFFED_BYTES};
use crate::source::{FileSource, ReadAt};
use crate::text::Documents;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 * 1024;

type Input = BufReader<Box<dyn Read + Send>>;

/// Gives the records of a file one after the other. After an error there are no more.
pub struct Records {
    reader: Option<Reader>,
}

enum Reader {
    Lines(Lines<Input>),
    Elements(Elements<Input>),
    Csv(CsvRecords<Input>),
    Parquet(Box<ParquetRecords>),
    Documents(Documents<Input>),
}

impl Records {
    /// Opens a file of this machine.
    ///
    /// # Errors
    /// It cannot be read, or its first bytes (of Parquet: its footer) show that it is not of this format.
    pub fn open(path: &Path, format: DatasetFormat) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::Io)?;
        if format == DatasetFormat::Parquet {
            Self::parquet(Arc::new(FileSource::new(file).map_err(DatasetError::Io)?))
        } else {
            Self::stream(Box::new(file), format)
        }
    }

    /// Reads bytes as they come, in any format but Parquet.
    ///
    /// # Errors
    /// As [`Records::open`]. Parquet cannot be read so: its index stands at its end.
    pub fn stream(
        mut bytes: Box<dyn Read + Send>,
        format: DatasetFormat,
    ) -> Result<Self, DatasetError> {
        let mut start = beginning(&mut bytes)?;
        if let Some(packing) = Packing::of(&start) {
            bytes = packing.unpack(Box::new(Cursor::new(start).chain(bytes)))?;
            start = beginning(&mut bytes)?;
        }
        sniff::check(format, &start)?;
        let delimiter = csv::delimiter(format, &start);
        let whole: Box<dyn Read + Send> = Box::new(Cursor::new(start).chain(bytes));
        let input = BufReader::with_capacity(BUFFER_BYTES, whole);
        let reader = match format {
            DatasetFormat::Jsonl => Reader::Lines(Lines::new(input, MAX_ROW_BYTES)),
            DatasetFormat::Json => Reader::Elements(Elements::new(input, MAX_ROW_BYTES)),
            DatasetFormat::Csv | DatasetFormat::Tsv => {
                Reader::Csv(CsvRecords::new(input, delimiter))
            }
            DatasetFormat::Text => Reader::Documents(Documents::new(input)),
            DatasetFormat::Parquet => {
                return Err(DatasetError::damaged(
                    None,
                    "a Parquet file cannot be read before all of it is there",
                ));
            }
        };
        Ok(Self {
            reader: Some(reader),
        })
    }

    /// Reads a Parquet file.
    ///
    /// # Errors
    /// As [`Records::open`].
    pub fn parquet(source: Arc<dyn ReadAt>) -> Result<Self, DatasetError> {
        let reader = ParquetRecords::open(source)?;
        Ok(Self {
            reader: reader.map(|reader| Reader::Parquet(Box::new(reader))),
        })
    }
}

impl Iterator for Records {
    type Item = Result<Record, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.reader.as_mut()?.next();
        if !matches!(next, Ok(Some(_))) {
            self.reader = None;
        }
        next.transpose()
    }
}

impl Reader {
    fn next(&mut self) -> Result<Option<Record>, DatasetError> {
        let json = |place, what, found: Option<Vec<u8>>| Record {
            place,
            content: match found {
                Some(bytes) => Content::Json(bytes),
                None => Content::Problem(RecordProblem::OverLimit {
                    what,
                    limit_bytes: MAX_ROW_BYTES,
                }),
            },
        };
        Ok(match self {
            Self::Lines(lines) => lines
                .next()?
                .map(|(number, line)| json(Place::Line(number), "line", line.ok())),
            Self::Elements(elements) => elements
                .next()?
                .map(|(place, element)| json(place, "element", element.ok())),
            Self::Csv(records) => records.next()?,
            Self::Parquet(records) => records.next()?,
            Self::Documents(documents) => documents.next()?,
        })
    }
}

/// The first bytes, as many as are looked at.
fn beginning(bytes: &mut dyn Read) -> Result<Vec<u8>, DatasetError> {
    let mut start = Vec::new();
    bytes.take(SNIFFED_BYTES as u64).read_to_end(&mut start)?;
    Ok(start)
}

#[cfg(test)]
mod tests;
