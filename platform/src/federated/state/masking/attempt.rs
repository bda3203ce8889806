//! One attempt at the sum of a round's results, with keys that are used for nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trainyard_privacy::secure::{MOST_PARTICIPANTS, Number, PublicKeys, Revealed, Roster};
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::{MaskingKeys, ShareFrom, ShareTo};

use super::{Accusations, Ask, Blamed, Judgement, Rules, Said, Summand, ToSum, Upload};
use crate::clock::Moment;
use crate::federated::state::Effect;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Public keys.
    Keys,
    /// Shares of everybody's secrets.
    Shares,
    /// Masked changes.
    Uploads,
    /// The shares that take the masks off.
    Reveals,
    /// The sum, which is being read.
    Summing,
}

impl Stage {
    /// What is waited for, for a person.
    fn awaits(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Shares => "shares for the others",
            Self::Uploads => "its masked result",
            Self::Reveals => "the shares it was asked for",
            Self::Summing => "the sum",
        }
    }
}

/// What is due.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Nothing yet.
    Waits,
    /// The next stage.
    Stage(Stage),
    /// The sum can be read.
    Sum,
    /// It cannot go on.
    Failed(String),
}

/// An attempt under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    id: u64,
    stage: Stage,
    until: Moment,
    /// Who was asked for keys, and the examples that its result was trained on.
    asked: BTreeMap<WorkerId, u64>,
    keys: BTreeMap<WorkerId, PublicKeys>,
    /// Once the keys are there: who has which number, from 1.
    members: Vec<WorkerId>,
    roster: Option<Roster>,
    shares: BTreeMap<WorkerId, Arc<Vec<ShareTo>>>,
    uploads: BTreeMap<WorkerId, Upload>,
    revealed: BTreeMap<WorkerId, Arc<Revealed>>,
    /// With so many answers the sum was read last.
    read_with: usize,
    /// Why that gave none, and whose secret could not be put together where it was that.
    misread: Option<(String, Option<Number>)>,
    /// Those that nothing more is expected of.
    gone: BTreeSet<WorkerId>,
    /// Those that have answered what could not be taken in.
    put_off: BTreeSet<WorkerId>,
}

impl Attempt {
    pub(super) fn new(id: u64, mut trained: BTreeMap<WorkerId, u64>, until: Moment) -> Self {
        while trained.len() > MOST_PARTICIPANTS {
            trained.pop_last();
        }
        Self {
            id,
            stage: Stage::Keys,
            until,
            asked: trained,
            keys: BTreeMap::new(),
            members: Vec::new(),
            roster: None,
            shares: BTreeMap::new(),
            uploads: BTreeMap::new(),
            revealed: BTreeMap::new(),
            read_with: 0,
            misread: None,
            gone: BTreeSet::new(),
            put_off: BTreeSet::new(),
        }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is waited for.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The keys of its members, in the order of their numbers.
    pub fn member_keys(&self) -> Vec<MaskingKeys> {
        let members = self.roster.iter().flat_map(Roster::members);
        members.map(|(_, keys)| keys.into()).collect()
    }

    /// Shares that put a secret together.
    pub fn threshold(&self) -> u8 {
        u8::try_from(self.needed()).unwrap_or(u8::MAX)
    }

    /// The largest number of examples among those that mask.
    pub fn most_examples(&self) -> u64 {
        let of = |worker: &WorkerId| self.asked.get(worker).copied();
        self.shares.keys().filter_map(of).max().unwrap_or(1)
    }

    /// The shares of the others that mask, for one of them.
    pub fn shares_for(&self, worker: WorkerId) -> Vec<ShareFrom> {
        let Some(to) = self.number(worker) else {
            return Vec::new();
        };
        let share = |(from, shares): (&WorkerId, &Arc<Vec<ShareTo>>)| {
            let share = shares.iter().find(|share| share.to == to)?;
            Some(ShareFrom {
                from: self.number(*from)?,
                sealed: share.sealed,
            })
        };
        self.shares.iter().filter_map(share).collect()
    }

    /// Those whose masked change is here.
    pub(super) fn uploaders(&self) -> impl Iterator<Item = WorkerId> + '_ {
        self.uploads.keys().copied()
    }

    /// The numbers of those whose masked change is here.
    pub fn arrived(&self) -> BTreeSet<Number> {
        self.numbers(self.uploads.keys())
    }

