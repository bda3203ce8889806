//! Exports as a kind of task: what a worker is told of one, what it says, and what counts as its files.

use chrono::NaiveDateTime;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::{ExportId, JobId};
use trainyard_shared::message::{
    ArtifactFile, BaseModel, ExportCompleted, ExportCompletedData, ExportFailed, ExportProgress,
    FromWorker, StartExport, StartExportData, StopExport, TaskFailedData, TaskProgressData,
    ToDashboard, ToWorker,
};

use super::store::{self, ExportRow};
use crate::actors::Actors;
use crate::artifacts::{self, ArtifactError, check_stored, export_folder};
use crate::database::{DatabaseError, DbConnection};
use crate::error::ApiError;
use crate::models::target;
use crate::tasks::directory::Directory;
use crate::tasks::state::{End, Phase, Said};
use crate::tasks::{Facts, Kind};
use crate::workers::placement::Abilities;

/// Results of jobs are written in another form.
pub enum Exports {}

impl Kind for Exports {
    const NOUN: &'static str = "export";
    type Id = ExportId;
    type Row = ExportRow;
    type Product = Vec<ArtifactFile>;

    fn directory(actors: &Actors) -> &Directory<Self> {
        &actors.exports
    }

    fn facts(row: &ExportRow) -> Facts<'_, ExportId> {
        row.facts()
    }

    fn can(abilities: &Abilities) -> bool {
        abilities.exports
    }

    async fn start(actors: &Actors, row: &ExportRow) -> Result<ToWorker, ApiError> {
        let job_id = row.job();
        let target = target::load(&actors.database, job_id).await?;
        Ok(ToWorker::from(StartExport {
            export_id: row.id(),
            job_id,
            data: StartExportData {
                format: row.format()?,
                weights: row.weights()?,
                model_url: target.folder().unwrap_or_default(),
                download_urls: target.download_urls(actors.storage.as_ref()),
                base_model: BaseModel {
                    huggingface_id: target.base_model,
                    download_urls: Vec::new(),
                },
                output_path: export_folder(job_id, row.id()),
            },
        }))
    }

    fn stop(export_id: ExportId) -> ToWorker {
        ToWorker::from(StopExport { export_id })
    }

    fn said(message: FromWorker) -> Result<(ExportId, Said<Vec<ArtifactFile>>), Box<FromWorker>> {
        Ok(match message {
            FromWorker::ExportProgress(m) => (m.export_id, Said::Progress(m.data)),
            FromWorker::ExportCompleted(m) => (m.export_id, Said::Completed(m.data.files)),
            FromWorker::ExportFailed(m) => {
                let (error, kind) = (m.data.error, m.data.failure_kind);
                (m.export_id, Said::Failed { error, kind })
            }
            other => return Err(Box::new(other)),
        })
    }

    async fn check(
        actors: &Actors,
        row: &ExportRow,
        files: &Vec<ArtifactFile>,
    ) -> Result<(), ArtifactError> {
        refuse_foreign(row.job(), row.id(), files)?;
        check_stored(actors.storage.as_ref(), row.job(), files).await
    }

    async fn clear_away(actors: &Actors, row: &ExportRow) {
        let (job, id) = (row.job(), row.id());
        let deleted = artifacts::delete_of_export(actors.storage.as_ref(), job, id).await;
        if let Err(error) = deleted {
            tracing::warn!(job.id = %job, export.id = %id, %error, "files of an export are left until its job is deleted");
        }
    }

    fn progress_message(export_id: ExportId, data: TaskProgressData) -> ToDashboard {
        ToDashboard::from(ExportProgress {
            worker_id: None,
            export_id,
            data,
        })
    }

    fn completed_message(row: &ExportRow, files: Vec<ArtifactFile>) -> ToDashboard {
        ToDashboard::from(ExportCompleted {
            worker_id: None,
            export_id: row.id(),
            job_id: row.job(),
            message_id: None,
            data: ExportCompletedData { files },
        })
    }

    fn failed_message(
        export_id: ExportId,
        error: String,
        failure_kind: Option<FailureKind>,
    ) -> ToDashboard {
        ToDashboard::from(ExportFailed {
            worker_id: None,
            export_id,
            message_id: None,
            data: TaskFailedData {
                error,
                failure_kind,
            },
        })
    }

    fn row(connection: &mut DbConnection, id: ExportId) -> Result<ExportRow, DatabaseError> {
        store::row(connection, id)
    }

    fn under_way(connection: &mut DbConnection) -> Result<Vec<ExportRow>, DatabaseError> {
        store::under_way(connection)
    }

    fn queue(connection: &mut DbConnection) -> Result<Vec<ExportId>, DatabaseError> {
        store::queue(connection)
    }

    fn save(
        connection: &mut DbConnection,
        row: &ExportRow,
        phase: Phase,
        end: Option<&End<Vec<ArtifactFile>>>,
        now: NaiveDateTime,
    ) -> Result<(), DatabaseError> {
        store::save(connection, row.id(), phase, end, now)?;
        match end {
            Some(End::Product(files)) => store::list_files(connection, row.job(), files, now),
            _ => Ok(()),
        }
    }
}

/// An export has at least one file, and no file of anything else of its job.
fn refuse_foreign(
    job: JobId,
    export: ExportId,
    files: &[ArtifactFile],
) -> Result<(), ArtifactError> {
    let folder = export_folder(job, export);
    let foreign = |key: &str, reason: String| ArtifactError::ForeignKey {
        key: key.to_owned(),
        job,
        reason,
    };
    if files.is_empty() {
        return Err(foreign(&folder, "no file is named".to_owned()));
    }
    match files.iter().find(|file| !file.key.starts_with(&folder)) {
        Some(file) => Err(foreign(&file.key, format!("it does not lie in {folder}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn an_export_s_files_lie_in_its_own_folder() {
        let refused = |keys: &[&str]| {
            let file = |key: &&str| ArtifactFile {
                key: (*key).to_owned(),
                size_bytes: 1,
                sha256: String::new(),
            };
            let files: Vec<_> = keys.iter().map(file).collect();
            refuse_foreign(JobId(1), ExportId(7), &files).is_err()
        };
        assert!(!refused(&["models/job-1/exports/7/a.gguf"]));
        assert!(refused(&[]));
        for foreign in [
            "models/job-1/final/a",
            "models/job-1/exports/70/a",
            "models/job-2/exports/7/a",
        ] {
            assert!(
                refused(&["models/job-1/exports/7/a.gguf", foreign]),
                "{foreign}"
            );
        }
    }
}
