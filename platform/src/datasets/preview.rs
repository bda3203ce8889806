//! Shows the first rows of a data set without reading all of it.

use std::io::Cursor;
use std::sync::Arc;

use futures_util::StreamExt;
use serde::Serialize;
use serde_json::Value;
use trainyard_datasets::{DatasetError, Record, Records};
use trainyard_shared::dataset::{DatasetFormat, RowShape};
use utoipa::ToSchema;

use super::stored_file::StoredFile;
use crate::error::ApiError;
use crate::storage::{ByteRange, ObjectStore, StorageError, StorageKey};

/// So much of a file is looked at, unless it is a Parquet file.
const MAX_BYTES: u64 = 1 << 20;

/// Begins the reading.
type Opening = Box<dyn FnOnce() -> Result<Records, DatasetError> + Send>;

/// One row of a data set.
#[derive(Debug, Serialize, ToSchema)]
pub struct PreviewedLine {
    /// The line on which the row begins, from 1; in a Parquet file the row's number.
    line: u64,
    /// The place in words: `line 3`, `element 2 (line 17)`, `row 5`.
    place: String,
    /// The row's shape; null where it is no row.
    #[schema(value_type = Option<String>)]
    shape: Option<RowShape>,
    /// The row as it stands in the file; of columns those that rows are made of.
    row: Option<Value>,
    /// Why it is no row.
    problem: Option<String>,
}

/// The first `limit` rows; those that lie wholly within the first MiB of the file, unless it is a Parquet file.
pub(super) async fn first_lines(
    storage: Arc<dyn ObjectStore>,
    key: StorageKey,
    format: DatasetFormat,
    limit: usize,
) -> Result<Vec<PreviewedLine>, ApiError> {
    let size_bytes = storage.info(&key).await?.size_bytes;
    let (records, is_whole): (Opening, bool) = match format {
        DatasetFormat::Parquet => {
            let file = Arc::new(StoredFile::new(storage, key, size_bytes));
            (Box::new(move || Records::parquet(file)), true)
        }
        format => {
            let start = beginning(storage.as_ref(), &key).await?;
            let is_whole = start.len() as u64 == size_bytes;
            let bytes = Box::new(Cursor::new(start));
            (Box::new(move || Records::stream(bytes, format)), is_whole)
        }
    };
    let read = move || {
        let mut records = records()?;
        let mut found: Vec<Record> = Vec::new();
        while found.len() <= limit {
            match records.next() {
                Some(Ok(record)) => found.push(record),
                // The part that is looked at breaks off within a row.
                Some(Err(error)) if is_whole => return Err(error),
                Some(Err(_)) => break,
                None => {
                    if !is_whole {
                        found.pop();
                    }
                    break;
                }
            }
        }
        found.truncate(limit);
        Ok::<_, DatasetError>(found.iter().map(previewed).collect())
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(ApiError::internal)?
        .map_err(ApiError::internal)
}

/// The first MiB of an object, or all of it.
async fn beginning(storage: &dyn ObjectStore, key: &StorageKey) -> Result<Vec<u8>, ApiError> {
    let range = ByteRange::FromTo(0, MAX_BYTES - 1);
    let mut object = storage.open(key, Some(range)).await?;
    let mut start = Vec::new();
    while let Some(chunk) = object.chunks.next().await {
        let chunk = chunk.map_err(|source| StorageError::Io {
            operation: "read",
            key: key.to_string(),
            source,
        })?;
        start.extend_from_slice(&chunk);
    }
    Ok(start)
}

fn previewed(record: &Record) -> PreviewedLine {
    let (shape, row, problem) = match record.row() {
        Ok(row) => (Some(row.shape()), record.to_json(), None),
        Err(problem) => (None, None, Some(problem.to_string())),
    };
    PreviewedLine {
        line: record.place.number(),
        place: record.place.to_string(),
        shape,
        row,
        problem,
    }
}
