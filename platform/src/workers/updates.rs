//! How often dashboards hear of a worker: at most once a second for each, and of every change of what it
//! does (PROTOCOL 9). Pure.
//!
//! An update that comes too early waits. A later one takes its place unless the status differs: then both go
//! out, one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::WorkerId;

use crate::clock::Moment;

/// Between two updates of one worker.
const INTERVAL: Duration = Duration::from_secs(1);
/// Changes of status that wait at most; a worker that changes faster is shown as it ends up.
const MAX_WAITING: usize = 8;

/// An update, with what it shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Update<T> {
    /// What the worker does.
    pub status: WorkerStatus,
    /// The update.
    pub content: T,
}

/// Holds updates back.
#[derive(Debug)]
pub struct Throttle<T> {
    workers: BTreeMap<WorkerId, Paced<T>>,
}

#[derive(Debug)]
struct Paced<T> {
    sent_at: Option<Moment>,
    waiting: VecDeque<Update<T>>,
}

impl<T> Default for Throttle<T> {
    fn default() -> Self {
        Self {
            workers: BTreeMap::new(),
        }
    }
}

impl<T> Throttle<T> {
    /// Takes an update in. [`Throttle::due`] gives it out, at once or later.
    pub fn offer(&mut self, worker: WorkerId, update: Update<T>) {
        let paced = self.workers.entry(worker).or_insert(Paced {
            sent_at: None,
            waiting: VecDeque::new(),
        });
        let replaces = paced
            .waiting
            .back()
            .is_some_and(|last| last.status == update.status);
        if replaces || paced.waiting.len() >= MAX_WAITING {
            paced.waiting.pop_back();
        }
        paced.waiting.push_back(update);
    }

    /// The updates that may go out at `now`.
    pub fn due(&mut self, now: Moment) -> Vec<(WorkerId, Update<T>)> {
        let mut due = Vec::new();
        for (&worker, paced) in &mut self.workers {
            if paced.next_at().is_some_and(|at| at <= now)
                && let Some(update) = paced.waiting.pop_front()
            {
                paced.sent_at = Some(now);
                due.push((worker, update));
            }
        }
        due
    }

    /// When the next waiting update may go out.
    pub fn next_due(&self) -> Option<Moment> {
        self.workers.values().filter_map(Paced::next_at).min()
    }

    /// Forgets a worker that there is not any more, when nothing of it waits.
    pub fn forget_silent(&mut self, keep: impl Fn(WorkerId) -> bool) {
        self.workers
            .retain(|worker, paced| keep(*worker) || !paced.waiting.is_empty());
    }
}

impl<T> Paced<T> {
    fn next_at(&self) -> Option<Moment> {
        if self.waiting.is_empty() {
            return None;
        }
        Some(self.sent_at.map_or(Moment::START, |sent| sent + INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: WorkerId = WorkerId(1);

    fn update(status: WorkerStatus, content: u32) -> Update<u32> {
        Update { status, content }
    }

    fn contents(due: Vec<(WorkerId, Update<u32>)>) -> Vec<u32> {
        due.into_iter().map(|(_, update)| update.content).collect()
    }

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn one_update_a_second_and_always_the_newest() {
        let mut throttle = Throttle::default();
        throttle.offer(W, update(WorkerStatus::Idle, 1));
        assert_eq!(contents(throttle.due(at(5_000))), [1]);
        for content in 2..10 {
            throttle.offer(W, update(WorkerStatus::Idle, content));
        }
        assert!(throttle.due(at(5_999)).is_empty());
        assert_eq!(throttle.next_due(), Some(at(6_000)));
        assert_eq!(contents(throttle.due(at(6_000))), [9]);
        assert_eq!(throttle.next_due(), None);
    }

    #[test]
    fn every_change_of_status_is_told() {
        let mut throttle = Throttle::default();
        throttle.offer(W, update(WorkerStatus::Idle, 1));
        throttle.offer(W, update(WorkerStatus::Offline, 2));
        throttle.offer(W, update(WorkerStatus::Online, 3));
        let told: Vec<_> = (0..3)
            .flat_map(|second| contents(throttle.due(at(second * 1000))))
            .collect();
        assert_eq!(told, [1, 2, 3]);
    }

    #[test]
    fn workers_do_not_wait_for_each_other() {
        let mut throttle = Throttle::default();
        throttle.offer(W, update(WorkerStatus::Idle, 1));
        throttle.offer(WorkerId(2), update(WorkerStatus::Idle, 2));
        assert_eq!(contents(throttle.due(at(0))), [1, 2]);
    }
}
