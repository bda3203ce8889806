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
//! 5. The deadline follows what rounds took: median + k times the median absolute deviation of the workers' times,
//!    never beyond the round timeout.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use trainyard_shared::ids::WorkerId;

use crate::clock::Moment;
use crate::workers::placement::Abilities;

/// Failures in a row after which a worker has to leave.
pub const MOST_FAILURES: u32 = 3;
/// A worker that failed is asked again after this time, times its failures in a row.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// A worker that says that it has nothing of the session is asked again no sooner than this.
const REPEAT_DELAY: Duration = Duration::from_secs(5);
/// Times of workers that the deadline follows: the newest ones.
const TIMES: usize = 64;
/// With fewer times the deadline is the round timeout.
const FEWEST_TIMES: usize = 3;
/// The deadline lies at least this much of the median beyond it: equal times must not make it merciless.
const LEAST_SLACK: f64 = 0.5;
/// And at least this long.
const SHORTEST_SLACK: Duration = Duration::from_secs(1);

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
    /// Failures in a row.
    pub failures: u32,
    /// Whether it has been told of the session on its present connection.
    knows: bool,
}

/// What happens to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// These workers were claimed for the session.
    WorkersGiven(Vec<WorkerId>),
    /// A worker has registered on a new connection.
    WorkerRegistered(WorkerId),
    /// A worker says whether it takes part.
    WorkerHolds {
        /// The worker.
        worker: WorkerId,
        /// Whether it does.
        holds: bool,
    },
    /// A worker is given up.
    WorkerLost(WorkerId),
    /// A worker's result for a round counts, or has counted before.
    ResultTaken {
        /// The worker.
        worker: WorkerId,
        /// The round, from 0.
        round: u64,
    },
    /// A worker has no result for a round.
    Failed {
        /// The worker.
        worker: WorkerId,
        /// The round, from 0; none where it did not get so far.
        round: Option<u64>,
        /// Why, for a person.
        error: String,
    },
    /// A round is open; those workers are to be given nothing new.
    RoundOpened {
        /// The round, from 0.
        round: u64,
        /// Workers that drain.
        draining: BTreeSet<WorkerId>,
    },
    /// The round is closed; its results are being merged.
    RoundClosing,
    /// These results cannot be merged; the round is open again without them.
    RoundReopened(Vec<WorkerId>),
    /// The session has ended.
    Ended,
    /// Something may be due.
    TimePassed,
}

/// How a worker is told of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `start_federated_training`: all that there is to know.
    Start,
    /// `load_aggregated_weights` and `continue_round`.
    GoOn,
}

/// What must be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write down that the worker takes part, with this part of the data.
    Join(WorkerId, u64),
    /// Write down that it does not any more.
    Leave(WorkerId),
    /// So many results close the round.
    Expect(usize),
    /// The round's deadline.
    Deadline(Option<Moment>),
    /// Show how the session stands.
    Show,
    /// Ask a worker for the round's result.
    Order(WorkerId, Order),
    /// Tell a worker that the session is over for it.
    Stop(WorkerId),
    /// The worker is free.
    Release(WorkerId),
    /// Workers are looked for.
    SeekWorkers,
}

/// The workers that a session looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeking {
    /// So many at most.
    pub wanted: usize,
    /// So many at least, or none.
    pub needed: usize,
    /// Only these, where some are named.
    pub allowed: Option<BTreeSet<WorkerId>>,
    /// None of these.
    pub barred: BTreeSet<WorkerId>,
    /// These before all others: they have a part of the data already.
    pub known: BTreeSet<WorkerId>,
}

impl Seeking {
    /// The best of the free workers: those that are known, then by their benchmark's score.
    pub fn choose(&self, free: &BTreeMap<WorkerId, Abilities>) -> Vec<WorkerId> {
        let may_join = |worker: &WorkerId| {
            let is_allowed = self
                .allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(worker));
            is_allowed && !self.barred.contains(worker)
        };
        let mut chosen: Vec<_> = free
            .iter()
            .filter(|(worker, abilities)| {
                may_join(worker) && abilities.worker_type.takes_training()
            })
            .map(|(worker, abilities)| {
                let score = abilities.score.filter(|score| score.is_finite());
                (
                    !self.known.contains(worker),
                    score.unwrap_or(f64::NEG_INFINITY),
                    *worker,
                )
            })
            .collect();
        if chosen.len() < self.needed {
            return Vec::new();
        }
        chosen.sort_by(|(a_new, a_score, a), (b_new, b_score, b)| {
            let by_score = b_score.total_cmp(a_score);
            a_new.cmp(b_new).then(by_score).then(a.cmp(b))
        });
        chosen.truncate(self.wanted);
        chosen.into_iter().map(|(.., worker)| worker).collect()
    }
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
    /// Workers that failed too often, and why.
    barred: BTreeMap<WorkerId, String>,
    /// Every worker keeps its part of the data.
    shards: BTreeMap<WorkerId, u64>,
    times: VecDeque<Duration>,
    /// What was said last.
    expected: Option<usize>,
    deadline: Option<Moment>,
    /// Whether the deadline has passed with too few results.
    is_overdue: bool,
}

