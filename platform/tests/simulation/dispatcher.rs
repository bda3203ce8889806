//! The dispatcher as the simulation runs it: the real placement, and the steps of one round around it.

use std::collections::{BTreeMap, VecDeque};

use trainyard_platform::jobs::event::{Answer, Event as JobEvent};
use trainyard_platform::workers::placement::{Abilities, place};
use trainyard_shared::ids::{JobId, WorkerId};
use trainyard_shared::message::ErrorCode;

use crate::jobs::{Letter, ReplyTo};
use crate::platform::PlatformEvent;
use crate::supervisor::ToSupervisor;
use crate::world::World;

#[derive(Default)]
pub struct Dispatcher {
    looking: bool,
    poked: bool,
    pairs: VecDeque<(JobId, WorkerId)>,
    /// The pair that is being worked on.
    pair: Option<(JobId, WorkerId)>,
}

/// The steps of one round.
pub enum Round {
    Begin,
    Free(BTreeMap<WorkerId, Abilities>),
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
            (Round::Free(free), _) => {
                let (waiting, shares) = self.database.queue();
                let pairs = place(&waiting, &free, &shares);
                self.process().dispatcher.pairs = pairs.into();
                self.next_pair();
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
