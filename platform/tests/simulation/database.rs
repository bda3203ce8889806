//! The database: rows that only change over the revision that was read, one writer, and faults that leave the
//! caller without knowing what was written. What is committed survives every crash (the real one is opened with
//! `synchronous = FULL`); what waits to be written does not.

use std::collections::{BTreeMap, VecDeque};

use trainyard_platform::jobs::event::{Record, Transition, TransitionKind};
use trainyard_platform::jobs::phase::Phase;
use trainyard_platform::jobs::state::JobState;
use trainyard_platform::workers::placement::{Shares, WaitingJob};
use trainyard_shared::ids::{FederatedSessionId, JobId, UserId, WorkerId};

use crate::sessions::SessionRow;
use crate::world::{Broken, World};

/// A job's row, as it would be read back.
#[derive(Debug, Clone)]
pub struct JobRow {
    pub state: JobState,
    pub revision: i64,
    pub requested: Option<WorkerId>,
    pub priority: i32,
}

/// A worker's row.
#[derive(Debug, Clone)]
pub struct WorkerRow {
    pub key: u32,
    pub draining: bool,
}

#[derive(Default)]
pub struct Database {
    pub jobs: BTreeMap<JobId, JobRow>,
    pub workers: BTreeMap<WorkerId, WorkerRow>,
    pub sessions: BTreeMap<FederatedSessionId, SessionRow>,
    /// Writes in line, of the platform's present run.
    pub waiting: VecDeque<Write>,
    /// Until then, writes fail now and then.
    pub troubled_until: u64,
}

/// A transition that is to be written.
pub struct Write {
    pub job: JobId,
    pub revision: i64,
    pub next: JobState,
    pub transition: Transition,
}

/// What came of a write, as far as the caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Yes(i64),
    /// The row has changed since it was read. Nothing was written.
    Stale,
    /// Busy or full: nothing was written.
    Nothing,
    /// Nobody knows.
    Unknown,
}

impl Database {
    /// As `jobs::store::with_workers`.
    pub fn with_workers(&self) -> Vec<(JobId, WorkerId)> {
        let held = self.jobs.iter();
        held.filter_map(|(job, row)| Some((*job, row.state.phase.worker()?)))
            .collect()
    }

    /// As `jobs::store::queue`.
    pub fn queue(&self) -> (Vec<WaitingJob>, Shares) {
        let queued = self
            .jobs
            .iter()
            .filter(|(_, row)| row.state.phase == Phase::Queued);
        let waiting = queued.map(|(id, row)| WaitingJob {
            id: *id,
            owner: UserId(1),
            priority: row.priority,
            requested: row.requested,
            needs_gpu_memory_gb: None,
            failed_on: row.state.owners.values().copied().collect(),
        });
        (waiting.collect(), Shares::default())
    }
}

impl World {
    /// Writes, or fails to.
    pub fn write(&mut self, write: Write) -> Written {
        if self.now < self.database.troubled_until {
            match self.random.below(10) {
                0..=2 => return Written::Nothing,
                3 => return Written::Unknown,
                4 => {
                    self.commit(write);
                    return Written::Unknown;
                }
                _ => {}
            }
        }
        self.commit(write)
    }

    fn commit(&mut self, write: Write) -> Written {
        let ignores_revision = self.broken == Some(Broken::CommitWithoutComparing);
        let Some(row) = self.database.jobs.get(&write.job) else {
            return Written::Stale;
        };
        if row.revision != write.revision && !ignores_revision {
            return Written::Stale;
        }
        let before = row.state.clone();
        self.check_transition(&before, &write.next, &write.transition);
        let row = self.database.jobs.get_mut(&write.job).expect("it is there");
        row.revision += 1;
        row.state = as_stored(write.next, &before, &write.transition);
        Written::Yes(row.revision)
    }
}

/// What can be read back: who is connected and what was shown last but not written are not.
fn as_stored(next: JobState, before: &JobState, transition: &Transition) -> JobState {
    let mut stored = next;
    stored.awaiting_worker = false;
    if !matches!(
        transition.kind,
        TransitionKind::Retried | TransitionKind::Resumed
    ) && !matches!(transition.record, Some(Record::Owner(_)))
    {
        // Points are flushed before a checkpoint and before an end; else the newest may be lost.
        let flushed = matches!(transition.record, Some(Record::Checkpoint(_)))
            || (transition.to.is_ended() && !transition.from.is_ended());
        if !flushed {
            stored.progress = before.progress.clone();
        }
    }
    stored
}