impl Session {
    /// A session as it stands in the database: these workers take part, and their parts of the data are known, with
    /// those of workers that took part before. They may still train; until they are back or given up they are
    /// awaited.
    pub fn new(
        settings: Settings,
        (stage, round): (Stage, u64),
        results: BTreeSet<WorkerId>,
        members: BTreeSet<WorkerId>,
        shards: BTreeMap<WorkerId, u64>,
        now: Moment,
    ) -> Self {
        let begun = members.len() >= settings.min_workers || !results.is_empty();
        let member = |worker: &WorkerId| Member {
            shard: shards.get(worker).copied().unwrap_or(0),
            doing: match (results.contains(worker), begun) {
                (true, _) => Doing::Delivered,
                (false, true) => Doing::Trains {
                    since: now,
                    asked: now,
                },
                (false, false) => Doing::Waits,
            },
            failures: 0,
            knows: false,
        };
        Self {
            members: members.iter().map(|id| (*id, member(id))).collect(),
            settings,
            stage,
            round,
            results,
            barred: BTreeMap::new(),
            shards,
            times: VecDeque::new(),
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

    /// How many more workers are wanted.
    pub fn wanted(&self) -> usize {
        match self.stage {
            Stage::Ended => 0,
            _ => self.settings.max_workers.saturating_sub(self.members.len()),
        }
    }

    /// Whether a worker may take part that does not yet.
    pub fn may_join(&self, worker: WorkerId) -> bool {
        let allowed = self.settings.allowed.as_ref();
        allowed.is_none_or(|allowed| allowed.contains(&worker))
            && !self.barred.contains_key(&worker)
    }

    /// Whether a worker takes part, or did before.
    pub fn knows(&self, worker: WorkerId) -> bool {
        self.shards.contains_key(&worker)
    }

    /// What the session looks for, if it does.
    pub fn seeking(&self) -> Option<Seeking> {
        let wanted = self.wanted();
        (wanted > 0).then(|| Seeking {
            wanted,
            // A session that has workers keeps them; one without any begins only with enough, so that two sessions
            // never wait for each other's.
            needed: match self.members.is_empty() {
                true => self.settings.min_workers,
                false => 1,
            },
            allowed: self.settings.allowed.clone(),
            barred: self.barred.keys().copied().collect(),
            known: self.shards.keys().copied().collect(),
        })
    }

    /// When [`Event::TimePassed`] is due.
    pub fn next_due(&self) -> Option<Moment> {
        let retries = self
            .members
            .values()
            .filter_map(|member| match member.doing {
                Doing::Failed { again_at, .. } => Some(again_at),
                _ => None,
            });
        let deadline = self.deadline.filter(|_| !self.is_overdue);
        let next = retries.chain(deadline).min();
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

    /// Why the session does not go on, for a person.
    pub fn waiting_because(&self) -> Option<String> {
        match self.stage {
            Stage::Ended => return None,
            Stage::Merging => return Some("the round's results are being merged".to_owned()),
            Stage::Open => {}
        }
        let needed = self.settings.min_workers;
        let (there, delivered) = (self.members.len(), self.results.len());
        let awaited = self.awaited().count();
        let mut reason = if self.can_close() && self.is_overdue {
            format!(
                "the round's time is over; it closes with {needed} results, and has {delivered}"
            )
        } else if self.can_close() {
            let of = delivered + awaited;
            format!("{delivered} of {of} results are there")
        } else {
            let workers = match there {
                0 => "no worker takes part".to_owned(),
                1 => "1 worker takes part".to_owned(),
                many => format!("{many} workers take part"),
            };
            let results = match delivered {
                0 => String::new(),
                1 => "; 1 result is there".to_owned(),
                many => format!("; {many} results are there"),
            };
            format!("{workers}, and the round needs {needed}{results}")
        };
        for (worker, member) in &self.members {
            if let Doing::Failed { error, .. } = &member.doing {
                reason.push_str(&format!("; worker {worker} failed: {error}"));
            }
        }
        for (worker, error) in &self.barred {
            reason.push_str(&format!("; worker {worker} failed too often: {error}"));
        }
        Some(reason)
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
            Event::WorkerLost(worker) => {
                if self.members.remove(&worker).is_some() {
                    effects.push(Effect::Leave(worker));
                    effects.push(Effect::SeekWorkers);
                }
            }
            Event::ResultTaken { worker, round } => {
                // News of a round that has been merged meanwhile come late.
                if round == self.round && self.stage != Stage::Ended {
                    self.taken(worker, now);
                }
            }
            Event::Failed {
                worker,
                round,
                error,
            } => self.failed(worker, round, error, now, &mut effects),
            Event::RoundOpened { round, draining } => {
                self.opened(round, &draining, &mut effects);
            }
            Event::RoundClosing => self.closing(now),
            Event::RoundReopened(without) => self.reopened(&without),
            Event::Ended => {
                self.stage = Stage::Ended;
                for worker in self.members.keys().copied().collect::<Vec<_>>() {
                    self.dismiss(worker, &mut effects);
                }
            }
            Event::TimePassed => {}
        }
        if self.stage == Stage::Open {
            self.begin_or_join(now, &mut effects);
            self.settle(now, &mut effects);
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

    /// Whether the round can come to enough results with those that were asked.
    fn can_close(&self) -> bool {
        self.results.len() + self.awaited().count() >= self.settings.min_workers
    }

    fn given(&mut self, worker: WorkerId, effects: &mut Vec<Effect>) {
        if self.members.contains_key(&worker) {
            return;
        }
        if self.wanted() == 0 || !self.may_join(worker) {
            effects.push(Effect::Release(worker));
            return;
        }
        let shard = match self.shards.get(&worker) {
            Some(shard) => *shard,
            None => self.least_used_shard(),
        };
        self.shards.insert(worker, shard);
        effects.push(Effect::Join(worker, shard));
        // A result of its may be there from before it was lost.
        let doing = match self.results.contains(&worker) {
            true => Doing::Delivered,
            false => Doing::Waits,
        };
        let member = Member {
            shard,
            doing,
            failures: 0,
            knows: false,
        };
        self.members.insert(worker, member);
    }

    /// The part of the data that the fewest of those have that take part; among equals the one that the fewest
    /// ever had, then the first.
    fn least_used_shard(&self) -> u64 {
        let now = |shard: u64| self.members.values().filter(|it| it.shard == shard).count();
        let ever = |shard: u64| self.shards.values().filter(|it| **it == shard).count();
        (0..self.settings.shards)
            .min_by_key(|shard| (now(*shard), ever(*shard), *shard))
            .unwrap_or(0)
    }

    fn registered(&mut self, worker: WorkerId, now: Moment, effects: &mut Vec<Effect>) {
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        member.knows = false;
        if let Doing::Trains { asked, .. } = &mut member.doing
            && self.stage == Stage::Open
        {
            *asked = now;
            member.knows = true;
            effects.push(Effect::Order(worker, Order::Start));
        }
    }

    /// The worker has nothing of the session: the order may have been lost, or the worker was started anew.
    fn has_nothing(&mut self, worker: WorkerId, now: Moment, effects: &mut Vec<Effect>) {
        let is_open = self.stage == Stage::Open;
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        let Doing::Trains { asked, .. } = &mut member.doing else {
            member.knows = false;
            return;
        };
        if is_open && now.since(*asked) >= REPEAT_DELAY {
            *asked = now;
            member.knows = true;
            effects.push(Effect::Order(worker, Order::Start));
        }
    }

    fn taken(&mut self, worker: WorkerId, now: Moment) {
        self.results.insert(worker);
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        member.failures = 0;
        let before = std::mem::replace(&mut member.doing, Doing::Delivered);
        // Those of a round that closes are recorded together.
        if let Doing::Trains { since, .. } = before
            && self.stage == Stage::Open
        {
            self.record(now.since(since));
        }
    }

    fn failed(
        &mut self,
        worker: WorkerId,
        round: Option<u64>,
        error: String,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let (is_open, current) = (self.stage == Stage::Open, self.round);
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        let is_past = round.is_some_and(|round| round != current);
        if is_past || !is_open || !matches!(member.doing, Doing::Trains { .. }) {
            return;
        }
        member.failures += 1;
        member.knows = false;
        let failures = member.failures;
        let again_at = now + RETRY_DELAY * failures;
        member.doing = Doing::Failed {
            error: error.clone(),
            again_at,
        };
        if failures >= MOST_FAILURES {
            self.barred.insert(worker, error);
            self.dismiss(worker, effects);
            effects.push(Effect::SeekWorkers);
        }
    }

    fn opened(&mut self, round: u64, draining: &BTreeSet<WorkerId>, effects: &mut Vec<Effect>) {
        self.wait_anew();
        self.round = round;
        self.results.clear();
        let leaving: Vec<_> = self.members.keys().copied().collect();
        for worker in leaving.into_iter().filter(|id| draining.contains(id)) {
            self.dismiss(worker, effects);
            effects.push(Effect::SeekWorkers);
        }
        for member in self.members.values_mut() {
            member.doing = Doing::Waits;
        }
    }

    fn wait_anew(&mut self) {
        self.stage = Stage::Open;
        self.expected = None;
        self.deadline = None;
        self.is_overdue = false;
    }

    /// Those that come too late took at least so long: else the deadline would creep towards the fastest.
    fn closing(&mut self, now: Moment) {
        self.stage = Stage::Merging;
        let late = self
            .members
            .values()
            .filter_map(|member| match member.doing {
                Doing::Trains { since, .. } => Some(now.since(since)),
                _ => None,
            });
        for time in late.collect::<Vec<_>>() {
            self.record(time);
        }
    }

    fn record(&mut self, time: Duration) {
        if self.times.len() == TIMES {
            self.times.pop_front();
        }
        self.times.push_back(time);
    }

    fn reopened(&mut self, without: &[WorkerId]) {
        self.wait_anew();
        for worker in without {
            self.results.remove(worker);
            if let Some(member) = self.members.get_mut(worker) {
                member.doing = Doing::Waits;
                member.knows = false;
            }
        }
    }

    /// The session is over for a worker.
    fn dismiss(&mut self, worker: WorkerId, effects: &mut Vec<Effect>) {
        self.members.remove(&worker);
        effects.push(Effect::Leave(worker));
        effects.push(Effect::Stop(worker));
        effects.push(Effect::Release(worker));
    }

    /// Asks those that wait, where the round begins or cannot do without them, and those whose time has come.
    fn begin_or_join(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let waiting = |member: &Member| member.doing == Doing::Waits;
        let possible = self.results.len()
            + self.awaited().count()
            + self
                .members
                .values()
                .filter(|member| waiting(member))
                .count();
        let cannot_do_without = !self.can_close() || self.is_overdue;
        let begins = cannot_do_without && possible >= self.settings.min_workers;
        for (worker, member) in &mut self.members {
            let is_due = match member.doing {
                Doing::Waits => begins,
                Doing::Failed { again_at, .. } => again_at <= now,
                _ => false,
            };
            if is_due {
                member.doing = Doing::Trains {
                    since: now,
                    asked: now,
                };
                let order = match std::mem::replace(&mut member.knows, true) {
                    true => Order::GoOn,
                    false => Order::Start,
                };
                effects.push(Effect::Order(*worker, order));
            }
        }
    }

    /// How many results are awaited, and until when.
    fn settle(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let needed = self.settings.min_workers;
        let expected = (self.results.len() + self.awaited().count()).max(needed);
        if self.expected != Some(expected) {
            self.expected = Some(expected);
            effects.push(Effect::Expect(expected));
        }
        match (self.can_close(), self.deadline) {
            (true, None) => {
                let deadline = now + self.time_for_a_round();
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

    /// From a round's beginning to its deadline.
    pub fn time_for_a_round(&self) -> Duration {
        let longest = self.settings.round_timeout;
        if self.times.len() < FEWEST_TIMES || self.settings.deadline_deviations <= 0.0 {
            return longest;
        }
        let times: Vec<f64> = self.times.iter().map(Duration::as_secs_f64).collect();
        let middle = median(times.clone());
        let deviation = median(times.iter().map(|time| (time - middle).abs()).collect());
        let slack = (self.settings.deadline_deviations * deviation)
            .max(LEAST_SLACK * middle)
            .max(SHORTEST_SLACK.as_secs_f64());
        Duration::try_from_secs_f64(middle + slack).map_or(longest, |time| time.min(longest))
    }
}

/// The middle value; of an even number the mean of the two in the middle. There must be one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

/// What is written down comes first, then what the rounds and people are told, then what is sent.
fn in_order(mut effects: Vec<Effect>) -> Vec<Effect> {
    effects.sort_by_key(|effect| match effect {
        Effect::Join(..) | Effect::Leave(_) => 0,
        Effect::Expect(_) | Effect::Deadline(_) => 1,
        Effect::Show => 2,
        Effect::Order(..) | Effect::Stop(_) => 3,
        Effect::Release(_) => 4,
        Effect::SeekWorkers => 5,
    });
    effects.dedup();
    effects
}

#[cfg(test)]
mod tests;
