//! Evaluations occupy a worker as jobs do: it is claimed, asked when it comes back, and given up with them.

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::{EvaluationId, WorkerId};

use super::{Effect, Fleet, Generation, Link, Member};
use crate::clock::Moment;
use crate::workers::event::WorkerNews;

impl Fleet {
    /// The evaluation is with the worker since before the platform's start: it is waited for.
    pub fn holds_evaluation(&mut self, worker: WorkerId, evaluation: EvaluationId) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.evaluates = Some(evaluation);
            member.presence = super::Presence::Present;
        }
    }

    /// Takes an available worker for an evaluation; false if it is not (any more) available.
    #[must_use]
    pub fn claim_for_evaluation(&mut self, worker: WorkerId, evaluation: EvaluationId) -> bool {
        match self.members.get_mut(&worker) {
            Some(member) if member.available => {
                member.evaluates = Some(evaluation);
                member.available = false;
                true
            }
            _ => false,
        }
    }

    /// The evaluation is not with the worker any more.
    pub fn evaluation_released(
        &mut self,
        worker: WorkerId,
        evaluation: EvaluationId,
        said_by_worker: bool,
        now: Moment,
    ) -> Vec<Effect> {
        let Some(member) = self
            .members
            .get_mut(&worker)
            .filter(|member| member.evaluates == Some(evaluation))
        else {
            return Vec::new();
        };
        member.evaluates = None;
        member.freed(worker, WorkerStatus::Evaluating, said_by_worker, now)
    }

    /// The worker says which evaluations it has.
    pub fn evaluations_reported(
        &self,
        worker: WorkerId,
        generation: Generation,
        evaluations: &[EvaluationId],
    ) -> Vec<Effect> {
        let member = self.members.get(&worker);
        let current = member.filter(|member| member.link == Link::Registered(generation));
        let Some(evaluation) = current.and_then(|member| member.evaluates) else {
            return Vec::new();
        };
        let (holds, first) = (evaluations.contains(&evaluation), false);
        let news = WorkerNews::Holds { holds, first };
        vec![Effect::TellEvaluation(worker, evaluation, news)]
    }

    /// The evaluation that is with the worker.
    pub fn evaluation_of(&self, worker: WorkerId) -> Option<EvaluationId> {
        self.members.get(&worker)?.evaluates
    }
}

impl Member {
    /// What the evaluation that is with the worker must know when the worker is given up.
    pub(super) fn lose_evaluation(&mut self, worker: WorkerId) -> Option<Effect> {
        let evaluation = self.evaluates.take()?;
        Some(Effect::TellEvaluation(worker, evaluation, WorkerNews::Lost))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::workers::state::FleetTiming;

    const A: WorkerId = WorkerId(1);
    const E: EvaluationId = EvaluationId(7);

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn fleet() -> (Fleet, Generation) {
        let timing = FleetTiming {
            heartbeat_timeout: Duration::from_secs(90),
            check_interval: Duration::from_secs(60),
            ping_grace: Duration::from_secs(10),
            settle: Duration::ZERO,
        };
        let mut fleet = Fleet::new(timing, at(0));
        let (generation, _) = fleet.authenticated(A, at(0));
        fleet.registered(A, generation, at(0));
        fleet.tick(at(0));
        (fleet, generation)
    }

    #[test]
    fn a_worker_that_evaluates_is_given_nothing_else() {
        let (mut fleet, generation) = fleet();
        assert!(fleet.claim_for_evaluation(A, E));
        assert!(!fleet.claim_for_evaluation(A, EvaluationId(8)));
        assert!(!fleet.claim(A, trainyard_shared::ids::JobId(1)));
        assert_eq!(fleet.view(A).unwrap().status, WorkerStatus::Evaluating);
        let holds = |holds| WorkerNews::Holds {
            holds,
            first: false,
        };
        for (said, is_held) in [(vec![E], true), (vec![], false)] {
            assert_eq!(
                fleet.evaluations_reported(A, generation, &said),
                [Effect::TellEvaluation(A, E, holds(is_held))]
            );
        }
        let effects = fleet.evaluation_released(A, E, true, at(1));
        assert_eq!(effects, [Effect::Available(A), Effect::Show(A)]);
    }

    #[test]
    fn a_worker_whose_evaluation_was_cancelled_is_asked_first() {
        let (mut fleet, _) = fleet();
        assert!(fleet.claim_for_evaluation(A, E));
        let effects = fleet.evaluation_released(A, E, false, at(1));
        assert_eq!(effects, [Effect::Ping(A), Effect::Show(A)]);
        assert!(!fleet.view(A).unwrap().available);
    }

    #[test]
    fn an_evaluation_is_told_once_that_its_worker_is_given_up() {
        let (mut fleet, generation) = fleet();
        assert!(fleet.claim_for_evaluation(A, E));
        fleet.disconnected(A, generation, at(1));
        fleet.check(at(60));
        let effects = fleet.check(at(120));
        let told = Effect::TellEvaluation(A, E, WorkerNews::Lost);
        assert!(effects.contains(&told), "{effects:?}");
        assert_eq!(fleet.evaluation_of(A), None);
    }
}
