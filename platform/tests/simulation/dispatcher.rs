//! The dispatcher as the simulation runs it: the real placement, and the steps of one round around it.

use std::collections::{BTreeMap, VecDeque};

use trainyard_platform::federated::state::Event as SessionEvent;
use trainyard_platform::jobs::event::{Answer, Event as JobEvent};
use trainyard_platform::workers::placement::{Abilities, place};
use trainyard_shared::ids::{FederatedSessionId, JobId, WorkerId};
use trainyard_shared::message::ErrorCode;

use crate::jobs::{Letter, ReplyTo};
use crate::platform::PlatformEvent;
use crate::supervisor::ToSupervisor;
use crate::world::World;

#[derive(Default)]
pub struct Dispatcher {
    looking: bool,
    poked: bool,
    /// Workers that sessions are to get, and those of the first that are taken for it.
    sessions: VecDeque<(FederatedSessionId, VecDeque<WorkerId>)>,
    given: Vec<WorkerId>,
    pairs: VecDeque<(JobId, WorkerId)>,
    /// The pair that is being worked on.
    pair: Option<(JobId, WorkerId)>,
}

/// The steps of one round.
pub enum Round {
    Begin,
    Free(BTreeMap<WorkerId, Abilities>),
    Occupied(bool),
    Claimed(bool),
    Assigned(Result<Answer, ErrorCode>),
    Next,
}

impl World {
    pub fn poke(&mut self) {
        let dispatcher = &mut self.process().dispatcher;
        if dispatcher.looking {
            dispatcher.poked = true;
        } else {
            dispatcher.looking = true;
            self.platform_soon(PlatformEvent::Dispatcher(Round::Begin));
        }
    }

    pub fn dispatch(&mut self, round: Round) {
        let pair = self.process().dispatcher.pair;
        match (round, pair) {
            (Round::Begin, _) => self.tell_supervisor(ToSupervisor::GetFree),
            (Round::Free(mut free), _) => {
                let sessions = self.choose_for_sessions(&mut free);
                let (waiting, shares) = self.database.queue();
                let pairs = place(&waiting, &free, &shares);
                let dispatcher = &mut self.process().dispatcher;
                dispatcher.pairs = pairs.into();
                dispatcher.sessions = sessions;
                self.next_of_session();
            }
            (Round::Occupied(is_taken), _) => {
                let dispatcher = &mut self.process().dispatcher;
                let (_, left) = dispatcher.sessions.front_mut().expect("one is asked for");
                let worker = left.pop_front().expect("one is asked for");
                dispatcher.given.extend(is_taken.then_some(worker));
                self.next_of_session();
            }
            (Round::Claimed(true), Some((job, worker))) => {
                let letter = Letter {
                    event: JobEvent::Assign(worker),
                    lease: None,
                    reply_to: ReplyTo::Dispatcher,
                };
                self.post(job, letter);
            }
            (Round::Assigned(Ok(Answer::Taken)), _) => self.next_pair(),
            (Round::Assigned(answer), Some((job, worker))) => {
                // Where the outcome is not known it may be assigned all the same: then the worker is its own.
                let actor = self.process().jobs.get(&job);
                if actor.is_some_and(|actor| actor.is_rereading()) {
                    let again = PlatformEvent::Dispatcher(Round::Assigned(answer));
                    return self.platform_later(2, again);
                }
                let is_its_own = actor.and_then(|actor| actor.state.phase.worker()) == Some(worker);
                if answer.is_err() && is_its_own {
                    self.next_pair();
                } else {
                    self.tell_supervisor(ToSupervisor::Unclaim { worker, job });
                }
            }
            (Round::Next | Round::Claimed(false), _) => self.next_pair(),
            (Round::Claimed(true) | Round::Assigned(_), None) => unreachable!("a round has a pair"),
        }
    }

    /// Sessions go before jobs; all that one gets are given to it together.
    fn next_of_session(&mut self) {
        let dispatcher = &mut self.process().dispatcher;
        let Some((session, left)) = dispatcher.sessions.front() else {
            return self.next_pair();
        };
        let session = *session;
        if let Some(&worker) = left.front() {
            return self.tell_supervisor(ToSupervisor::Occupy { worker, session });
        }
        dispatcher.sessions.pop_front();
        let given = std::mem::take(&mut dispatcher.given);
        let event = SessionEvent::WorkersGiven(given.clone());
        if !given.is_empty() && !self.tell_session(session, event) {
            for worker in given {
                self.tell_supervisor(ToSupervisor::Vacate {
                    worker,
                    session,
                    said_by_worker: true,
                });
            }
        }
        self.next_of_session();
    }

    fn next_pair(&mut self) {
        let dispatcher = &mut self.process().dispatcher;
        dispatcher.pair = dispatcher.pairs.pop_front();
        match dispatcher.pair {
            Some((job, worker)) => self.tell_supervisor(ToSupervisor::Claim { worker, job }),
            None => {
                dispatcher.looking = false;
                if std::mem::take(&mut dispatcher.poked) {
                    self.poke();
                }
            }
        }
    }
}
