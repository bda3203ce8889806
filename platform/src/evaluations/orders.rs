//! What a worker is told of an evaluation.

use std::time::Duration;

use bytestring::ByteString;
use trainyard_shared::ids::{DatasetId, EvaluationId};
use trainyard_shared::message::{
    BaseModel, DatasetSource, StartEvaluation, StartEvaluationData, StopEvaluation, ToWorker,
};

use super::store::EvaluationRow;
use crate::actors::Actors;
use crate::database::DatabaseError;
use crate::datasets;
use crate::error::ApiError;
use crate::models::target;
use crate::storage::StorageKey;

/// A worker may begin its downloads so long after it was told to.
const DOWNLOAD_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// `start_evaluation`.
///
/// # Errors
/// When what it names is not there (any more), or the database fails.
pub async fn start_text(actors: &Actors, row: &EvaluationRow) -> Result<ByteString, ApiError> {
    let target = target::load_named(&actors.database, &row.model).await?;
    let dataset_id = row.dataset_id;
    let dataset = actors
        .database
        .read::<_, DatabaseError, _>(move |c| datasets::store::get(c, dataset_id))
        .await?;
    let key = StorageKey::parse(&dataset.storage_key)?;
    let start = StartEvaluation {
        evaluation_id: row.id(),
        data: StartEvaluationData {
            model_url: target.folder(),
            dataset_url: dataset.storage_key.clone(),
            metrics: row.metrics()?,
            base_model: Some(BaseModel {
                huggingface_id: target.base_model.clone(),
                download_urls: Vec::new(),
            }),
            download_urls: target.download_urls(actors.storage.as_ref()),
            dataset: Some(DatasetSource {
                storage_path: dataset.storage_key,
                download_url: actors.storage.download_url(&key, DOWNLOAD_VALIDITY),
                format: dataset.format,
                id: DatasetId(dataset.id),
                sha256: Some(dataset.sha256),
                size_bytes: u64::try_from(dataset.bytes).ok(),
                max_bad_rows: u64::try_from(dataset.bad_rows)
                    .ok()
                    .filter(|rows| *rows > 0),
            }),
            batch_size: row.batch_size.and_then(|size| u64::try_from(size).ok()),
            max_length: row.max_length.and_then(|length| u64::try_from(length).ok()),
        },
    };
    Ok(ToWorker::StartEvaluation(start).encode().into())
}

/// `stop_evaluation`.
pub fn stop_text(evaluation_id: EvaluationId) -> ByteString {
    let stop = StopEvaluation { evaluation_id };
    ToWorker::StopEvaluation(stop).encode().into()
}
