//! Which workers take part in a federated session and what each does in the round: pure, beside the rounds
//! themselves ([`crate::rounds::state`]).
//!
//! 1. A round begins once `min_workers` take part. All of them are asked for a result; so many results as are
//!    awaited close the round, fewer (but `min_workers`) at its deadline.
//! 2. A worker that joins later gets its first order when the next round opens, with that round's weights. Where
//!    the round can no longer come to `min_workers` results without it, or its time is over, it joins at once.
//! 3. A worker that is lost, or fails, is not awaited any more; what it has delivered counts. One that fails is
//!    asked again, and has to leave after [`MOST_FAILURES`] in a row.
//! 4. As long as a round cannot come to `min_workers` results it has no deadline, and says whom it waits for.
//! 5. The deadline follows what rounds took (`times`), never beyond the round timeout. Who has not delivered at
//!    its end, in a round that has too few results by then, gets the same time once more. Then it is taken for hung
//!    and has to leave, so that its place is free for another or for itself.
//! 6. With secure aggregation results stay with the workers until all that are awaited have one, or at the deadline
//!    enough; then [`masking`] brings them to a sum, which closes the round.

mod event;
mod failures;
pub mod masking;
mod members;
mod reason;
mod seeking;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use trainyard_shared::ids::WorkerId;

use crate::clock::Moment;
use event::in_order;
pub use event::{Effect, Event, Order};
pub use failures::{Failed, Failures, MOST_FAILURES};
use masking::Masking;
pub use seeking::Seeking;
pub use times::Times;

/// What a session was made with.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Parts of the data.
    pub shards: u64,
    /// A round needs so many results.
    pub min_workers: usize,
    /// So many workers take part at most.
    pub max_workers: usize,
    /// A round's longest time.
    pub round_timeout: Duration,
    /// How many median absolute deviations beyond the median the deadline lies; 0: at the round timeout.
    pub deadline_deviations: f64,
    /// The only workers that may take part, where some are named.
    pub allowed: Option<BTreeSet<WorkerId>>,
}

/// What the rounds themselves do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The round takes results.
    Open,
    /// Its results are being merged.
    Merging,
    /// There are no more rounds.
    Ended,
}

/// What a worker does in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    /// It waits for the next round.
    Waits,
    /// It was asked for the round's result.
    Trains {
        /// When it was asked first.
        since: Moment,
        /// When it was asked last.
        asked: Moment,
    },
    /// Its result counts.
    Delivered,
    /// With secure aggregation: it has a result, which is not masked yet or whose sum is not read.
    Trained {
        /// Examples that it was trained on.
        examples: u64,
    },
    /// It has failed.
    Failed {
        /// Why, for a person.
        error: String,
        /// When it is asked again.
        again_at: Moment,
    },
}

/// A worker that takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its part of the data.
    pub shard: u64,
    /// What it does.
    pub doing: Doing,
    /// Whether it has been told of the session on its present connection.
    knows: bool,
}

/// A session as it stands in the database.
#[derive(Debug, Clone)]
pub struct Known {
    /// What the rounds do.
    pub stage: Stage,
    /// The round, from 0.
    pub round: u64,
    /// Workers whose results count in it.
    pub results: BTreeSet<WorkerId>,
    /// Workers that take part.
    pub members: BTreeSet<WorkerId>,
    /// The parts of the data of these, and of those that took part before.
    pub shards: BTreeMap<WorkerId, u64>,
    /// How often workers failed in a row.
    pub failures: Failures,
    /// How long workers took for rounds.
    pub times: Times,
}

/// A session's workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    settings: Settings,
    stage: Stage,
    /// From 0.
    round: u64,
    /// Results that count in the round, of workers that may have left.
    results: BTreeSet<WorkerId>,
    members: BTreeMap<WorkerId, Member>,
    failures: Failures,
    /// Every worker keeps its part of the data.
    shards: BTreeMap<WorkerId, u64>,
    times: Times,
    /// With secure aggregation: how the results become a sum.
    masking: Option<Masking>,
    /// What was said last.
    expected: Option<usize>,
    deadline: Option<Moment>,
    /// From the round's beginning to its deadline.
    round_time: Duration,
    /// Whether the deadline has passed, and the round is still open.
    is_overdue: bool,
}

