//! What becomes of a single worker: given, back, lost, done, failed, dismissed.

use std::collections::BTreeSet;
use std::time::Duration;

use trainyard_shared::ids::WorkerId;

use super::masking::Said;
use super::{Doing, Effect, MOST_FAILURES, Member, Order, Session, Stage};
use crate::clock::Moment;

/// A worker that failed is asked again after this time, times its failures in a row.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// A worker that says that it has nothing of the session is asked again no sooner than this.
const REPEAT_DELAY: Duration = Duration::from_secs(5);

impl Session {
    pub(super) fn given(&mut self, worker: WorkerId, effects: &mut Vec<Effect>) {
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

    /// What it was told last may not have reached it.
    pub(super) fn registered(&mut self, worker: WorkerId, now: Moment, effects: &mut Vec<Effect>) {
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        member.knows = false;
        if self.stage != Stage::Open {
            return;
        }
        match &mut member.doing {
            Doing::Trains { asked, .. } => {
                *asked = now;
                member.knows = true;
                effects.push(Effect::Order(worker, Order::Start));
            }
            Doing::Trained { .. } => {
                let masking = self.masking.as_ref();
                effects.extend(masking.and_then(|masking| masking.asked(worker)));
            }
            Doing::Waits | Doing::Delivered | Doing::Failed { .. } => {}
        }
    }

    /// The worker has nothing of the session: the order may have been lost, or the worker was started anew.
    pub(super) fn has_nothing(&mut self, worker: WorkerId, now: Moment, effects: &mut Vec<Effect>) {
        let is_open = self.stage == Stage::Open;
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        match &mut member.doing {
            Doing::Trains { asked, .. } if is_open && now.since(*asked) >= REPEAT_DELAY => {
                *asked = now;
            }
            // Its result and its secrets were in its memory only.
            Doing::Trained { .. } if is_open => {
                member.doing = Doing::Trains {
                    since: now,
                    asked: now,
                };
                if let Some(masking) = &mut self.masking {
                    masking.lost(worker);
                }
            }
            Doing::Trains { .. } => return,
            _ => {
                member.knows = false;
                return;
            }
        }
        member.knows = true;
        effects.push(Effect::Order(worker, Order::Start));
    }

    pub(super) fn lost(&mut self, worker: WorkerId, effects: &mut Vec<Effect>) {
        if self.members.remove(&worker).is_some() {
            if let Some(masking) = &mut self.masking {
                masking.lost(worker);
            }
            effects.push(Effect::Leave(worker));
            effects.push(Effect::SeekWorkers);
        }
    }

    /// The worker has a result for the round.
    pub(super) fn taken(
        &mut self,
        worker: WorkerId,
        doing: Doing,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        // With secure aggregation it has delivered once its change is in a sum.
        if doing == Doing::Delivered && self.failures.forget(worker) {
            effects.push(Effect::NoteFailures(worker));
        }
        let before = std::mem::replace(&mut member.doing, doing);
        // Those of a round that closes are recorded together.
        if let Doing::Trains { since, .. } = before
            && self.stage == Stage::Open
        {
            self.times.record(now.since(since));
        }
    }

    /// The worker has no result for the round, or its result cannot be used.
    pub(super) fn failed(
        &mut self,
        worker: WorkerId,
        error: String,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let is_open = self.stage == Stage::Open;
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        if !is_open || !matches!(member.doing, Doing::Trains { .. } | Doing::Trained { .. }) {
            return;
        }
        member.knows = false;
        let failures = self.failures.add(worker, error.clone());
        effects.push(Effect::NoteFailures(worker));
        let again_at = now + RETRY_DELAY * failures;
        member.doing = Doing::Failed { error, again_at };
        if let Some(masking) = &mut self.masking {
            masking.lost(worker);
        }
        if failures >= MOST_FAILURES {
            self.dismiss(worker, effects);
            effects.push(Effect::SeekWorkers);
        }
    }

    /// A worker says something in an attempt at the sum.
    pub(super) fn said(
        &mut self,
        worker: WorkerId,
        attempt: u64,
        said: Said,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let Some(masking) = self.masking.as_mut().filter(|_| self.stage == Stage::Open) else {
            return;
        };
        for (worker, error) in masking.take(worker, attempt, said) {
            self.failed(worker, error, now, effects);
        }
    }

    /// A worker does not follow the protocol: nothing of it is waited for in this round's sum.
    pub(super) fn misbehaved(
        &mut self,
        worker: WorkerId,
        error: String,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(masking) = &mut self.masking {
            masking.lost(worker);
        }
        if self.members.contains_key(&worker) {
            return self.failed(worker, error, now, effects);
        }
        // That it has left in the meantime does not help it.
        if self.knows(worker) {
            self.failures.add(worker, error);
            effects.push(Effect::NoteFailures(worker));
        }
    }

    pub(super) fn opened(
        &mut self,
        round: u64,
        draining: &BTreeSet<WorkerId>,
        effects: &mut Vec<Effect>,
    ) {
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
        if let Some(masking) = &mut self.masking {
            masking.begin_round();
        }
    }

    fn wait_anew(&mut self) {
        self.stage = Stage::Open;
        self.expected = None;
        self.deadline = None;
        self.is_overdue = false;
        if let Some(masking) = &mut self.masking {
            masking.forget();
        }
    }

    /// Those that come too late took at least so long: else the deadline would creep towards the fastest.
    pub(super) fn closing(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.stage = Stage::Merging;
        let late = self
            .members
            .values()
            .filter_map(|member| match member.doing {
                Doing::Trains { since, .. } => Some(now.since(since)),
                _ => None,
            });
        late.for_each(|time| self.times.record(time));
        effects.push(Effect::NoteTimes);
        let Some(masking) = &mut self.masking else {
            return;
        };
        let summed = masking.summed();
        masking.forget();
        // Not those that were found to lie meanwhile.
        let delivered = |worker: &WorkerId| {
            let member = self.members.get(worker);
            member.is_some_and(|it| matches!(it.doing, Doing::Trained { .. }))
        };
        for worker in summed.into_iter().filter(delivered) {
            if self.failures.forget(worker) {
                effects.push(Effect::NoteFailures(worker));
            }
        }
    }

    pub(super) fn reopened(&mut self, without: &[WorkerId]) {
        self.wait_anew();
        for worker in without {
            self.results.remove(worker);
            if let Some(member) = self.members.get_mut(worker) {
                member.doing = Doing::Waits;
                member.knows = false;
            }
        }
    }

    pub(super) fn end(&mut self, effects: &mut Vec<Effect>) {
        self.stage = Stage::Ended;
        for worker in self.members.keys().copied().collect::<Vec<_>>() {
            self.dismiss(worker, effects);
        }
    }

    /// The session is over for a worker.
    fn dismiss(&mut self, worker: WorkerId, effects: &mut Vec<Effect>) {
        self.members.remove(&worker);
        if let Some(masking) = &mut self.masking {
            masking.left(worker);
        }
        effects.push(Effect::Leave(worker));
        effects.push(Effect::Stop(worker));
        effects.push(Effect::Release(worker));
    }

    /// In a round whose time is over and that has too few results: those that take twice its time have to leave. They
    /// may come back, and then begin anew.
    pub(super) fn give_up_hung(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if !self.is_short() {
            return;
        }
        let most = 2 * self.round_time;
        let is_hung = |member: &Member| match member.doing {
            Doing::Trains { since, .. } => now.since(since) >= most,
            _ => false,
        };
        let hung = self.members.iter().filter(|(_, member)| is_hung(member));
        for worker in hung.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            let error = "it had no result after twice the round's time";
            self.failures.add(worker, error.to_owned());
            self.times.record(most);
            effects.push(Effect::NoteFailures(worker));
            self.dismiss(worker, effects);
            effects.push(Effect::SeekWorkers);
        }
    }

    /// Asks those that wait, where the round begins or cannot do without them, and those whose time has come.
    pub(super) fn begin_or_join(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let waiting = |member: &Member| member.doing == Doing::Waits;
        let waiting = self.members.values().filter(|member| waiting(member));
        let possible = self.delivered() + self.awaited().count() + waiting.count();
        let cannot_do_without = !self.can_close() || self.is_short();
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
}
