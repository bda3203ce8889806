//! What dashboards are told of a job, and who of them.

use bytestring::ByteString;
use trainyard_shared::message::{
    CheckpointSaved, JobCompleted, JobUpdate, JobUpdateData, ToDashboard, TrainingFailed,
    TrainingFailedData, WorkerLog,
};

use super::event::News;
use super::state::JobState;
use super::store::JobFacts;
use crate::actors::Actors;
use crate::dashboards::hub::PublishJob;

/// Who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Those who have subscribed to the job.
    Subscribers,
    /// All who may see the job.
    AllWhoMaySee,
}

/// A change that is told.
pub struct Change<'a> {
    /// The state before.
    pub before: &'a JobState,
    /// The state after.
    pub after: &'a JobState,
}

impl Change<'_> {
    /// Whether it is more than another step of training.
    fn is_of_state(&self) -> bool {
        let (before, after) = (self.before, self.after);
        before.status() != after.status()
            || before.awaiting_worker != after.awaiting_worker
            || before.attempt != after.attempt
    }
}

/// Tells the dashboards.
pub async fn publish(actors: &Actors, facts: &JobFacts, news: News, change: &Change<'_>) {
    let (audience, replaceable) = match &news {
        News::Update => (Audience::Subscribers, !change.is_of_state()),
        News::Logged(_) => (Audience::Subscribers, false),
        _ => (Audience::AllWhoMaySee, false),
    };
    let publish = PublishJob {
        job: facts.id,
        owner: facts.owner,
        audience,
        replaceable,
        text: text(news, change.after),
    };
    // Fails only when the platform stops.
    let _ = actors.dashboards.send(publish).await;
}

/// How the job stands, as the frame of a `job_update`; with the reason where it waits.
pub fn update_text(state: &JobState, waiting_because: Option<String>) -> ByteString {
    let update = JobUpdate {
        job_id: state.id,
        data: JobUpdateData {
            waiting_because,
            ..update(state)
        },
    };
    ToDashboard::JobUpdate(update).encode().into()
}

fn text(news: News, state: &JobState) -> ByteString {
    let job_id = state.id;
    let message = match news {
        News::Update => return update_text(state, None),
        News::CheckpointSaved(data) => ToDashboard::CheckpointSaved(CheckpointSaved {
            worker_id: None,
            job_id,
            attempt: Some(state.attempt),
            message_id: None,
            data,
        }),
        News::Completed(data) => ToDashboard::JobCompleted(JobCompleted {
            worker_id: None,
            job_id,
            attempt: Some(state.attempt),
            message_id: None,
            data,
        }),
        News::Logged(data) => ToDashboard::WorkerLog(WorkerLog {
            worker_id: None,
            job_id,
            attempt: Some(state.attempt),
            data,
        }),
        News::Failed {
            last_checkpoint_step,
        } => ToDashboard::TrainingFailed(TrainingFailed {
            job_id,
            data: TrainingFailedData {
                error: state
                    .failure
                    .as_ref()
                    .map(|failure| failure.error.clone())
                    .unwrap_or_default(),
                last_checkpoint_step,
                failure_kind: state.failure.as_ref().map(|failure| failure.kind),
            },
        }),
    };
    message.encode().into()
}

/// The state in the words of a `job_update`.
pub fn update(state: &JobState) -> JobUpdateData {
    let failure = state.failure.as_ref();
    JobUpdateData {
        progress: state.progress.shown().cloned(),
        attempt: Some(state.attempt),
        awaiting_worker: Some(state.awaiting_worker),
        begins_anew_because: state.begins_anew_because(),
        failure_kind: failure.map(|failure| failure.kind),
        error: failure.map(|failure| failure.error.clone()),
        ..JobUpdateData::of(state.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainyard_shared::ids::JobId;
    use trainyard_shared::message::TrainingProgressData;

    #[test]
    fn an_update_says_how_the_job_stands_and_a_gap_is_null() {
        let mut state = JobState::new(JobId(123), 0);
        let value: serde_json::Value = serde_json::from_str(&update_text(&state, None)).unwrap();
        assert_eq!(value["type"], "job_update");
        assert_eq!(value["job_id"], 123);
        assert_eq!(value["data"]["status"], "queued");
        assert!(value["data"].get("step").is_none());
        state.progress.take(&TrainingProgressData {
            step: 3,
            loss: Some(f64::NAN),
            ..Default::default()
        });
        let value: serde_json::Value = serde_json::from_str(&update_text(&state, None)).unwrap();
        assert_eq!(value["data"]["step"], 3);
        assert!(value["data"]["loss"].is_null());
        assert_eq!(value["data"]["awaiting_worker"], false);
    }
}