impl Session {
    /// A session as it stands in the database. Those that take part may still train; until they are back or given up
    /// they are awaited.
    pub fn new(settings: Settings, masking: Option<Masking>, known: Known, now: Moment) -> Self {
        let begun = known.members.len() >= settings.min_workers || !known.results.is_empty();
        let member = |worker: &WorkerId| Member {
            shard: known.shards.get(worker).copied().unwrap_or(0),
            doing: match (known.results.contains(worker), begun) {
                (true, _) => Doing::Delivered,
                (false, true) => Doing::Trains {
                    since: now,
                    asked: now,
                },
                (false, false) => Doing::Waits,
            },
            knows: false,
        };
        Self {
            members: known.members.iter().map(|id| (*id, member(id))).collect(),
            round_time: settings.round_timeout,
            settings,
            stage: known.stage,
            round: known.round,
            results: known.results,
            failures: known.failures,
            shards: known.shards,
            times: known.times,
            masking,
            expected: None,
            deadline: None,
            is_overdue: false,
        }
    }

    /// The round, from 0.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether it is over and its workers were told.
    pub fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// The workers that take part.
    pub fn members(&self) -> &BTreeMap<WorkerId, Member> {
        &self.members
    }

    /// How often workers have failed in a row.
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// How long workers took.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// How results become a sum, with secure aggregation.
    pub fn masking(&self) -> Option<&Masking> {
        self.masking.as_ref()
    }

    /// Whether the round takes results.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// The part of the data of a worker that takes part, or did before.
    pub fn shard_of(&self, worker: WorkerId) -> Option<u64> {
        self.shards.get(&worker).copied()
    }

    /// Whether a worker takes part, or did before.
    pub fn knows(&self, worker: WorkerId) -> bool {
        self.shards.contains_key(&worker)
    }

    /// Results that there are in the round.
    pub fn delivered(&self) -> usize {
        match self.masking {
            Some(_) => self.trained().count(),
            None => self.results.len(),
        }
    }

    /// When [`Event::TimePassed`] is due.
    pub fn next_due(&self) -> Option<Moment> {
        let of_members = self
            .members
            .values()
            .filter_map(|member| match member.doing {
                Doing::Failed { again_at, .. } => Some(again_at),
                Doing::Trains { since, .. } if self.is_short() => Some(since + 2 * self.round_time),
                _ => None,
            });
        let deadline = self.deadline.filter(|_| !self.is_overdue);
        let of_sum = self.masking.as_ref().and_then(Masking::next_due);
        let next = of_members.chain(deadline).chain(of_sum).min();
        next.filter(|_| self.stage == Stage::Open)
    }

