//! What a worker's messages about work mean to a job.

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::{JobId, WorkerId};
use trainyard_shared::message::{ErrorCode, FromWorker, Pong};

use super::event::{ReportedBy, SelfReport};
use crate::jobs::event::{Event, Report};

/// Something that a worker says about a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMessage {
    /// The job.
    pub job: JobId,
    /// The attempt that it names.
    pub attempt: Option<u32>,
    /// What it says.
    pub report: Report,
}

/// Why a message is refused before anybody is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRefused {
    /// The code of the answer.
    pub code: ErrorCode,
    /// For a person.
    pub message: String,
}

impl JobMessage {
    /// Reads a message about work.
    ///
    /// # Errors
    ///
    /// [`MessageRefused`] for a path that leaves the job's own place or lies in another job's, and for
    /// federated sessions, of which no worker has been given any.
    pub fn from_wire(message: FromWorker) -> Result<Self, MessageRefused> {
        let wire_type = message.wire_type();
        let (job, attempt, report) = match message {
            FromWorker::JobStarted(m) => (m.job_id, m.attempt, Report::Started(m.data)),
            FromWorker::TrainingProgress(m) => (m.job_id, m.attempt, Report::Progress(m.data)),
            FromWorker::CheckpointSaved(m) => {
                check_path("data.path", &m.data.path, m.job_id)?;
                (m.job_id, m.attempt, Report::CheckpointSaved(m.data))
            }
            FromWorker::JobCompleted(m) => {
                if let Some(prefix) = &m.data.s3_prefix {
                    check_path("data.s3_prefix", prefix, m.job_id)?;
                }
                (m.job_id, m.attempt, Report::Completed(m.data))
            }
            FromWorker::JobFailed(mut m) => {
                keep_own_path(&mut m.data.last_checkpoint, m.job_id);
                (m.job_id, m.attempt, Report::Failed(m.data))
            }
            FromWorker::JobStopped(mut m) => {
                keep_own_path(&mut m.data.last_checkpoint, m.job_id);
                (m.job_id, m.attempt, Report::Stopped(m.data))
            }
            FromWorker::WorkerLog(m) => (m.job_id, m.attempt, Report::Logged(m.data)),
            _ => {
                return Err(MessageRefused {
                    code: ErrorCode::WrongWorker,
                    message: format!("{wire_type}: that work is not this worker's"),
                });
            }
        };
        Ok(Self {
            job,
            attempt,
            report,
        })
    }

    /// The same as an event of the job.
    pub fn event(self, worker: WorkerId) -> Event {
        Event::Reported {
            worker,
            attempt: self.attempt,
            report: Box::new(self.report),
        }
    }
}

/// What a `pong` says of the worker. One that is busy without saying with what is taken for training.
pub fn self_report(pong: &Pong) -> SelfReport {
    let busy = pong.busy && matches!(pong.status, None | Some(WorkerStatus::Idle));
    SelfReport {
        by: ReportedBy::Pong,
        status: if busy {
            Some(WorkerStatus::Training)
        } else {
            pong.status.or(Some(WorkerStatus::Idle))
        },
        current_job: pong.current_job_id,
    }
}

/// Which evaluations or sessions a worker says that it has. One that names none and is idle has none; else it is
/// not known.
pub fn named<Id>(status: Option<WorkerStatus>, named: Option<Vec<Id>>) -> Option<Vec<Id>> {
    named.or_else(|| (status == Some(WorkerStatus::Idle)).then(Vec::new))
}

/// A path is only shown and never opened; even so none is kept that points elsewhere. A worker that knows only
/// the source may name its places as it likes, but no other job's.
fn check_path(field: &str, path: &str, job: JobId) -> Result<(), MessageRefused> {
    let refused = |reason: &str| MessageRefused {
        code: ErrorCode::InvalidMessage,
        message: format!("{field}: {reason}"),
    };
    let is_plain = !path.is_empty()
        && path.len() <= 1024
        && !path.starts_with(['/', '\\'])
        && !path.contains(|c: char| c.is_control() || c == '\\')
        && path.split('/').all(|part| part != ".." && part != ".");
    if !is_plain {
        return Err(refused("not a relative path without `..`"));
    }
    if path.split('/').any(|part| names_another_job(part, job)) {
        return Err(refused("lies in another job's place"));
    }
    Ok(())
}

/// The end of a job counts, whatever it says of its last checkpoint.
fn keep_own_path(path: &mut Option<String>, job: JobId) {
    let checked = path
        .as_deref()
        .map(|it| check_path("last_checkpoint", it, job));
    if let Some(Err(refused)) = checked {
        tracing::warn!(job.id = %job, reason = refused.message, "path is left out");
        *path = None;
    }
}

