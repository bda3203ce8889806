//! Which worker continues which chat, and why a chat waits. Pure.
//!
//! A worker takes [`SLOTS`] requests at once. Idle workers that take inference come first; one that trains or
//! evaluates gets a request only when no idle one has room. Among equals: the one that used the model last, then
//! the one that used its base model last, then one that has it on its disk, then the one with the least to do,
//! then the one with the better benchmark.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use trainyard_shared::ids::{InferenceId, JobId, WorkerId};
use trainyard_shared::{WorkerStatus, WorkerType};

use super::state::Prospect;
use crate::workers::event::Generation;

/// Requests that one worker works at at once.
pub const SLOTS: usize = 8;
/// Models that a worker is taken to have at hand.
const REMEMBERED: usize = 2;

/// What a worker must load.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelKey {
    /// The base model's name at the hub.
    pub base_model: String,
    /// The job whose adapter goes on top.
    pub adapter: Option<JobId>,
}

/// A request that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRequest {
    /// Its id.
    pub id: InferenceId,
    /// What it needs.
    pub model: ModelKey,
}

/// A worker, as the supervisor knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its registered connection, if it has one.
    pub link: Option<Generation>,
    /// What kinds of work it takes; none before it first registered since the platform's start.
    pub worker_type: Option<WorkerType>,
    /// What it does.
    pub status: WorkerStatus,
    /// Whether it is to be given nothing new.
    pub draining: bool,
    /// Its benchmark's score.
    pub score: Option<f64>,
    /// Base models on its disk.
    pub models: Vec<String>,
}

/// What a worker has been given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that it works at.
    pub running: usize,
    /// Models that it used, the last one first.
    pub recent: Vec<ModelKey>,
}

impl Load {
    /// One more of that model.
    pub fn add(&mut self, model: &ModelKey) {
        self.running += 1;
        self.recent.retain(|known| known != model);
        self.recent.insert(0, model.clone());
        self.recent.truncate(REMEMBERED);
    }
}

impl Candidate {
    fn takes_inference(&self) -> bool {
        self.worker_type.is_some_and(WorkerType::takes_inference)
    }

    fn is_busy_otherwise(&self) -> bool {
        matches!(
            self.status,
            WorkerStatus::Training
                | WorkerStatus::Evaluating
                | WorkerStatus::Exporting
                | WorkerStatus::Federated
        )
    }
}

/// Pairs waiting requests with workers, in the order of the requests.
pub fn place(
    waiting: &[WaitingRequest],
    candidates: &BTreeMap<WorkerId, Candidate>,
    loads: &BTreeMap<WorkerId, Load>,
) -> Vec<(InferenceId, WorkerId, Generation)> {
    let mut loads = loads.clone();
    let mut placed = Vec::new();
    for request in waiting {
        let load = |worker: &WorkerId| loads.get(worker).cloned().unwrap_or_default();
        let best = candidates
            .iter()
            .filter(|(_, candidate)| candidate.takes_inference() && !candidate.draining)
            .filter_map(|(id, candidate)| Some((*id, candidate, candidate.link?, load(id))))
            .filter(|(.., load)| load.running < SLOTS)
            .max_by(|(a, of_a, _, load_a), (b, of_b, _, load_b)| {
                compare(&request.model, (*a, of_a, load_a), (*b, of_b, load_b))
            });
        if let Some((worker, _, link, _)) = best {
            loads.entry(worker).or_default().add(&request.model);
            placed.push((request.id.clone(), worker, link));
        }
    }
    placed
}

/// The better worker is the greater; equal ones in the order of their ids, the lower the better.
fn compare(
    model: &ModelKey,
    (a, of_a, load_a): (WorkerId, &Candidate, &Load),
    (b, of_b, load_b): (WorkerId, &Candidate, &Load),
) -> Ordering {
    let rank = |candidate: &Candidate, load: &Load| {
        let same_base = |known: &ModelKey| known.base_model == model.base_model;
        let warmth = if load.recent.contains(model) {
            2
        } else {
            u8::from(load.recent.iter().any(same_base))
        };
        let on_disk = candidate.models.contains(&model.base_model);
        let idle = !candidate.is_busy_otherwise();
        (idle, warmth, on_disk, std::cmp::Reverse(load.running))
    };
    let score = |candidate: &Candidate| {
        let known = candidate.score.filter(|score| score.is_finite());
        known.unwrap_or(f64::NEG_INFINITY)
    };
    rank(of_a, load_a)
        .cmp(&rank(of_b, load_b))
        .then(score(of_a).total_cmp(&score(of_b)))
        .then(b.cmp(&a))
}