    /// When the round closes with fewer results than are awaited.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline.filter(|_| self.stage == Stage::Open)
    }

    /// Results that close the round.
    pub fn expected(&self) -> Option<usize> {
        self.expected.filter(|_| self.stage == Stage::Open)
    }

    /// Lets an event happen.
    pub fn apply(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.is_overdue |= self.deadline().is_some_and(|deadline| deadline <= now);
        match event {
            Event::WorkersGiven(workers) => {
                for worker in workers {
                    self.given(worker, &mut effects);
                }
            }
            Event::WorkerRegistered(worker) => self.registered(worker, now, &mut effects),
            Event::WorkerHolds { worker, holds } => {
                if !holds {
                    self.has_nothing(worker, now, &mut effects);
                }
            }
            Event::WorkerLost(worker) => self.lost(worker, &mut effects),
            Event::ResultTaken { worker, round } => {
                // News of a round that has been merged meanwhile come late.
                if round == self.round && self.stage != Stage::Ended {
                    self.taken(worker, Doing::Delivered, now, &mut effects);
                    self.results.insert(worker);
                }
            }
            Event::Trained {
                worker,
                round,
                examples,
            } => {
                if round == self.round && self.stage == Stage::Open {
                    self.taken(worker, Doing::Trained { examples }, now, &mut effects);
                }
            }
            Event::Said {
                worker,
                attempt,
                said,
            } => self.said(worker, attempt, said, now, &mut effects),
            Event::Misbehaved { worker, error } => {
                self.misbehaved(worker, error, now, &mut effects)
            }
            Event::PutOff { worker, attempt } => {
                if let Some(masking) = &mut self.masking {
                    masking.put_off(worker, attempt);
                }
            }
            Event::Unread { attempt, why } => {
                if let Some(masking) = &mut self.masking {
                    masking.unread(attempt, why, now);
                }
            }
            Event::Failed {
                worker,
                round,
                error,
            } => {
                if round.is_none_or(|round| round == self.round) {
                    self.failed(worker, error, now, &mut effects);
                }
            }
            Event::RoundOpened { round, draining } => {
                self.opened(round, &draining, &mut effects);
            }
            Event::RoundClosing => self.closing(now, &mut effects),
            Event::RoundReopened(without) => self.reopened(&without),
            Event::Ended => self.end(&mut effects),
            Event::TimePassed => {}
        }
        if self.stage == Stage::Open {
            self.give_up_hung(now, &mut effects);
            self.begin_or_join(now, &mut effects);
            self.settle(now, &mut effects);
            self.bring_to_sum(now, &mut effects);
        }
        effects.push(Effect::Show);
        in_order(effects)
    }

    /// A worker that has not delivered and is expected to.
    fn awaited(&self) -> impl Iterator<Item = (&WorkerId, &Member)> {
        self.members.iter().filter(|(_, member)| {
            matches!(member.doing, Doing::Trains { .. } | Doing::Failed { .. })
        })
    }

    /// Workers that keep a result until it can be summed, and the examples of that.
    fn trained(&self) -> impl Iterator<Item = (WorkerId, u64)> {
        self.members
            .iter()
            .filter_map(|(worker, member)| match member.doing {
                Doing::Trained { examples } => Some((*worker, examples)),
                _ => None,
            })
    }

    /// Whether the round can come to enough results with those that were asked.
    fn can_close(&self) -> bool {
        self.delivered() + self.awaited().count() >= self.settings.min_workers
    }

    /// Whether the round's time is over, and it has too few results.
    fn is_short(&self) -> bool {
        self.is_overdue && self.delivered() < self.settings.min_workers
    }

    /// How many results are awaited, and until when.
    fn settle(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let needed = self.settings.min_workers;
        let expected = (self.delivered() + self.awaited().count()).max(needed);
        if self.expected != Some(expected) {
            self.expected = Some(expected);
            effects.push(Effect::Expect(expected));
        }
        match (self.can_close(), self.deadline) {
            (true, None) => {
                let Settings {
                    deadline_deviations,
                    round_timeout,
                    ..
                } = self.settings;
                self.round_time = self.times.for_a_round(deadline_deviations, round_timeout);
                let deadline = now + self.round_time;
                self.deadline = Some(deadline);
                effects.push(Effect::Deadline(Some(deadline)));
            }
            (false, Some(_)) => {
                self.deadline = None;
                self.is_overdue = false;
                effects.push(Effect::Deadline(None));
            }
            _ => {}
        }
    }

    /// With secure aggregation: goes on with the sum, or begins with it once nobody is waited for any more.
    fn bring_to_sum(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let trained: BTreeMap<WorkerId, u64> = self.trained().collect();
        let is_time = self.is_overdue || self.awaited().next().is_none();
        let Some(masking) = &mut self.masking else {
            return;
        };
        for (worker, error) in masking.advance(now, effects) {
            self.failed(worker, error, now, effects);
        }
        let Some(masking) = &mut self.masking else {
            return;
        };
        if let Some(exposed) = masking.gives_up() {
            let of = match exposed.is_empty() {
                true => self.members.keys().copied().collect(),
                false => exposed,
            };
            effects.push(Effect::CloseUnchanged(of));
        }
        let are_enough = trained.len() >= masking.rules().fewest();
        if is_time && are_enough && masking.may_begin() {
            masking.begin(trained, now, effects);
        }
    }
}
