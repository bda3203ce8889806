//! Which free worker gets which waiting job, and why a job waits. Pure.
//!
//! Jobs go by priority, then by how little their owner has running already, then by age. A job gets, of the
//! free workers that train, the one that it asks for, or else the best: with enough GPU memory by the
//! model's name, without an earlier failure of this job, with the highest benchmark score.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use trainyard_shared::ids::{JobId, UserId, WorkerId};
use trainyard_shared::{WorkerStatus, WorkerType};

/// A job that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingJob {
    /// Its id; a lower one is older.
    pub id: JobId,
    /// Whose it is.
    pub owner: UserId,
    /// Higher comes first.
    pub priority: i32,
    /// The only worker that may have it, if one was asked for.
    pub requested: Option<WorkerId>,
    /// GPU memory that it will need, in GB, as far as the model's name tells.
    pub needs_gpu_memory_gb: Option<f64>,
    /// Workers on which it has failed.
    pub failed_on: Vec<WorkerId>,
}

/// What a worker can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Abilities {
    /// What kinds of work it takes.
    pub worker_type: WorkerType,
    /// Memory of its GPU, in GB; none without a GPU.
    pub gpu_memory_gb: Option<f64>,
    /// Its benchmark's score, higher is better.
    pub score: Option<f64>,
    /// Whether it writes results of jobs in other forms, which the source's workers do not.
    pub exports: bool,
}

/// How many jobs each owner has with workers, and may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    /// Jobs that are assigned, running or stopping.
    pub with_workers: BTreeMap<UserId, usize>,
    /// The most that an owner may have there; none without a limit.
    pub limits: BTreeMap<UserId, usize>,
}

impl Shares {
    fn count(&self, owner: UserId) -> usize {
        self.with_workers.get(&owner).copied().unwrap_or(0)
    }

    /// Whether the owner has as many jobs with workers as allowed.
    pub fn is_exhausted(&self, owner: UserId) -> bool {
        self.limits
            .get(&owner)
            .is_some_and(|limit| self.count(owner) >= *limit)
    }
}

/// Pairs waiting jobs with free workers, as many as can be.
pub fn place(
    waiting: &[WaitingJob],
    free: &BTreeMap<WorkerId, Abilities>,
    shares: &Shares,
) -> Vec<(JobId, WorkerId)> {
    let mut shares = shares.clone();
    let mut free = free.clone();
    let mut waiting: Vec<&WaitingJob> = waiting.iter().collect();
    let mut pairs = Vec::new();
    loop {
        waiting.sort_by_key(|job| {
            (
                std::cmp::Reverse(job.priority),
                shares.count(job.owner),
                job.id,
            )
        });
        let next = waiting.iter().enumerate().find_map(|(index, job)| {
            if shares.is_exhausted(job.owner) {
                return None;
            }
            Some((index, best_worker(job, &free)?))
        });
        let Some((index, worker)) = next else {
            return pairs;
        };
        let job = waiting.remove(index);
        free.remove(&worker);
        *shares.with_workers.entry(job.owner).or_default() += 1;
        pairs.push((job.id, worker));
    }
}

fn best_worker(job: &WaitingJob, free: &BTreeMap<WorkerId, Abilities>) -> Option<WorkerId> {
    free.iter()
        .filter(|(_, abilities)| abilities.worker_type.takes_training())
        .filter(|(worker, _)| job.requested.is_none_or(|requested| requested == **worker))
        .max_by(|a, b| compare(job, a, b))
        .map(|(worker, _)| *worker)
}

