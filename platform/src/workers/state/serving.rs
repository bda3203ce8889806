//! What inference changes about a worker: it is shown, and no training is begun beside it.

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::WorkerId;

use super::{Effect, Fleet, Generation, Link};
use crate::clock::Moment;

impl Fleet {
    /// So many inference requests are with the worker from now on.
    pub fn set_serving(&mut self, worker: WorkerId, requests: usize, now: Moment) -> Vec<Effect> {
        let Some(member) = self.members.get_mut(&worker) else {
            return Vec::new();
        };
        let shown = member.status();
        member.serving = requests;
        // It said so while it served, and has just said that it does not any more.
        if requests == 0 && member.reported == Some(WorkerStatus::Inference) {
            member.reported = Some(WorkerStatus::Idle);
        }
        let mut effects: Vec<_> = member.availability(worker, now).into_iter().collect();
        if member.status() != shown {
            effects.push(Effect::Show(worker));
        }
        effects
    }

    /// The worker's connection, once it has registered on it.
    pub fn registered_link(&self, worker: WorkerId) -> Option<Generation> {
        match self.members.get(&worker)?.link {
            Link::Registered(generation) => Some(generation),
            Link::None | Link::Authenticated(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workers::event::{ReportedBy, SelfReport};
    use crate::workers::state::FleetTiming;

    const A: WorkerId = WorkerId(1);

    #[test]
    fn a_worker_that_serves_is_given_no_training_until_it_has_answered() {
        let now = Moment::from_millis(1_000);
        let timing = FleetTiming {
            heartbeat_timeout: Duration::from_secs(90),
            check_interval: Duration::from_secs(60),
            ping_grace: Duration::from_secs(10),
            settle: Duration::ZERO,
        };
        let mut fleet = Fleet::new(timing, now);
        let (generation, _) = fleet.authenticated(A, now);
        assert_eq!(fleet.registered_link(A), None);
        fleet.registered(A, generation, now);
        assert_eq!(fleet.registered_link(A), Some(generation));
        fleet.tick(now);
        assert!(fleet.view(A).unwrap().available);
        let effects = fleet.set_serving(A, 1, now);
        assert_eq!(effects, [Effect::Unavailable(A), Effect::Show(A)]);
        let busy = SelfReport {
            by: ReportedBy::Metrics,
            status: Some(WorkerStatus::Inference),
            current_job: None,
        };
        fleet.reported(A, generation, busy, now);
        assert_eq!(fleet.view(A).unwrap().status, WorkerStatus::Inference);
        let effects = fleet.set_serving(A, 0, now);
        assert_eq!(effects, [Effect::Available(A), Effect::Show(A)]);
        assert_eq!(fleet.view(A).unwrap().status, WorkerStatus::Idle);
    }
}