/// Why a request that could not be placed waits, and what to expect.
pub fn outlook(candidates: &BTreeMap<WorkerId, Candidate>) -> (String, Prospect) {
    if candidates.is_empty() {
        return ("no worker is enrolled".to_owned(), Prospect::Never);
    }
    let could = |candidate: &&Candidate| {
        candidate
            .worker_type
            .is_none_or(WorkerType::takes_inference)
    };
    let able: Vec<_> = candidates.values().filter(could).collect();
    if able.is_empty() {
        let reason = "no worker that takes inference is enrolled: all have WORKER_TYPE training";
        return (reason.to_owned(), Prospect::Never);
    }
    let there: Vec<_> = able.iter().filter(|worker| worker.link.is_some()).collect();
    match there.as_slice() {
        [] => {
            let reason = match able.as_slice() {
                [only] => format!("worker {} is not connected", only.name),
                _ => "no worker that takes inference is connected".to_owned(),
            };
            (reason, Prospect::Later)
        }
        all if all.iter().all(|worker| worker.draining) => {
            let reason = "all workers that take inference are draining";
            (reason.to_owned(), Prospect::Later)
        }
        all => {
            let reason = format!("all {} workers that take inference are full", all.len());
            (reason, Prospect::Later)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(job: Option<i64>) -> ModelKey {
        ModelKey {
            base_model: "yard/tiny".to_owned(),
            adapter: job.map(JobId),
        }
    }

    fn request(number: usize, job: Option<i64>) -> WaitingRequest {
        WaitingRequest {
            id: format!("infer-{number}").parse().unwrap(),
            model: model(job),
        }
    }

    fn worker(status: WorkerStatus) -> Candidate {
        Candidate {
            name: "east-1".to_owned(),
            link: Some(Generation(1)),
            worker_type: Some(WorkerType::Both),
            status,
            draining: false,
            score: Some(1.0),
            models: Vec::new(),
        }
    }

    fn fleet<const N: usize>(workers: [(i64, Candidate); N]) -> BTreeMap<WorkerId, Candidate> {
        workers
            .into_iter()
            .map(|(id, candidate)| (WorkerId(id), candidate))
            .collect()
    }

    fn chosen(
        requests: &[WaitingRequest],
        candidates: &BTreeMap<WorkerId, Candidate>,
        loads: &BTreeMap<WorkerId, Load>,
    ) -> Vec<i64> {
        let placed = place(requests, candidates, loads);
        placed.iter().map(|(_, worker, _)| worker.get()).collect()
    }

    #[test]
    fn an_idle_worker_comes_before_one_that_trains() {
        let both = fleet([
            (1, worker(WorkerStatus::Training)),
            (2, worker(WorkerStatus::Idle)),
        ]);
        assert_eq!(chosen(&[request(1, None)], &both, &BTreeMap::new()), [2]);
        let training = fleet([(1, worker(WorkerStatus::Training))]);
        assert_eq!(
            chosen(&[request(1, None)], &training, &BTreeMap::new()),
            [1]
        );
    }

    #[test]
    fn a_worker_takes_so_many_at_once_and_the_rest_waits() {
        let one = fleet([(1, worker(WorkerStatus::Idle))]);
        let requests: Vec<_> = (0..SLOTS + 2).map(|n| request(n, None)).collect();
        let placed = place(&requests, &one, &BTreeMap::new());
        assert_eq!(placed.len(), SLOTS);
        assert_eq!(placed[0].0, requests[0].id);
        // A full idle worker leaves the rest to one that trains.
        let two = fleet([
            (1, worker(WorkerStatus::Idle)),
            (2, worker(WorkerStatus::Training)),
        ]);
        assert_eq!(place(&requests, &two, &BTreeMap::new()).len(), SLOTS + 2);
    }

    #[test]
    fn the_worker_that_used_the_model_last_is_preferred() {
        let two = fleet([
            (1, worker(WorkerStatus::Idle)),
            (2, worker(WorkerStatus::Idle)),
        ]);
        let mut used = Load::default();
        used.add(&model(Some(7)));
        let loads = BTreeMap::from([(WorkerId(2), used)]);
        assert_eq!(chosen(&[request(1, Some(7))], &two, &loads), [2]);
        assert_eq!(chosen(&[request(1, None)], &two, &loads), [2], "same base");
        let mut on_disk = worker(WorkerStatus::Idle);
        on_disk.models = vec!["yard/tiny".to_owned()];
        let two = fleet([(1, worker(WorkerStatus::Idle)), (2, on_disk)]);
        assert_eq!(chosen(&[request(1, None)], &two, &BTreeMap::new()), [2]);
    }

    #[test]
    fn workers_that_only_train_or_drain_or_are_away_get_nothing() {
        let mut training = worker(WorkerStatus::Idle);
        training.worker_type = Some(WorkerType::Training);
        let mut draining = worker(WorkerStatus::Draining);
        draining.draining = true;
        let mut away = worker(WorkerStatus::Offline);
        away.link = None;
        let all = fleet([(1, training.clone()), (2, draining), (3, away.clone())]);
        assert!(chosen(&[request(1, None)], &all, &BTreeMap::new()).is_empty());
        assert_eq!(outlook(&fleet([(1, training)])).1, Prospect::Never);
        assert_eq!(outlook(&fleet([])).1, Prospect::Never);
        assert_eq!(outlook(&fleet([(3, away)])).1, Prospect::Later);
        let (reason, prospect) = outlook(&fleet([(1, worker(WorkerStatus::Idle))]));
        assert_eq!(prospect, Prospect::Later);
        assert!(reason.contains("full"), "{reason}");
    }
}