/// The free worker for a task: of those that take inference and can do it one that does not train, if there is one,
/// and with the best benchmark score.
pub fn best_for_task(
    free: &BTreeMap<WorkerId, Abilities>,
    can: impl Fn(&Abilities) -> bool,
) -> Option<WorkerId> {
    let rank = |abilities: &Abilities| {
        let score = abilities.score.filter(|score| score.is_finite());
        let trains = abilities.worker_type.takes_training();
        (!trains, score.unwrap_or(f64::NEG_INFINITY))
    };
    free.iter()
        .filter(|(_, abilities)| abilities.worker_type.takes_inference() && can(abilities))
        .max_by(|(a, of_a), (b, of_b)| {
            let (a_first, a_score) = rank(of_a);
            let (b_first, b_score) = rank(of_b);
            let by_rank = a_first.cmp(&b_first).then(a_score.total_cmp(&b_score));
            by_rank.then(b.cmp(a))
        })
        .map(|(worker, _)| *worker)
}

/// The better worker is the greater; equal ones in the order of their ids, the lower the better.
fn compare(
    job: &WaitingJob,
    (a, of_a): &(&WorkerId, &Abilities),
    (b, of_b): &(&WorkerId, &Abilities),
) -> Ordering {
    let rank = |worker: &WorkerId, abilities: &Abilities| {
        (
            fit(job.needs_gpu_memory_gb, abilities.gpu_memory_gb),
            !job.failed_on.contains(worker),
        )
    };
    let score = |abilities: &Abilities| {
        abilities
            .score
            .filter(|score| score.is_finite())
            .unwrap_or(f64::NEG_INFINITY)
    };
    rank(a, of_a)
        .cmp(&rank(b, of_b))
        .then(score(of_a).total_cmp(&score(of_b)))
        .then(b.cmp(a))
}

/// 2: the memory is enough; 1: nobody knows; 0: by the model's name it is not. The name may mislead, so a
/// worker with too little is only the last choice.
fn fit(needed_gb: Option<f64>, there_gb: Option<f64>) -> u8 {
    match (needed_gb, there_gb) {
        (Some(needed), Some(there)) if needed <= there => 2,
        (Some(_), Some(_)) => 0,
        _ => 1,
    }
}

/// GPU memory in GB for LoRA on a model whose name tells its size, as `Llama-3.1-8B` or `SmolLM2-135M`:
/// two bytes for each parameter, and a quarter more for all the rest.
pub fn gpu_memory_need_gb(huggingface_id: &str) -> Option<f64> {
    let name = huggingface_id.rsplit('/').next()?;
    name.split(['-', '_']).find_map(|part| {
        let (number, billions) = match part.as_bytes().last()? {
            b'B' | b'b' => (&part[..part.len() - 1], 1.0),
            b'M' | b'm' => (&part[..part.len() - 1], 1e-3),
            _ => return None,
        };
        let size: f64 = number.parse().ok().filter(|size| *size > 0.0)?;
        Some(size * billions * 2.0 * 1.25)
    })
}

/// A worker as those see it who want to know why a job waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Its id.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// What it does.
    pub status: WorkerStatus,
    /// Whether it has a connection.
    pub connected: bool,
    /// Whether it trains at all; none before it first registered.
    pub worker_type: Option<WorkerType>,
}

/// Why a job waits, for a person.
pub fn waiting_because(requested: Option<WorkerId>, exhausted: bool, workers: &[Seen]) -> String {
    if exhausted {
        return "its owner has as many jobs running as the quota allows".to_owned();
    }
    if let Some(requested) = requested {
        return match workers.iter().find(|worker| worker.id == requested) {
            None => "the worker that it asks for does not exist any more".to_owned(),
            Some(worker) => format!("worker {} {}", worker.name, reason(worker)),
        };
    }
    let trains = |worker: &&Seen| worker.worker_type.is_some_and(WorkerType::takes_training);
    let connected: Vec<_> = workers.iter().filter(|worker| worker.connected).collect();
    match connected
        .iter()
        .copied()
        .filter(trains)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [] if connected.is_empty() => "no worker is connected".to_owned(),
        [] => "no worker that trains is connected".to_owned(),
        [only] => format!("worker {} {}", only.name, reason(only)),
        many => format!("all {} workers that train are busy", many.len()),
    }
}

