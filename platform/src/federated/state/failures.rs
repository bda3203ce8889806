//! How often workers have failed in a row, and which of them may not take part any more.

use std::collections::BTreeMap;

use trainyard_shared::ids::WorkerId;

/// Failures in a row after which a worker has to leave.
pub const MOST_FAILURES: u32 = 3;

/// A worker's failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failed {
    /// So many in a row.
    pub count: u32,
    /// Why it failed last, for a person.
    pub error: String,
}

/// The failures of all workers that have delivered nothing since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failures(BTreeMap<WorkerId, Failed>);

impl Failures {
    /// Those that are known.
    pub fn new(known: BTreeMap<WorkerId, Failed>) -> Self {
        Self(known)
    }

    /// Those of a worker.
    pub fn of(&self, worker: WorkerId) -> Option<&Failed> {
        self.0.get(&worker)
    }

    /// One more; gives how many there are now.
    pub fn add(&mut self, worker: WorkerId, error: String) -> u32 {
        let failed = self.0.entry(worker).or_default();
        failed.count += 1;
        failed.error = error;
        failed.count
    }

    /// The worker has delivered; gives whether that is news.
    pub fn forget(&mut self, worker: WorkerId) -> bool {
        self.0.remove(&worker).is_some()
    }

    /// Whether a worker failed too often.
    pub fn is_barred(&self, worker: WorkerId) -> bool {
        self.of(worker)
            .is_some_and(|failed| failed.count >= MOST_FAILURES)
    }

    /// Those that failed too often, and why.
    pub fn barred(&self) -> impl Iterator<Item = (WorkerId, &str)> {
        let barred = self
            .0
            .iter()
            .filter(|(_, failed)| failed.count >= MOST_FAILURES);
        barred.map(|(worker, failed)| (*worker, failed.error.as_str()))
    }
}
