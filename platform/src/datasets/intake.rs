//! Takes in an uploaded data set.
//!
//! 1. A number is reserved by a row that nobody sees.
//! 2. Each chunk goes to the object store and, over a short queue, to a thread that checks the rows; nothing is
//!    held whole.
//! 3. The report decides: refused, nothing is kept; accepted, the file becomes durable and then the row visible.
//!
//! Whatever breaks off in between (the client, the disk, the process) leaves nothing that is ever shown.

use actix_web::web;
use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc;
use trainyard_shared::dataset::{RowChecker, RowReport};

use super::store::{self, Dataset};
use crate::database::{Database, DatabaseError, now};
use crate::error::{ApiError, ErrorCode};
use crate::http::UploadBody;
use crate::server::AppState;
use crate::storage::{Expected, StorageError, StorageKey};
use crate::users;

/// Chunks that may wait for the thread that checks rows.
const QUEUED_CHUNKS: usize = 8;

/// What is to be taken in.
pub(super) struct Upload {
    pub(super) owner_id: i64,
    pub(super) name: String,
    pub(super) format: String,
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
    let reserved = Reserved::new(&state.database, upload).await?;
    let key = StorageKey::parse(&format!("datasets/{}/data.{}", reserved.id, upload.format))?;
    let mut writer = state
        .storage
        .create(&key, Expected::at_most(limit.bytes))
        .await?;
    let mut rows = RowThread::start();
    while let Some(chunk) = body.next_chunk().await? {
        rows.check(chunk.clone()).await?;
        writer.write(chunk).await.map_err(|error| match error {
            StorageError::TooLarge { .. } => limit.exceeded(),
            other => other.into(),
        })?;
    }
    let report = rows.finish().await?;
    refuse_bad(&report, upload.max_bad_rows)?;
    let stored = writer.finish().await?;
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
    let message = if report.bad_rows > max_bad_rows {
        match report.problems.first() {
            Some(first) => format!(
                "{} bad rows; the first: line {}: {}",
                report.bad_rows, first.line, first.message
            ),
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

/// The reserved row of an upload; unless it is kept, it is removed again, also when the request is dropped.
struct Reserved {
    id: i64,
    database: Option<Database>,
}

impl Reserved {
    async fn new(database: &Database, upload: &Upload) -> Result<Self, ApiError> {
        let (owner_id, name, format) =
            (upload.owner_id, upload.name.clone(), upload.format.clone());
        let write = move |connection: &mut _| {
            store::insert_uploading(connection, owner_id, &name, &format, now())
        };
        let id = database.write::<_, DatabaseError, _>(write).await?;
        Ok(Self {
            id,
            database: Some(database.clone()),
        })
    }

    fn keep(mut self) {
        self.database = None;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some(database) = self.database.take() else {
            return;
        };
        let id = self.id;
        actix_rt::spawn(async move {
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
    report: tokio::task::JoinHandle<RowReport>,
}

impl RowThread {
    fn start() -> Self {
        let (chunks, mut queue) = mpsc::channel::<Bytes>(QUEUED_CHUNKS);
        let report = tokio::task::spawn_blocking(move || {
            let mut checker = RowChecker::new();
            while let Some(chunk) = queue.blocking_recv() {
                checker.feed(&chunk);
            }
            checker.finish()
        });
        Self { chunks, report }
    }

    async fn check(&mut self, chunk: Bytes) -> Result<(), ApiError> {
        self.chunks
            .send(chunk)
            .await
            .map_err(|_| ApiError::internal("the check of rows ended early"))
    }

    async fn finish(self) -> Result<RowReport, ApiError> {
        drop(self.chunks);
        self.report.await.map_err(ApiError::internal)
    }
}
