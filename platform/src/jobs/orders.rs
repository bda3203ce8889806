//! What a job tells others to do: its worker to start or stop, the supervisor that a worker is free, the
//! dispatcher to look, the metrics writer to keep something.

use std::time::Duration;

use bytestring::ByteString;
use trainyard_shared::FailureKind;
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{
    BaseModel, DatasetSource, DownloadFile, JobFailedData, ResumePoint, StartTraining,
    StartTrainingData, StopTraining, ToWorker,
};

use super::event::{Command, Event, Report};
use super::history::{self, ArtifactRow};
use super::state::JobState;
use super::store::JobFacts;
use crate::actors::Actors;
use crate::artifacts::job_folders;
use crate::database::{DatabaseError, now};
use crate::datasets;
use crate::error::ApiError;
use crate::metrics::store::{Line, Point};
use crate::metrics::writer::{KeepLine, KeepPoint};
use crate::storage::StorageKey;
use crate::workers::dispatcher::Poke;
use crate::workers::supervisor::{Release, SendCommand, Sent};

/// A worker may begin its downloads so long after it was told to.
const DOWNLOAD_VALIDITY: Duration = Duration::from_secs(24 * 60 * 60);

/// An order, with what it is about.
pub struct Order<'a> {
    /// The job.
    pub facts: &'a JobFacts,
    /// Its state, which is committed.
    pub state: &'a JobState,
    /// What led to it.
    pub event: &'a Event,
}

impl Order<'_> {
    /// Gives the order. The answer is what must happen to the job because of it, if anything.
    pub async fn give(&self, actors: &Actors, command: Command) -> Option<Event> {
        match command {
            Command::Start(worker) => match self.start_text(actors).await {
                Ok(text) => self.send(actors, worker, text).await,
                Err(error) => Some(self.cannot_start(worker, &error)),
            },
            Command::Stop(worker) => {
                let job_id = self.facts.id;
                let stop = ToWorker::StopTraining(StopTraining { job_id });
                self.send(actors, worker, stop.encode().into()).await
            }
            Command::Enqueue => {
                // A full mailbox means that the dispatcher is about to look anyway.
                let _ = actors.dispatcher.try_send(Poke);
                None
            }
            Command::Release {
                worker,
                said_by_worker,
            } => {
                let release = Release {
                    worker,
                    job: self.facts.id,
                    said_by_worker,
                };
                // Fails only when the platform stops; so do the following.
                let _ = actors.supervisor.send(release).await;
                None
            }
            Command::KeepPoint => {
                if let Some(point) = self.point() {
                    let _ = actors.metrics.send(KeepPoint(point)).await;
                }
                None
            }
            Command::KeepLine => {
                if let Some(line) = self.line() {
                    let _ = actors.metrics.send(KeepLine(line)).await;
                }
                None
            }
        }
    }

    async fn send(&self, actors: &Actors, worker: WorkerId, text: ByteString) -> Option<Event> {
        let job = self.facts.id;
        let command = SendCommand { worker, job, text };
        match actors.supervisor.send(command).await {
            Ok(Sent::OnItsWay) | Err(_) => None,
            Ok(Sent::Away) => Some(Event::WorkerDisconnected(worker)),
            Ok(Sent::NotHolding) => Some(Event::WorkerLost(worker)),
        }
    }

    fn point(&self) -> Option<Point> {
        let Some(Report::Progress(data)) = self.event.report() else {
            return None;
        };
        // A figure that is no number equals nothing, and what is shown has more in it than was reported.
        let shown = self.state.progress.shown();
        Some(Point {
            job: self.facts.id,
            attempt: self.state.attempt,
            shown: shown.filter(|shown| shown.step == data.step).cloned(),
            data: data.clone(),
        })
    }

    fn line(&self) -> Option<Line> {
        let Some(Report::Logged(data)) = self.event.report() else {
            return None;
        };
        Some(Line {
            job: self.facts.id,
            attempt: self.state.attempt,
            at: now(),
            level: data.level,
            line: data.line.clone(),
        })
    }

    /// The job could not be put into words: a fault of the platform's, which the job's owner is to know.
    fn cannot_start(&self, worker: WorkerId, error: &ApiError) -> Event {
        tracing::error!(job.id = %self.facts.id, %error, "start_training could not be written");
        Event::Reported {
            worker,
            attempt: Some(self.state.attempt),
            report: Box::new(Report::Failed(JobFailedData {
                error: format!("the platform could not send the job: {}", error.message()),
                step: None,
                last_checkpoint: None,
                failure_kind: Some(FailureKind::Internal),
            })),
        }
    }

    async fn start_text(&self, actors: &Actors) -> Result<ByteString, ApiError> {
        let (job, dataset) = (self.facts.id, self.facts.dataset);
        let (dataset, files) = actors
            .database
            .read::<_, DatabaseError, _>(move |c| {
                let dataset = datasets::store::get(c, dataset.get())?;
                Ok((dataset, history::checkpoint_files(c, job)?))
            })
            .await?;
        let key = StorageKey::parse(&dataset.storage_key)?;
        let url = actors.storage.download_url(&key, DOWNLOAD_VALIDITY);
        let config = self.facts.config.clone();
        let start = StartTraining {
            job_id: job,
            attempt: Some(self.state.attempt),
            data: StartTrainingData {
                dataset: DatasetSource {
                    storage_path: dataset.storage_key,
                    download_url: url,
                    format: dataset.format,
                    id: self.facts.dataset,
                    sha256: Some(dataset.sha256),
                    size_bytes: u64::try_from(dataset.bytes).ok(),
                    max_bad_rows: u64::try_from(dataset.bad_rows)
                        .ok()
                        .filter(|rows| *rows > 0),
                },
                base_model: BaseModel {
                    huggingface_id: self.facts.base_model.clone(),
                    download_urls: Vec::new(),
                },
                config,
                output_path: format!("{}/", job_folders(job)[1]),
                resume: self.resume_point(actors, &files)?,
            },
        };
        Ok(ToWorker::StartTraining(start).encode().into())
    }

    fn resume_point(
        &self,
        actors: &Actors,
        files: &[ArtifactRow],
    ) -> Result<Option<ResumePoint>, ApiError> {
        let Some(step) = self.state.resume_from else {
            return Ok(None);
        };
        let folder = format!("{}/step-{step}/", job_folders(self.facts.id)[0]);
        let at_step = files
            .iter()
            .filter(|file| file.step.and_then(|at| u64::try_from(at).ok()) == Some(step));
        let files = at_step
            .map(|file| {
                let key = StorageKey::parse(&file.storage_key)?;
                let name = file.storage_key.strip_prefix(&folder);
                Ok(DownloadFile {
                    key: name.unwrap_or(key.file_name()).to_owned(),
                    download_url: actors.storage.download_url(&key, DOWNLOAD_VALIDITY),
                    sha256: file.sha256.clone(),
                    size_bytes: u64::try_from(file.size_bytes).unwrap_or(0),
                })
            })
            .collect::<Result<Vec<_>, ApiError>>()?;
        Ok(Some(ResumePoint { step, files }))
    }
}
