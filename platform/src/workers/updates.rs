//! How often dashboards hear of a worker: at most once a second for each, and of every change of what it
//! does (PROTOCOL 9). Pure.
//!
//! An update that comes too early waits. A later one takes its place unless the status differs: then both go
//! out, one after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// When each worker that has something waiting may be told of again.
    queue: BTreeSet<(Moment, WorkerId)>,
}

#[derive(Debug)]
struct Paced<T> {
    next_at: Moment,
    waiting: VecDeque<Update<T>>,
}

impl<T> Default for Throttle<T> {
    fn default() -> Self {
        Self {
            workers: BTreeMap::new(),
            queue: BTreeSet::new(),
        }
    }
}

impl<T> Throttle<T> {
    /// Takes an update in. [`Throttle::due`] gives it out, at once or later.
    pub fn offer(&mut self, worker: WorkerId, update: Update<T>) {
        let paced = self.workers.entry(worker).or_insert(Paced {
            next_at: Moment::START,
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
        self.queue.insert((paced.next_at, worker));
    }

    /// The updates that may go out at `now`.
    pub fn due(&mut self, now: Moment) -> Vec<(WorkerId, Update<T>)> {
        let mut due = Vec::new();
        while let Some((at, worker)) = self.queue.first().copied().filter(|(at, _)| *at <= now) {
            self.queue.remove(&(at, worker));
            let Some(paced) = self.workers.get_mut(&worker) else {
                continue;
            };
            if let Some(update) = paced.waiting.pop_front() {
                paced.next_at = now + INTERVAL;
                due.push((worker, update));
            }
            if !paced.waiting.is_empty() {
                self.queue.insert((paced.next_at, worker));
            }
        }
        due
    }

    /// When the next waiting update may go out.
    pub fn next_due(&self) -> Option<Moment> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Forgets a worker, with what waits of it.
    pub fn forget(&mut self, worker: WorkerId) {
        if let Some(paced) = self.workers.remove(&worker) {
            self.queue.remove(&(paced.next_at, worker));
        }
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
    fn a_forgotten_worker_is_told_of_no_more() {
        let mut throttle = Throttle::default();
        throttle.offer(W, update(WorkerStatus::Idle, 1));
        throttle.due(at(0));
        throttle.offer(W, update(WorkerStatus::Idle, 2));
        throttle.forget(W);
        assert_eq!(throttle.next_due(), None);
        assert!(throttle.due(at(9_000)).is_empty());
    }

    #[test]
    fn workers_do_not_wait_for_each_other() {
        let mut throttle = Throttle::default();
        throttle.offer(W, update(WorkerStatus::Idle, 1));
        throttle.offer(WorkerId(2), update(WorkerStatus::Idle, 2));
        assert_eq!(contents(throttle.due(at(0))), [1, 2]);
    }
}
