//! Evaluations as a kind of task: what a worker is told of one, and what it says.

use std::time::Duration;

use chrono::NaiveDateTime;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{DatasetId, EvaluationId};
use trainyard_shared::message::{
    BaseModel, DatasetSource, EvaluationCompleted, EvaluationCompletedData, EvaluationFailed,
    EvaluationMetrics, EvaluationProgress, FromWorker, StartEvaluation, StartEvaluationData,
    StopEvaluation, TaskFailedData, TaskProgressData, ToDashboard, ToWorker,
};

use super::store::{self, EvaluationRow};
use crate::actors::Actors;
use crate::artifacts::ArtifactError;
use crate::database::{DatabaseError, DbConnection};
use crate::datasets;
use crate::error::ApiError;
use crate::models::target;
use crate::storage::StorageKey;
use crate::tasks::directory::Directory;
use crate::tasks::state::{End, Phase, Said};
use crate::tasks::{Facts, Kind};
use crate::workers::placement::Abilities;

/// A worker may begin its downloads so long after it was told to.
const DOWNLOAD_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// Models are measured.
pub enum Evaluations {}

impl Kind for Evaluations {
    const NOUN: &'static str = "evaluation";
    type Id = EvaluationId;
    type Row = EvaluationRow;
    type Product = EvaluationMetrics;

    fn directory(actors: &Actors) -> &Directory<Self> {
        &actors.evaluations
    }

    fn facts(row: &EvaluationRow) -> Facts<'_, EvaluationId> {
        row.facts()
    }

    fn can(_: &Abilities) -> bool {
        true
    }

    async fn start(actors: &Actors, row: &EvaluationRow) -> Result<ToWorker, ApiError> {
        start(actors, row).await.map(ToWorker::from)
    }

    fn stop(evaluation_id: EvaluationId) -> ToWorker {
        ToWorker::from(StopEvaluation { evaluation_id })
    }

    fn said(
        message: FromWorker,
    ) -> Result<(EvaluationId, Said<EvaluationMetrics>), Box<FromWorker>> {
        Ok(match message {
            FromWorker::EvaluationProgress(m) => (m.evaluation_id, Said::Progress(m.data)),
            FromWorker::EvaluationCompleted(m) => {
                (m.evaluation_id, Said::Completed(possible(m.data.metrics)))
            }
            FromWorker::EvaluationFailed(m) => {
                let (error, kind) = (m.data.error, m.data.failure_kind);
                (m.evaluation_id, Said::Failed { error, kind })
            }
            other => return Err(Box::new(other)),
        })
    }

    async fn check(
        _: &Actors,
        _: &EvaluationRow,
        _: &EvaluationMetrics,
    ) -> Result<(), ArtifactError> {
        Ok(())
    }

    async fn clear_away(_: &Actors, _: &EvaluationRow) {}

    fn progress_message(evaluation_id: EvaluationId, data: TaskProgressData) -> ToDashboard {
        ToDashboard::from(EvaluationProgress {
            worker_id: None,
            evaluation_id,
            data,
        })
    }

    fn completed_message(row: &EvaluationRow, metrics: EvaluationMetrics) -> ToDashboard {
        ToDashboard::from(EvaluationCompleted {
            worker_id: None,
            evaluation_id: row.id(),
            message_id: None,
            data: EvaluationCompletedData { metrics },
        })
    }

    fn failed_message(
        evaluation_id: EvaluationId,
        error: String,
        failure_kind: Option<FailureKind>,
    ) -> ToDashboard {
        ToDashboard::from(EvaluationFailed {
            worker_id: None,
            evaluation_id,
            message_id: None,
            data: TaskFailedData {
                error,
                failure_kind,
            },
        })
    }

    fn row(
        connection: &mut DbConnection,
        id: EvaluationId,
    ) -> Result<EvaluationRow, DatabaseError> {
        store::row(connection, id)
    }

    fn under_way(connection: &mut DbConnection) -> Result<Vec<EvaluationRow>, DatabaseError> {
        store::under_way(connection)
    }

    fn queue(connection: &mut DbConnection) -> Result<Vec<EvaluationId>, DatabaseError> {
        store::queue(connection)
    }

    fn save(
        connection: &mut DbConnection,
        row: &EvaluationRow,
        phase: Phase,
        end: Option<&End<EvaluationMetrics>>,
        now: NaiveDateTime,
    ) -> Result<(), DatabaseError> {
        store::save(connection, row.id(), phase, end, now)
    }
}

async fn start(actors: &Actors, row: &EvaluationRow) -> Result<StartEvaluation, ApiError> {
    let target = target::load_named(&actors.database, &row.model).await?;
    let dataset_id = row.dataset_id;
    let dataset = actors
        .database
        .read::<_, DatabaseError, _>(move |c| datasets::store::get(c, dataset_id))
        .await?;
    let key = StorageKey::parse(&dataset.storage_key)?;
    Ok(StartEvaluation {
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
    })
}

/// The figures without those that no model can have: a gap is shown in their place, as for one that is not finite.
fn possible(figures: EvaluationMetrics) -> EvaluationMetrics {
    EvaluationMetrics {
        perplexity: figures.perplexity.filter(|value| *value >= 1.0),
        loss: figures.loss.filter(|value| *value >= 0.0),
        token_accuracy: figures
            .token_accuracy
            .filter(|value| (0.0..=1.0).contains(value)),
        tokens: figures.tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_no_model_can_have_are_gaps() {
        let absurd = EvaluationMetrics {
            perplexity: Some(-5.0),
            loss: Some(-0.1),
            token_accuracy: Some(77.0),
            tokens: Some(9),
        };
        let kept = EvaluationMetrics {
            tokens: Some(9),
            ..EvaluationMetrics::default()
        };
        assert_eq!(possible(absurd), kept);
    }
}