/// Whether a folder's name begins as `job-` with a number that is not that job's.
fn names_another_job(folder: &str, job: JobId) -> bool {
    let folder = folder.trim_ascii().to_ascii_lowercase();
    let Some(rest) = folder.strip_prefix("job-") else {
        return false;
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let digits = &rest[..end];
    !digits.is_empty() && digits.parse() != Ok(job.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainyard_shared::message::{CheckpointSaved, CheckpointSavedData, InferenceTokens};

    fn checkpoint(path: &str) -> FromWorker {
        let frame = serde_json::json!({
            "type": "checkpoint_saved", "job_id": 123, "data": {"step": 1, "path": path}
        });
        FromWorker::decode(&frame.to_string()).unwrap()
    }

    #[test]
    fn g044_a_path_that_points_elsewhere_is_refused() {
        assert!(JobMessage::from_wire(checkpoint("checkpoints/job-123/step-1000/")).is_ok());
        for path in [
            "",
            "../../x",
            "/etc/passwd",
            "a/../../b",
            "..\\x",
            "a\0b",
            "a/./b",
            "checkpoints/job-124/step-1000/",
            "checkpoints/job-12/step-1000/",
            "models/JOB-1/final/",
            "a/job-99999999999999999999/b",
        ] {
            let refused = JobMessage::from_wire(checkpoint(path)).unwrap_err();
            assert_eq!(refused.code, ErrorCode::InvalidMessage, "{path:?}");
        }
        for path in ["checkpoints/job-123", "job-123-b/x", "job-new/x", "out/x"] {
            assert!(JobMessage::from_wire(checkpoint(path)).is_ok(), "{path:?}");
        }
        let completed = |prefix: &str| {
            let frame = serde_json::json!({
                "type": "job_completed", "job_id": 123, "data": {"s3_prefix": prefix}
            });
            JobMessage::from_wire(FromWorker::decode(&frame.to_string()).unwrap())
        };
        assert!(completed("models/job-123/final/").is_ok());
        let refused = completed("models/job-7/final/").unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidMessage);
        let message = FromWorker::CheckpointSaved(CheckpointSaved {
            worker_id: None,
            job_id: JobId(1),
            attempt: None,
            message_id: None,
            data: CheckpointSavedData {
                step: 1,
                epoch: None,
                path: "a/b".to_owned(),
                metrics: Default::default(),
                files: Vec::new(),
            },
        });
        assert!(JobMessage::from_wire(message).is_ok());
    }

    #[test]
    fn g044_the_end_of_a_job_counts_without_a_path_that_points_elsewhere() {
        let left = |path: &str| {
            let frame = serde_json::json!({"type": "job_failed", "job_id": 123,
                "data": {"error": "x", "last_checkpoint": path}});
            let message = FromWorker::decode(&frame.to_string()).unwrap();
            match JobMessage::from_wire(message).unwrap().report {
                Report::Failed(data) => data.last_checkpoint,
                other => panic!("{other:?}"),
            }
        };
        let own = "checkpoints/job-123/step-7/";
        assert_eq!(left(own).as_deref(), Some(own));
        assert_eq!(left("checkpoints/job-9/step-7/"), None);
        assert_eq!(left("../x"), None);
    }

    #[test]
    fn work_that_was_never_given_is_another_worker_s() {
        let frame = r#"{"type":"inference_tokens","inference_id":"i-1","data":{"tokens":["a"]}}"#;
        let message = FromWorker::decode(frame).unwrap();
        assert!(matches!(
            message,
            FromWorker::InferenceTokens(InferenceTokens { .. })
        ));
        let refused = JobMessage::from_wire(message).unwrap_err();
        assert_eq!(refused.code, ErrorCode::WrongWorker);
    }

    #[test]
    fn a_busy_pong_is_busy_whatever_else_it_says() {
        let pong = |text: &str| match FromWorker::decode(text).unwrap() {
            FromWorker::Pong(pong) => self_report(&pong),
            _ => unreachable!(),
        };
        let busy = pong(r#"{"type":"pong","busy":true,"current_job_id":3}"#);
        assert_eq!(busy.status, Some(WorkerStatus::Training));
        assert_eq!(busy.current_job, Some(JobId(3)));
        let idle = pong(r#"{"type":"pong","status":"idle","busy":false,"current_job_id":null}"#);
        assert_eq!(
            (idle.status, idle.current_job),
            (Some(WorkerStatus::Idle), None)
        );
        assert_eq!(pong(r#"{"type":"pong"}"#).status, Some(WorkerStatus::Idle));
    }
}