    /// What reading the sum needs; none before all that is here.
    pub fn to_sum(&self) -> Option<ToSum> {
        let summand = |(worker, upload): (&WorkerId, &Upload)| {
            let summand = Summand {
                worker: *worker,
                examples: *self.asked.get(worker)?,
                upload: upload.clone(),
            };
            Some((self.number(*worker)?, summand))
        };
        let answer = |(worker, revealed): (&WorkerId, &Arc<Revealed>)| {
            Some((self.number(*worker)?, (*worker, revealed.clone())))
        };
        Some(ToSum {
            attempt: self.id,
            roster: self.roster.clone()?,
            participants: self.numbers(self.shares.keys()),
            most_examples: self.most_examples(),
            uploads: self.uploads.iter().filter_map(summand).collect(),
            revealed: self.revealed.iter().filter_map(answer).collect(),
        })
    }

    /// How it stands, for a person.
    pub(super) fn stands(&self) -> String {
        let (there, of) = (self.answers().count(), self.asks_of().count());
        match self.stage {
            Stage::Keys => format!("the workers make keys for the sum; {there} of {of} are there"),
            Stage::Shares => {
                format!("the workers share secrets for the sum; {there} of {of} have")
            }
            Stage::Uploads => format!("{there} of {of} masked results are there"),
            Stage::Reveals => match &self.misread {
                Some((why, _)) => format!("{why}; more answers are waited for"),
                None => format!("the workers take the masks off the sum; {there} of {of} have"),
            },
            Stage::Summing => "the sum of the results is read".to_owned(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        (self.stage != Stage::Summing).then_some(self.until)
    }

    fn number(&self, worker: WorkerId) -> Option<Number> {
        let place = self.members.iter().position(|member| *member == worker)?;
        Number::try_from(place + 1).ok()
    }

    fn worker(&self, number: Number) -> Option<WorkerId> {
        let place = usize::from(number).checked_sub(1)?;
        self.members.get(place).copied()
    }

    fn numbers<'a>(&self, workers: impl Iterator<Item = &'a WorkerId>) -> BTreeSet<Number> {
        workers.filter_map(|worker| self.number(*worker)).collect()
    }

    /// Who is asked in this stage.
    fn asks_of(&self) -> Box<dyn Iterator<Item = WorkerId> + '_> {
        match self.stage {
            Stage::Keys => Box::new(self.asked.keys().copied()),
            Stage::Shares => Box::new(self.members.iter().copied()),
            Stage::Uploads | Stage::Reveals | Stage::Summing => {
                Box::new(self.shares.keys().copied())
            }
        }
    }

