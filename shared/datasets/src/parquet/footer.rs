//! The footer of a Parquet file: looked over first, then read.

use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::pages::Chunks;
use super::thrift::{LIST, STRUCT, ThriftError, Walker};
use crate::error::DatasetError;

/// The largest footer that is read: that of some ten thousand row groups.
const MAX_FOOTER_BYTES: u64 = 16 * 1024 * 1024;
/// Most columns and groups of columns, and how deep they may be nested: the reader calls itself for each level.
const MAX_SCHEMA_ELEMENTS: usize = 10_000;
const MAX_SCHEMA_DEPTH: usize = 32;

const MAGIC: &[u8] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8] = b"PARE";
const TAIL_BYTES: u64 = 8;

/// Reads the footer.
pub(super) fn read(source: &Chunks) -> Result<ParquetMetaData, DatasetError> {
    let size = source.size_bytes();
    let damaged = |message: &str| DatasetError::damaged(None, message);
    let start = source.bytes(0, size.min(4096))?;
    crate::sniff::check(trainyard_shared::dataset::DatasetFormat::Parquet, &start)?;
    if size < TAIL_BYTES + 4 {
        return Err(damaged("the Parquet file ends too early"));
    }
    let tail = source.bytes(size - TAIL_BYTES, TAIL_BYTES)?;
    let (length, magic) = tail.split_at(4);
    if magic == ENCRYPTED_MAGIC {
        return Err(damaged("the Parquet file is encrypted"));
    }
    if magic != MAGIC {
        return Err(damaged(
            "the Parquet file does not end with `PAR1`: its end is missing",
        ));
    }
    let length = u64::from(u32::from_le_bytes(
        length
            .try_into()
            .map_err(|_| damaged("the Parquet file ends too early"))?,
    ));
    if length > MAX_FOOTER_BYTES {
        return Err(damaged(&format!(
            "the Parquet footer of {length} bytes is longer than the {MAX_FOOTER_BYTES} that are read"
        )));
    }
    if length + TAIL_BYTES + 4 > size {
        return Err(damaged("the Parquet footer is longer than the file"));
    }
    let footer = source.bytes(size - TAIL_BYTES - length, length)?;
    look_over(&footer)?;
    Ok(ParquetMetaDataReader::decode_metadata(&footer)?)
}

/// Refuses a schema that is too large or too deep.
fn look_over(footer: &[u8]) -> Result<(), DatasetError> {
    let damaged = |_: ThriftError| DatasetError::damaged(None, "the Parquet footer is damaged");
    let mut walker = Walker::new(footer);
    let mut last = 0;
    while let Some(field) = walker.field(last).map_err(damaged)? {
        last = field.id;
        if (field.id, field.kind) == (2, LIST) {
            let (count, kind) = walker.list().map_err(damaged)?;
            if kind != STRUCT || count > MAX_SCHEMA_ELEMENTS {
                return Err(DatasetError::damaged(
                    None,
                    format!("a Parquet schema of {count} elements is not read"),
                ));
            }
            schema(&mut walker, count)?;
        } else {
            walker.skip(field.kind).map_err(damaged)?;
        }
    }
    Ok(())
}

/// Walks over `count` schema elements, which come parents first.
fn schema(walker: &mut Walker<'_>, count: usize) -> Result<(), DatasetError> {
    let damaged = |_: ThriftError| DatasetError::damaged(None, "the Parquet schema is damaged");
    /// Field of a schema element that says how many children it has.
    const NUM_CHILDREN: i16 = 5;
    // Children that are still to come, per open group.
    let mut open: Vec<i64> = Vec::new();
    for _ in 0..count {
        let (mut last, mut children) = (0, 0);
        while let Some(field) = walker.field(last).map_err(damaged)? {
            last = field.id;
            if field.id == NUM_CHILDREN && matches!(field.kind, 4..=6) {
                children = walker.zigzag().map_err(damaged)?;
            } else {
                walker.skip(field.kind).map_err(damaged)?;
            }
        }
        while open.pop_if(|left| *left == 0).is_some() {}
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Err(DatasetError::damaged(
                None,
                format!("a Parquet schema nested deeper than {MAX_SCHEMA_DEPTH} is not read"),
            ));
        }
    }
    Ok(())
}
