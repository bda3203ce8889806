//! Tasks and federated sessions occupy a worker as jobs do: it is claimed, asked when it comes back, and
//! given up with them.

use trainyard_shared::WorkerStatus;
use trainyard_shared::ids::WorkerId;

use super::{Effect, Fleet, Generation, Link, Member};
use crate::clock::Moment;
use crate::workers::event::{NamedWork, Occupation, WorkerNews};

impl Fleet {
    /// The worker is occupied since before the platform's start: it is waited for.
    pub fn is_occupied_since_before(&mut self, worker: WorkerId, with: Occupation) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.occupied = Some(with);
            member.presence = super::Presence::Present;
        }
    }

    /// Takes an available worker for this; false if it is not (any more) available.
    #[must_use]
    pub fn occupy(&mut self, worker: WorkerId, with: Occupation) -> bool {
        match self.members.get_mut(&worker) {
            Some(member) if member.available => {
                member.occupied = Some(with);
                member.available = false;
                true
            }
            _ => false,
        }
    }

    /// This is not with the worker any more.
    pub fn vacated(
        &mut self,
        worker: WorkerId,
        of: Occupation,
        said_by_worker: bool,
        now: Moment,
    ) -> Vec<Effect> {
        let Some(member) = self
            .members
            .get_mut(&worker)
            .filter(|member| member.occupied == Some(of))
        else {
            return Vec::new();
        };
        member.occupied = None;
        member.freed(worker, of.status(), said_by_worker, now)
    }

    /// The worker says which tasks and sessions it has.
    pub fn work_named(
        &mut self,
        worker: WorkerId,
        generation: Generation,
        named: &NamedWork,
        now: Moment,
    ) -> Vec<Effect> {
        let Some(member) = self
            .members
            .get_mut(&worker)
            .filter(|member| member.link == Link::Registered(generation))
        else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        let own = member.occupied;
        for session in named.sessions.iter().flatten() {
            if own != Some(Occupation::Session(*session)) {
                effects.push(Effect::StopForeignSession(worker, *session));
                member.assume(WorkerStatus::Federated);
                member.settles_at = None;
                effects.extend(member.availability(worker, now));
            }
        }
        if let Some(own) = own
            && let Some(holds) = named.holds(own)
        {
            let first = false;
            let news = WorkerNews::Holds { holds, first };
            effects.push(Effect::TellOccupation(worker, own, news));
        }
        effects
    }

    /// What occupies the worker beside jobs.
    pub fn occupation_of(&self, worker: WorkerId) -> Option<Occupation> {
        self.members.get(&worker)?.occupied
    }
}

impl Member {
    /// What must be known where the worker is occupied, when it is given up.
    pub(super) fn lose_occupation(&mut self, worker: WorkerId) -> Option<Effect> {
        let occupied = self.occupied.take()?;
        Some(Effect::TellOccupation(worker, occupied, WorkerNews::Lost))
    }

    /// The same of anything less than that.
    pub(super) fn tell_occupation(&self, worker: WorkerId, news: WorkerNews) -> Option<Effect> {
        Some(Effect::TellOccupation(worker, self.occupied?, news))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use trainyard_shared::ids::{EvaluationId, ExportId, FederatedSessionId, JobId, TaskId};

    use super::*;
    use crate::workers::state::FleetTiming;

    const A: WorkerId = WorkerId(1);
    const E: Occupation = Occupation::Task(TaskId::Evaluation(EvaluationId(7)));
    const X: Occupation = Occupation::Task(TaskId::Export(ExportId(7)));
    const S: Occupation = Occupation::Session(FederatedSessionId(7));

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

    fn evaluations(ids: &[i64]) -> NamedWork {
        NamedWork {
            evaluations: Some(ids.iter().map(|id| EvaluationId(*id)).collect()),
            ..NamedWork::default()
        }
    }

    fn sessions(ids: &[i64]) -> NamedWork {
        NamedWork {
            sessions: Some(ids.iter().map(|id| FederatedSessionId(*id)).collect()),
            ..NamedWork::default()
        }
    }

    fn told(of: Occupation, holds: bool) -> Effect {
        let first = false;
        Effect::TellOccupation(A, of, WorkerNews::Holds { holds, first })
    }

    #[test]
    fn a_worker_that_is_occupied_is_given_nothing_else_and_says_so() {
        for (occupation, status) in [
            (E, WorkerStatus::Evaluating),
            (X, WorkerStatus::Exporting),
            (S, WorkerStatus::Federated),
        ] {
            let (mut fleet, _) = fleet();
            assert!(fleet.occupy(A, occupation));
            assert!(!fleet.occupy(A, E) && !fleet.occupy(A, S));
            assert!(!fleet.claim(A, JobId(1)));
            assert_eq!(fleet.view(A).unwrap().status, status);
            assert_eq!(
                fleet.vacated(A, Occupation::Task(EvaluationId(8).into()), true, at(1)),
                []
            );
            let effects = fleet.vacated(A, occupation, true, at(1));
            assert_eq!(effects, [Effect::Available(A), Effect::Show(A)]);
        }
    }

    #[test]
    fn what_a_worker_says_that_it_has_is_told_to_what_occupies_it() {
        let (mut fleet, generation) = fleet();
        assert!(fleet.occupy(A, E));
        for (said, expected) in [
            (evaluations(&[7]), vec![told(E, true)]),
            (evaluations(&[]), vec![told(E, false)]),
            (sessions(&[]), vec![]),
        ] {
            assert_eq!(fleet.work_named(A, generation, &said, at(1)), expected);
        }
        fleet.vacated(A, E, true, at(1));
        assert!(fleet.occupy(A, S));
        let heard = fleet.work_named(A, generation, &sessions(&[7]), at(1));
        assert_eq!(heard, [told(S, true)]);
    }

    #[test]
    fn a_session_that_is_not_the_worker_s_is_stopped_before_it_gets_anything_else() {
        let (mut fleet, generation) = fleet();
        let effects = fleet.work_named(A, generation, &sessions(&[9]), at(1));
        let stop = Effect::StopForeignSession(A, FederatedSessionId(9));
        assert_eq!(effects, [stop, Effect::Unavailable(A)]);
        assert!(!fleet.occupy(A, S));
    }

    #[test]
    fn a_worker_from_which_something_was_taken_is_asked_first() {
        let (mut fleet, _) = fleet();
        assert!(fleet.occupy(A, E));
        let effects = fleet.vacated(A, E, false, at(1));
        assert_eq!(effects, [Effect::Ping(A), Effect::Show(A)]);
        assert!(!fleet.view(A).unwrap().available);
    }

    #[test]
    fn what_occupies_a_worker_is_told_of_its_connections_and_once_that_it_is_given_up() {
        let (mut fleet, generation) = fleet();
        assert!(fleet.occupy(A, S));
        let effects = fleet.disconnected(A, generation, at(1));
        let disconnected = Effect::TellOccupation(A, S, WorkerNews::Disconnected);
        assert!(effects.contains(&disconnected), "{effects:?}");
        let (generation, _) = fleet.authenticated(A, at(2));
        let effects = fleet.registered(A, generation, at(2));
        let registered = Effect::TellOccupation(A, S, WorkerNews::Registered);
        assert!(effects.contains(&registered), "{effects:?}");
        fleet.disconnected(A, generation, at(3));
        fleet.check(at(60));
        let effects = fleet.check(at(120));
        let lost = Effect::TellOccupation(A, S, WorkerNews::Lost);
        assert!(effects.contains(&lost), "{effects:?}");
        assert_eq!(fleet.occupation_of(A), None);
    }
}