    /// Who has answered in this stage.
    fn answers(&self) -> Box<dyn Iterator<Item = WorkerId> + '_> {
        match self.stage {
            Stage::Keys => Box::new(self.keys.keys().copied()),
            Stage::Shares => Box::new(self.shares.keys().copied()),
            Stage::Uploads => Box::new(self.uploads.keys().copied()),
            Stage::Reveals | Stage::Summing => Box::new(self.revealed.keys().copied()),
        }
    }

    fn has_answered(&self, worker: WorkerId) -> bool {
        self.answers().any(|one| one == worker)
    }

    /// What all are asked in this stage.
    pub(super) fn asks(&self) -> Vec<Effect> {
        self.asks_of()
            .filter_map(|worker| self.ask_of(worker))
            .collect()
    }

    /// What a worker is asked in this stage and has not answered.
    pub(super) fn ask_of(&self, worker: WorkerId) -> Option<Effect> {
        let ask = match self.stage {
            Stage::Keys => Ask::AnnounceKeys,
            Stage::Shares => Ask::ShareSecrets,
            Stage::Uploads => Ask::MaskResult,
            Stage::Reveals => Ask::RevealShares,
            Stage::Summing => return None,
        };
        let is_asked = self.asks_of().any(|one| one == worker);
        let is_due = is_asked && !self.has_answered(worker) && !self.gone.contains(&worker);
        is_due.then_some(Effect::Ask(worker, ask))
    }

    pub(super) fn judge(&self, worker: WorkerId, said: &Said) -> Judgement {
        if !self.asked.contains_key(&worker) {
            return wrong("this worker was not asked to take part in the attempt");
        }
        match said {
            Said::Keys(keys) => self.judge_keys(worker, keys),
            Said::Shares(shares) => self.judge_shares(worker, shares),
            Said::Uploaded(upload) => self.judge_upload(worker, &upload.sha256),
            Said::Revealed(revealed) => self.judge_revealed(worker, revealed),
            Said::Broken { .. } if self.gone.contains(&worker) => Judgement::Ignored,
            Said::Broken { .. } => Judgement::Counts,
        }
    }

    /// An answer of a stage: too early it cannot be, too late or twice it has no effect.
    fn judge_in(&self, stage: Stage, worker: WorkerId, is_known: bool) -> Judgement {
        let is_late = self.stage > stage && stage != Stage::Reveals;
        if is_known || is_late {
            return Judgement::Ignored;
        }
        if self.stage < stage || !self.asks_of().any(|one| one == worker) {
            return wrong("this worker was not asked for that");
        }
        if self.has_answered(worker) {
            return wrong("this worker has answered otherwise before");
        }
        Judgement::Counts
    }

    /// What is to be made of a masked change with that SHA-256.
    pub(super) fn judge_upload(&self, worker: WorkerId, sha256: &str) -> Judgement {
        let known = self.uploads.get(&worker);
        let is_known = known.is_some_and(|upload| upload.sha256 == sha256);
        self.judge_in(Stage::Uploads, worker, is_known)
    }

    fn judge_keys(&self, worker: WorkerId, keys: &PublicKeys) -> Judgement {
        let judged = self.judge_in(Stage::Keys, worker, self.keys.get(&worker) == Some(keys));
        if judged != Judgement::Counts {
            return judged;
        }
        if !keys.are_usable() {
            return wrong("with these keys nothing secret can be agreed on");
        }
        if self
            .keys
            .values()
            .any(|other| other.shares_a_key_with(keys))
        {
            return wrong("another worker has the same key");
        }
        Judgement::Counts
    }

    fn judge_shares(&self, worker: WorkerId, shares: &Arc<Vec<ShareTo>>) -> Judgement {
        let judged = self.judge_in(
            Stage::Shares,
            worker,
            self.shares.get(&worker) == Some(shares),
        );
        if judged != Judgement::Counts {
            return judged;
        }
        let others = self.members.iter().filter(|member| **member != worker);
        let others = self.numbers(others);
        let named: BTreeSet<Number> = shares.iter().map(|share| share.to).collect();
        if named.len() != shares.len() || named != others {
            return wrong("data.shares: there must be one for each other member");
        }
        Judgement::Counts
    }

    fn judge_revealed(&self, worker: WorkerId, revealed: &Arc<Revealed>) -> Judgement {
        let is_known = self.revealed.get(&worker) == Some(revealed);
        let judged = self.judge_in(Stage::Reveals, worker, is_known);
        if judged != Judgement::Counts {
            return judged;
        }
        let arrived = self.arrived();
        let participants = self.numbers(self.shares.keys());
        let dropped: BTreeSet<Number> = participants.difference(&arrived).copied().collect();
        let (seeds, keys) = (&revealed.seeds, &revealed.keys);
        let of_seeds: BTreeSet<Number> = seeds.iter().map(|share| share.of).collect();
        let of_keys: BTreeSet<Number> = keys.iter().map(|share| share.of).collect();
        let are_single = of_seeds.len() == seeds.len() && of_keys.len() == keys.len();
        if !are_single || of_seeds != arrived || of_keys != dropped {
            return wrong("data: these are not the shares that were asked for");
        }
        Judgement::Counts
    }

    /// Takes in what counts. Gives who is to blame that the attempt goes on without it.
    pub(super) fn take(
        &mut self,
        worker: WorkerId,
        said: Said,
        accusations: &mut Accusations,
    ) -> Blamed {
        let mut blamed = Blamed::new();
        match said {
            Said::Keys(keys) => _ = self.keys.insert(worker, keys),
            Said::Shares(shares) => _ = self.shares.insert(worker, shares),
            Said::Uploaded(upload) => _ = self.uploads.insert(worker, upload),
            Said::Revealed(revealed) => _ = self.revealed.insert(worker, revealed),
            Said::Broken { error, because_of } => {
                self.gone.insert(worker);
                let Some(accused) = because_of.and_then(|of| self.accused_by(worker, of)) else {
                    blamed.push((worker, format!("it cannot mask its result: {error}")));
                    return blamed;
                };
                match accusations.add(worker, accused, self.members.len() - 1) {
                    Some(guilty) if guilty == accused => {
                        self.gone.insert(accused);
                        blamed.push((accused, "the others cannot use its shares".to_owned()));
                    }
                    Some(guilty) => {
                        let why = "it cannot use the shares of most others".to_owned();
                        blamed.push((guilty, why));
                    }
                    None => {}
                }
            }
        }
        blamed
    }

    /// Whom a member accuses; whoever is no member has got no shares.
    fn accused_by(&self, worker: WorkerId, of: Number) -> Option<WorkerId> {
        self.number(worker)?;
        self.worker(of).filter(|accused| *accused != worker)
    }

    pub(super) fn lost(&mut self, worker: WorkerId) {
        self.gone.insert(worker);
    }

    /// The worker has answered, and the platform could not take that in.
    pub(super) fn put_off(&mut self, worker: WorkerId) {
        self.put_off.insert(worker);
    }

    /// With what was revealed so far the sum cannot be read.
    pub(super) fn misread(&mut self, why: String, of: Option<Number>) {
        self.stage = Stage::Reveals;
        self.misread = Some((why, of));
    }

    /// Whoever was asked, could have answered and has not by the deadline; and whose shares give no secret, also where any
    /// one answer is left out.
    pub(super) fn blamed(&self, now: Moment) -> Blamed {
        let silent = self
            .asks_of()
            .filter(|worker| !self.has_answered(*worker) && !self.gone.contains(worker))
            .filter(|worker| self.until <= now && !self.put_off.contains(worker))
            .map(|worker| {
                (
                    worker,
                    format!("{} did not come in time", self.stage.awaits()),
                )
            });
        // With just as many answers as are needed, one of these may be wrong as well.
        let can_tell = self.revealed.len() > self.needed();
        let dealer = self.misread.as_ref().filter(|_| can_tell);
        let dealer = dealer.and_then(|(_, of)| self.worker((*of)?));
        let dealer = dealer.map(|worker| (worker, "its shares give no secret".to_owned()));
        silent.chain(dealer).collect()
    }

    pub(super) fn enter(&mut self, stage: Stage, until: Moment) {
        self.stage = stage;
        match stage {
            Stage::Summing => self.read_with = self.revealed.len(),
            _ => self.until = until,
        }
    }

    /// What is due, given who has answered.
    pub(super) fn next(&mut self, rules: &Rules, now: Moment) -> Next {
        let answered = self.answers().count();
        let missing = self
            .asks_of()
            .filter(|worker| !self.has_answered(*worker) && !self.gone.contains(worker))
            .count();
        let is_over = missing == 0 || self.until <= now;
        let possible = if self.until <= now {
            answered
        } else {
            answered + missing
        };
        let least = match self.stage {
            Stage::Keys => rules.fewest(),
            Stage::Shares | Stage::Uploads => rules.fewest().max(self.needed()),
            Stage::Reveals => self.needed(),
            Stage::Summing => return Next::Waits,
        };
        let too_few = |what: &str| {
            Next::Failed(format!(
                "{what} of {answered} workers are there, and {least} are needed"
            ))
        };
        match self.stage {
            Stage::Keys if possible < least => too_few("the keys"),
            Stage::Shares if possible < least => too_few("the shares"),
            Stage::Uploads if possible < least => too_few("the masked results"),
            Stage::Reveals if possible < least => too_few("the answers"),
            Stage::Keys if is_over => self.close_roster(rules),
            Stage::Shares if is_over => Next::Stage(Stage::Uploads),
            Stage::Uploads if is_over => Next::Stage(Stage::Reveals),
            Stage::Reveals if answered >= least => self.next_reading(answered, is_over),
            _ => Next::Waits,
        }
    }

    fn next_reading(&self, answered: usize, is_over: bool) -> Next {
        match &self.misread {
            Some((why, _)) if answered <= self.read_with => match is_over {
                true => Next::Failed(why.clone()),
                false => Next::Waits,
            },
            _ => Next::Sum,
        }
    }

    fn needed(&self) -> usize {
        self.roster.as_ref().map_or(0, Roster::threshold)
    }

    /// Whoever has announced keys is a member. More than half must be needed to reveal anything.
    fn close_roster(&mut self, rules: &Rules) -> Next {
        self.members = self.keys.keys().copied().collect();
        let threshold = rules.threshold.max(self.members.len() / 2 + 1);
        match Roster::new(threshold, self.keys.values().cloned().collect()) {
            Ok(roster) => {
                self.roster = Some(roster);
                Next::Stage(Stage::Shares)
            }
            Err(error) => Next::Failed(error.to_string()),
        }
    }
}

fn wrong(why: &str) -> Judgement {
    Judgement::Wrong(why.to_owned())
}
