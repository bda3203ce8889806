//! Takes in an uploaded data set.
//!
//! 1. A number is reserved by a row that nobody sees.
//! 2. Each chunk goes to the object store and, over a short queue, to a thread that checks the rows; nothing is
//!    held whole. The index of a Parquet file stands at its end: its rows are checked once it is stored.
//! 3. The report decides: refused, nothing is kept; accepted, the file becomes durable and then the row visible.
//!
//! Whatever breaks off in between (the client, the disk, the process) leaves nothing that is ever shown.

use actix_web::web;
use bytes::Bytes;
use serde_json::json;
use std::io::{self, Read};
use std::sync::Arc;
use tokio::sync::mpsc;
use trainyard_datasets::{DatasetError, Records, RowReport, report_on};
use trainyard_shared::dataset::DatasetFormat;

use super::store::{self, Dataset};
use super::stored_file::StoredFile;
use crate::database::{Database, DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::http::UploadBody;
use crate::server::AppState;
use crate::storage::{Expected, ObjectStore, StorageError, StorageKey};
use crate::users;

/// Chunks that may wait for the thread that checks rows.
const QUEUED_CHUNKS: usize = 8;

/// What is to be taken in.
pub(super) struct Upload {
    pub(super) owner_id: i64,
    pub(super) name: String,
    pub(super) format: DatasetFormat,
    pub(super) max_bad_rows: u64,
}

/// Takes in the body. After a refusal it is read on for a while, so that the client sees the answer.
pub(super) async fn take_in(
    state: &web::Data<AppState>,
    upload: Upload,
    mut body: UploadBody,
) -> Result<(Dataset, RowReport), ApiError> {
    let taken = store_checked(state, &upload, &mut body).await;
    if taken.is_err() {
        body.drain().await;
    }
    taken
}

async fn store_checked(
    state: &web::Data<AppState>,
    upload: &Upload,
    body: &mut UploadBody,
) -> Result<(Dataset, RowReport), ApiError> {
    let limit = SizeLimit::of(state, upload.owner_id).await?;
    if body
        .announced_bytes()
        .is_some_and(|size| size > limit.bytes)
    {
        return Err(limit.exceeded());
    }
    let reserved = Reserved::new(state, upload).await?;
    let key = reserved.key.clone();
    let mut writer = state
        .storage
        .create(&key, Expected::at_most(limit.bytes))
        .await?;
    let is_parquet = upload.format == DatasetFormat::Parquet;
    let mut rows = (!is_parquet).then(|| RowThread::start(upload.format));
    while let Some(chunk) = body.next_chunk().await? {
        if let Some(rows) = &mut rows
            && !rows.takes(chunk.clone()).await
        {
            break;
        }
        writer.write(chunk).await.map_err(|error| match error {
            StorageError::TooLarge { .. } => limit.exceeded(),
            other => other.into(),
        })?;
    }
    let (report, stored) = match rows {
        Some(rows) => {
            let report = rows.finish().await?;
            refuse_bad(&report, upload.max_bad_rows)?;
            (report, writer.finish().await?)
        }
        None => {
            let stored = writer.finish().await?;
            let report = check_stored(state.storage.clone(), &key, stored.size_bytes).await?;
            if let Err(refusal) = refuse_bad(&report, upload.max_bad_rows) {
                state.storage.delete(&key).await?;
                return Err(refusal);
            }
            (report, stored)
        }
    };
    let id = reserved.id;
    let (owner_id, found) = (upload.owner_id, report.clone());
    let marked = state
        .database
        .write::<_, ApiError, _>(move |connection| {
            // Asked again: several uploads may have run at once.
            let quota = users::store::get(connection, owner_id)?.max_storage_bytes;
            let used = store::bytes_of_owner(connection, owner_id)?;
            if quota.is_some_and(|quota| {
                used.saturating_add(stored.size_bytes) > quota.max(0).unsigned_abs()
            }) {
                return Err(quota_exceeded());
            }
            Ok(store::mark_ready(connection, id, &stored, &found)?)
        })
        .await;
    match marked {
        Ok(dataset) => {
            reserved.keep();
            Ok((dataset, report))
        }
        Err(error) => {
            state.storage.delete(&key).await?;
            Err(error)
        }
    }
}

fn refuse_bad(report: &RowReport, max_bad_rows: u64) -> Result<(), ApiError> {
    let message = if let Some(damage) = &report.damage {
        damage.to_string()
    } else if report.bad_rows > max_bad_rows {
        match report.problems.first() {
            Some(first) => format!("{} bad rows; the first: {first}", report.bad_rows),
            None => format!("{} bad rows", report.bad_rows),
        }
    } else if report.rows == 0 {
        "the file holds no rows".to_owned()
    } else {
        return Ok(());
    };
    let mut details = json!(report);
    details["accepted"] = json!(false);
    details["max_bad_rows"] = json!(max_bad_rows);
    Err(ApiError::new(ErrorCode::BadRows, message).with_details(details))
}

/// The most that may be uploaded, and whether a setting or the user's quota says so.
struct SizeLimit {
    bytes: u64,
    is_quota: bool,
}

impl SizeLimit {
    async fn of(state: &AppState, owner_id: i64) -> Result<Self, ApiError> {
        let (quota, used) = state
            .database
            .read::<_, DatabaseError, _>(move |connection| {
                let user = users::store::get(connection, owner_id)?;
                Ok((
                    user.max_storage_bytes,
                    store::bytes_of_owner(connection, owner_id)?,
                ))
            })
            .await?;
        let largest = state.config.max_upload_bytes;
        let left = quota.map(|quota| quota.max(0).unsigned_abs().saturating_sub(used));
        Ok(match left {
            Some(left) if left < largest => Self {
                bytes: left,
                is_quota: true,
            },
            _ => Self {
                bytes: largest,
                is_quota: false,
            },
        })
    }

    fn exceeded(&self) -> ApiError {
        if self.is_quota {
            quota_exceeded()
        } else {
            StorageError::TooLarge {
                limit_bytes: self.bytes,
            }
            .into()
        }
    }
}

fn quota_exceeded() -> ApiError {
    ApiError::new(
        ErrorCode::QuotaExceeded,
        "the file is larger than what is left of your storage quota",
    )
}

/// The reserved row of an upload; unless it is kept, it is removed again and the file with it, also when the request is
/// dropped.
struct Reserved {
    id: i64,
    key: StorageKey,
    undo: Option<(Database, Arc<dyn ObjectStore>)>,
}

impl Reserved {
    async fn new(state: &AppState, upload: &Upload) -> Result<Self, ApiError> {
        let (owner_id, name, format) = (upload.owner_id, upload.name.clone(), upload.format);
        let write = move |connection: &mut _| {
            store::insert_uploading(connection, owner_id, &name, format, now())
        };
        let id = state.database.write::<_, DatabaseError, _>(write).await?;
        Ok(Self {
            id,
            key: StorageKey::parse(&store::storage_key(id, format))?,
            undo: Some((state.database.clone(), state.storage.clone())),
        })
    }

    fn keep(mut self) {
        self.undo = None;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some((database, storage)) = self.undo.take() else {
            return;
        };
        let (id, key) = (self.id, self.key.clone());
        actix_rt::spawn(async move {
            if let Err(error) = storage.delete(&key).await {
                // The row stays, by which the next start finds the file.
                tracing::warn!(dataset.id = id, %error, "file of a broken upload not removed");
                return;
            }
            let removed = database
                .write::<_, DatabaseError, _>(move |c| store::delete_uploading(c, id))
                .await;
            if let Err(error) = removed {
                // The next start removes it.
                tracing::warn!(dataset.id = id, %error, "reserved row of a broken upload not removed");
            }
        });
    }
}

/// The thread on which rows are checked: a long line must not hold up other requests.
struct RowThread {
    chunks: mpsc::Sender<Bytes>,
    report: tokio::task::JoinHandle<Result<RowReport, DatasetError>>,
}

impl RowThread {
    fn start(format: DatasetFormat) -> Self {
        let (chunks, queue) = mpsc::channel::<Bytes>(QUEUED_CHUNKS);
        let bytes = ChunkRead {
            queue,
            chunk: Bytes::new(),
        };
        let report = tokio::task::spawn_blocking(move || {
            report_on(Records::stream(Box::new(bytes), format))
        });
        Self { chunks, report }
    }

    /// Passes bytes on; not where the check has ended already, because it found damage.
    async fn takes(&mut self, chunk: Bytes) -> bool {
        self.chunks.send(chunk).await.is_ok()
    }

    async fn finish(self) -> Result<RowReport, ApiError> {
        drop(self.chunks);
        self.report
            .await
            .map_err(ApiError::internal)?
            .map_err(ApiError::internal)
    }
}

/// Chunks as they arrive, as one stream of bytes.
struct ChunkRead {
    queue: mpsc::Receiver<Bytes>,
    chunk: Bytes,
}

impl Read for ChunkRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.queue.blocking_recv() {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(0),
            }
        }
        let count = into.len().min(self.chunk.len());
        into[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}

/// Checks the rows of a stored Parquet file.
async fn check_stored(
    storage: Arc<dyn ObjectStore>,
    key: &StorageKey,
    size_bytes: u64,
) -> Result<RowReport, ApiError> {
    let file = Arc::new(StoredFile::new(storage, key.clone(), size_bytes));
    tokio::task::spawn_blocking(move || report_on(Records::parquet(file)))
        .await
        .map_err(ApiError::internal)?
        .map_err(|error: DatasetError| ApiError::internal(error))
}
