//! What waits in the outbox, and in which order it goes out: pure, beside the disk that [`super::outbox`] is.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trainyard_shared::ids::{FederatedSessionId, InferenceId, JobId, MessageId, TaskId};
use trainyard_shared::message::{ArtifactFile, FederatedUpdateData, FromWorker};

/// So many checkpoints of one job wait for delivery; beyond that the oldest that nobody works on is given up.
const WAITING_CHECKPOINTS: usize = 3;

/// An entry's place in the order of delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place(pub u64);

/// One message that waits for its `ack`.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its place in the order.
    pub place: Place,
    /// The message, with its `message_id`.
    pub message: FromWorker,
    /// Files that must be stored at the platform before the message is sent.
    pub files: Vec<WaitingFile>,
}

/// A file of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingFile {
    /// What the platform is told of it.
    pub artifact: ArtifactFile,
    /// Where it lies.
    pub path: PathBuf,
}

/// The job and attempt that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobAttempt {
    /// The job.
    pub job_id: JobId,
    /// The attempt, as `start_training` gave it.
    pub attempt: Option<u32>,
}

/// What has ended without the platform's knowing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Undelivered {
    /// Attempts at jobs.
    pub jobs: Vec<JobAttempt>,
    /// Answers.
    pub inferences: Vec<InferenceId>,
    /// Evaluations and exports.
    pub tasks: Vec<TaskId>,
}

/// The waiting messages, in order.
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    entries: BTreeMap<Place, Entry>,
    /// The last place that was given. None is given twice, also when nothing waits any more: the connection
    /// remembers how far it has sent.
    last: u64,
}

impl Waiting {
    /// The place of the next message.
    pub fn next_place(&self) -> Place {
        Place(self.last + 1)
    }

    /// Puts an entry in its place, over what may be there.
    pub fn put(&mut self, entry: Entry) {
        self.last = self.last.max(entry.place.0);
        self.entries.insert(entry.place, entry);
    }

    /// The entry at that place.
    pub fn get(&self, place: Place) -> Option<&Entry> {
        self.entries.get(&place)
    }

    /// The first entry after `place`, or the very first.
    pub fn next_after(&self, place: Option<Place>) -> Option<&Entry> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.entries.range((from, Bound::Unbounded));
        behind.next().map(|(_, entry)| entry)
    }

    /// The entry of this message, if it still waits.
    pub fn find(&self, message: MessageId) -> Option<&Entry> {
        let mut entries = self.entries.values();
        entries.find(|entry| entry.message.message_id() == Some(message))
    }

    /// Forgets the message with this id: it was acknowledged, or refused for good. Gives its place.
    pub fn remove(&mut self, message: MessageId) -> Option<Place> {
        let place = self.find(message)?.place;
        self.entries.remove(&place);
        Some(place)
    }

    /// How many messages wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first job end that waits: its place and its job.
    pub fn undelivered_end(&self) -> Option<(Place, JobId)> {
        self.entries
            .values()
            .find_map(|entry| Some((entry.place, ended_job(&entry.message)?.job_id)))
    }

    /// Every job attempt whose end waits for delivery.
    pub fn undelivered_ends(&self) -> Vec<JobAttempt> {
        let entries = self.entries.values();
        entries
            .filter_map(|entry| ended_job(&entry.message))
            .collect()
    }

    /// Everything whose end waits for delivery.
    pub fn undelivered(&self) -> Undelivered {
        let mut ends = Undelivered {
            jobs: self.undelivered_ends(),
            ..Undelivered::default()
        };
        for entry in self.entries.values() {
            match &entry.message {
                FromWorker::InferenceCompleted(end) => {
                    ends.inferences.push(end.inference_id.clone());
                }
                FromWorker::InferenceFailed(end) => ends.inferences.push(end.inference_id.clone()),
                message => ends.tasks.extend(ended_task(message)),
            }
        }
        ends
    }

    /// The rounds of a federated session whose results wait for delivery as they are.
    pub fn undelivered_rounds(&self, session: FederatedSessionId) -> Vec<u64> {
        let updates = self.updates(session);
        let plain = updates.filter(|update| update.attempt.is_none());
        plain.map(|update| update.round).collect()
    }

    /// Whether a masked result of that round and attempt waits for delivery.
    pub fn has_masked(&self, session: FederatedSessionId, round: u64, attempt: u64) -> bool {
        self.updates(session)
            .any(|update| (update.round, update.attempt) == (round, Some(attempt)))
    }

    fn updates(&self, session: FederatedSessionId) -> impl Iterator<Item = &FederatedUpdateData> {
        self.entries
            .values()
            .filter_map(move |entry| match &entry.message {
                FromWorker::FederatedUpdate(update) if update.session_id == session => {
                    Some(&update.data)
                }
                _ => None,
            })
    }

    /// A long outage must not fill the disk with checkpoints that newer ones have made worthless: the one that
    /// is given up for the checkpoint at `newest`, if there are too many. The first one in line may be on its
    /// way already and stays.
    pub fn give_up_old_checkpoint(&mut self, newest: Place) -> Option<Place> {
        let job_of = |entry: &Entry| match &entry.message {
            FromWorker::CheckpointSaved(saved) => Some(saved.job_id),
            _ => None,
        };
        let job = job_of(self.entries.get(&newest)?)?;
        let of_the_job = self.entries.values().filter(|e| job_of(e) == Some(job));
        let waiting: Vec<Place> = of_the_job.map(|entry| entry.place).collect();
        if waiting.len() <= WAITING_CHECKPOINTS {
            return None;
        }
        self.entries.remove(&waiting[1]);
        Some(waiting[1])
    }

    /// Masked results of older attempts, which a newer one (at `newest`) has made worthless, must not keep it waiting:
    /// those that are given up. The first one in line may be on its way already and stays.
    pub fn give_up_older_attempts(&mut self, newest: Place) -> Vec<Place> {
        let attempt_of = |entry: &Entry| match &entry.message {
            FromWorker::FederatedUpdate(update) => Some((update.session_id, update.data.attempt?)),
            _ => None,
        };
        let Some((session, attempt)) = self.entries.get(&newest).and_then(attempt_of) else {
            return Vec::new();
        };
        let is_older = |entry: &&Entry| {
            attempt_of(entry).is_some_and(|(of, older)| of == session && older != attempt)
        };
        let waiting = self.entries.values().skip(1);
        let given_up: Vec<Place> = waiting.filter(is_older).map(|entry| entry.place).collect();
        for place in &given_up {
            self.entries.remove(place);
        }
        given_up
    }
}

/// The evaluation or export that `message` ends, if it is such a message.
pub fn ended_task(message: &FromWorker) -> Option<TaskId> {
    match message {
        FromWorker::EvaluationCompleted(end) => Some(end.evaluation_id.into()),
        FromWorker::EvaluationFailed(end) => Some(end.evaluation_id.into()),
        FromWorker::ExportCompleted(end) => Some(end.export_id.into()),
        FromWorker::ExportFailed(end) => Some(end.export_id.into()),
        _ => None,
    }
}

/// The job attempt that `message` ends, if it is such a message.
pub fn ended_job(message: &FromWorker) -> Option<JobAttempt> {
    let (job_id, attempt) = match message {
        FromWorker::JobCompleted(end) => (end.job_id, end.attempt),
        FromWorker::JobFailed(end) => (end.job_id, end.attempt),
        FromWorker::JobStopped(end) => (end.job_id, end.attempt),
        _ => return None,
    };
    Some(JobAttempt { job_id, attempt })
}