fn reason(worker: &Seen) -> &'static str {
    match worker.status {
        WorkerStatus::Offline => "is offline",
        _ if !worker.connected => "is not connected at the moment",
        WorkerStatus::Draining => "is draining",
        _ if worker
            .worker_type
            .is_some_and(|kind| !kind.takes_training()) =>
        {
            "does not train"
        }
        WorkerStatus::Online => "has not registered yet",
        WorkerStatus::Idle => "is about to take it",
        _ => "is busy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: i64, owner: i64) -> WaitingJob {
        WaitingJob {
            id: JobId(id),
            owner: UserId(owner),
            priority: 0,
            requested: None,
            needs_gpu_memory_gb: None,
            failed_on: Vec::new(),
        }
    }

    fn worker(score: f64) -> Abilities {
        Abilities {
            worker_type: WorkerType::Both,
            gpu_memory_gb: None,
            score: Some(score),
            exports: false,
        }
    }

    fn free<const N: usize>(workers: [(i64, Abilities); N]) -> BTreeMap<WorkerId, Abilities> {
        workers
            .into_iter()
            .map(|(id, abilities)| (WorkerId(id), abilities))
            .collect()
    }

    fn pairs(found: &[(JobId, WorkerId)]) -> Vec<(i64, i64)> {
        found
            .iter()
            .map(|(job, worker)| (job.get(), worker.get()))
            .collect()
    }

    #[test]
    fn the_oldest_job_gets_the_best_worker() {
        let found = place(
            &[job(1, 1), job(2, 1)],
            &free([(1, worker(1.0)), (2, worker(9.0)), (3, worker(f64::NAN))]),
            &Shares::default(),
        );
        assert_eq!(pairs(&found), [(1, 2), (2, 1)]);
    }

    #[test]
    fn priority_goes_before_age() {
        let urgent = WaitingJob {
            priority: 5,
            ..job(2, 1)
        };
        let found = place(
            &[job(1, 1), urgent],
            &free([(1, worker(1.0))]),
            &Shares::default(),
        );
        assert_eq!(pairs(&found), [(2, 1)]);
    }

    #[test]
    fn an_owner_with_less_running_comes_first() {
        let shares = Shares {
            with_workers: [(UserId(1), 2)].into(),
            ..Shares::default()
        };
        let found = place(&[job(1, 1), job(2, 2)], &free([(1, worker(1.0))]), &shares);
        assert_eq!(pairs(&found), [(2, 1)]);
        // And it goes in turns when several workers are free.
        let found = place(
            &[job(1, 1), job(2, 1), job(3, 2)],
            &free([(1, worker(1.0)), (2, worker(0.5))]),
            &Shares::default(),
        );
        assert_eq!(pairs(&found), [(1, 1), (3, 2)]);
    }

    #[test]
    fn an_owner_gets_no_more_than_its_quota() {
        let shares = Shares {
            limits: [(UserId(1), 1)].into(),
            ..Shares::default()
        };
        let workers = free([(1, worker(1.0)), (2, worker(0.5)), (3, worker(0.1))]);
        let found = place(&[job(1, 1), job(2, 1), job(3, 2)], &workers, &shares);
        assert_eq!(pairs(&found), [(1, 1), (3, 2)]);
    }

    #[test]
    fn a_job_that_asks_for_a_worker_gets_that_or_none() {
        let asks = WaitingJob {
            requested: Some(WorkerId(2)),
            ..job(1, 1)
        };
        let shares = Shares::default();
        assert_eq!(
            place(
                std::slice::from_ref(&asks),
                &free([(1, worker(1.0))]),
                &shares
            ),
            []
        );
        let found = place(
            &[asks],
            &free([(1, worker(9.0)), (2, worker(1.0))]),
            &shares,
        );
        assert_eq!(pairs(&found), [(1, 2)]);
    }

    #[test]
    fn a_worker_for_inference_only_is_given_no_training() {
        let inference = Abilities {
            worker_type: WorkerType::Inference,
            ..worker(9.0)
        };
        assert_eq!(
            place(&[job(1, 1)], &free([(1, inference)]), &Shares::default()),
            []
        );
    }

    #[test]
    fn a_task_gets_a_worker_that_takes_inference_and_best_one_that_does_not_train() {
        let of_type = |worker_type, score| Abilities {
            worker_type,
            ..worker(score)
        };
        let (only_trains, both) = (WorkerType::Training, WorkerType::Both);
        let best_for_task = |free: &BTreeMap<_, _>| best_for_task(free, |_| true);
        let found = best_for_task(&free([(1, of_type(only_trains, 9.0))]));
        assert_eq!(found, None);
        let found = best_for_task(&free([
            (1, of_type(both, 9.0)),
            (2, of_type(WorkerType::Inference, 1.0)),
        ]));
        assert_eq!(found, Some(WorkerId(2)));
        let found = best_for_task(&free([(1, of_type(both, 1.0)), (2, of_type(both, 9.0))]));
        assert_eq!(found, Some(WorkerId(2)));
    }

    #[test]
    fn an_export_gets_a_worker_that_makes_exports() {
        let exporter = Abilities {
            exports: true,
            ..worker(1.0)
        };
        let workers = free([(1, worker(9.0)), (2, exporter)]);
        let found = best_for_task(&workers, |abilities| abilities.exports);
        assert_eq!(found, Some(WorkerId(2)));
    }

    #[test]
    fn memory_goes_before_score_and_an_earlier_failure_comes_last() {
        let gpu = |gb, score| Abilities {
            gpu_memory_gb: Some(gb),
            ..worker(score)
        };
        let large = WaitingJob {
            needs_gpu_memory_gb: Some(20.0),
            ..job(1, 1)
        };
        let workers = free([(1, gpu(8.0, 9.0)), (2, gpu(80.0, 1.0))]);
        let found = place(std::slice::from_ref(&large), &workers, &Shares::default());
        assert_eq!(pairs(&found), [(1, 2)]);
        let found = place(&[large], &free([(1, gpu(8.0, 9.0))]), &Shares::default());
        assert_eq!(pairs(&found), [(1, 1)], "the name may mislead");
        let failed = WaitingJob {
            failed_on: vec![WorkerId(1)],
            ..job(1, 1)
        };
        let workers = free([(1, worker(9.0)), (2, worker(1.0))]);
        assert_eq!(
            pairs(&place(&[failed], &workers, &Shares::default())),
            [(1, 2)]
        );
    }

    #[test]
    fn the_name_of_a_model_tells_what_it_needs() {
        assert_eq!(gpu_memory_need_gb("meta-llama/Llama-3.1-8B"), Some(20.0));
        let small = gpu_memory_need_gb("HuggingFaceTB/SmolLM2-135M-Instruct").unwrap();
        assert!((small - 0.3375).abs() < 1e-9);
        assert_eq!(gpu_memory_need_gb("org/model"), None);
        assert_eq!(gpu_memory_need_gb("org/B"), None);
        assert_eq!(gpu_memory_need_gb(""), None);
    }

    #[test]
    fn a_waiting_job_says_why() {
        let seen = |status, connected| Seen {
            id: WorkerId(1),
            name: "east-1".into(),
            status,
            connected,
            worker_type: Some(WorkerType::Both),
        };
        let why = |worker: Option<Seen>| {
            waiting_because(None, false, &worker.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(why(None), "no worker is connected");
        assert_eq!(
            why(Some(seen(WorkerStatus::Training, true))),
            "worker east-1 is busy"
        );
        assert_eq!(
            why(Some(seen(WorkerStatus::Draining, true))),
            "worker east-1 is draining"
        );
        assert_eq!(
            why(Some(seen(WorkerStatus::Offline, false))),
            "no worker is connected"
        );
        let asked = waiting_because(
            Some(WorkerId(1)),
            false,
            &[seen(WorkerStatus::Offline, false)],
        );
        assert_eq!(asked, "worker east-1 is offline");
    }
}
