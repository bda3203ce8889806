//! Shows the first rows of a data set without reading all of it.

use futures_util::StreamExt;
use serde::Serialize;
use serde_json::Value;
use trainyard_shared::dataset::{LineSplitter, RowShape, parse_row};
use trainyard_shared::json;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::storage::{ByteRange, ObjectStore, StorageError, StorageKey};

/// So much of a file is looked at.
const MAX_BYTES: u64 = 1 << 20;

/// One line of a data set.
#[derive(Debug, Serialize, ToSchema)]
pub struct PreviewedLine {
    /// The line's number, from 1.
    line: u64,
    /// The row's shape; null where the line is no row.
    #[schema(value_type = Option<String>)]
    shape: Option<RowShape>,
    /// The row as it stands in the file.
    row: Option<Value>,
    /// Why the line is no row.
    problem: Option<String>,
}

/// The first `limit` lines that lie wholly within the first MiB of the file.
pub(super) async fn first_lines(
    storage: &dyn ObjectStore,
    key: &StorageKey,
    limit: usize,
) -> Result<Vec<PreviewedLine>, ApiError> {
    let mut object = storage
        .open(key, Some(ByteRange::FromTo(0, MAX_BYTES - 1)))
        .await?;
    let is_whole = object.length == object.info.size_bytes;
    let (mut splitter, mut lines) = (LineSplitter::new(), Vec::new());
    let mut take = |number, line: &[u8]| {
        if lines.len() < limit {
            lines.push(previewed(number, line));
        }
    };
    while let Some(chunk) = object.chunks.next().await {
        let chunk = chunk.map_err(|source| StorageError::Io {
            operation: "read",
            key: key.to_string(),
            source,
        })?;
        splitter.feed(&chunk, |number, line| {
            if let Ok(line) = line {
                take(number, line);
            }
        });
    }
    if is_whole {
        splitter.finish(|number, line| {
            if let Ok(line) = line {
                take(number, line);
            }
        });
    }
    Ok(lines)
}

fn previewed(number: u64, line: &[u8]) -> PreviewedLine {
    match parse_row(line) {
        Ok(row) => PreviewedLine {
            line: number,
            shape: Some(row.shape()),
            row: std::str::from_utf8(line)
                .ok()
                .and_then(|text| json::parse(text).ok()),
            problem: None,
        },
        Err(problem) => PreviewedLine {
            line: number,
            shape: None,
            row: None,
            problem: Some(problem.to_string()),
        },
    }
}
