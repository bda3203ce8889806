//! Secure aggregation of a round's results, from fresh keys to the sum: pure, a part of a session's workers.
//!
//! 1. Once enough workers hold a trained result an [`Attempt`] begins with all of them: each announces keys.
//! 2. Those that have announced split their secrets among each other; whose shares are there takes part.
//! 3. They mask their changes and send them.
//! 4. All that take part are asked for shares; with as many answers as the threshold the masks are taken off the sum,
//!    outside.
//!
//! A stage ends once all have answered that were asked, or at its deadline; who has not answered by then is out of the
//! attempt, and to blame for that. Where too few are left before step 4, another attempt begins after a while, with keys
//! that are made afresh and more time for each stage. The same goes for a restart of the platform: nothing of an attempt
//! is ever stored, so nobody is ever asked twice by the same keys.
//!
//! Two sums of one round would tell the change of those that are in one alone. So once shares were asked for, which is
//! written down before, there is no other sum of the round: where that one comes to nothing, the round closes without a
//! change.

mod accusations;
mod attempt;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempPath;
use trainyard_privacy::secure::{Number, PublicKeys, Revealed};
use trainyard_shared::ids::WorkerId;
use trainyard_shared::message::ShareTo;

use super::Effect;
use crate::clock::Moment;

use accusations::Accusations;
use attempt::Next;
pub use attempt::{Attempt, Stage};

/// Between an attempt and the next one; doubled with each that fails in the same round.
const SHORTEST_PAUSE: Duration = Duration::from_secs(2);
/// It is doubled so often.
const MOST_DOUBLINGS: u32 = 5;

/// What a session was made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Results whose sum is read at least.
    pub threshold: usize,
    /// Results that a round needs.
    pub at_least: usize,
    /// Time of each stage of a round's first attempt.
    pub stage_timeout: Duration,
    /// Longest time of a stage: what masked changes and the last answers have, and others after some attempts.
    pub longest_stage: Duration,
}

impl Rules {
    /// Results without which no attempt begins or goes on.
    pub fn fewest(&self) -> usize {
        self.threshold.max(self.at_least).max(2)
    }

    /// Time of a stage: more after each attempt of the round that has failed.
    fn time_of(&self, stage: Stage, failures: u32) -> Duration {
        let longest = self.longest_stage;
        match stage {
            Stage::Uploads | Stage::Reveals => longest,
            Stage::Keys | Stage::Shares | Stage::Summing => {
                let more = 1 << failures.min(MOST_DOUBLINGS);
                self.stage_timeout.saturating_mul(more).min(longest)
            }
        }
    }
}

/// What a worker is asked in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// `announce_keys`
    AnnounceKeys,
    /// `share_secrets`
    ShareSecrets,
    /// `mask_result`
    MaskResult,
    /// `reveal_shares`
    RevealShares,
}

/// What a worker says in an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// Its public keys.
    Keys(PublicKeys),
    /// Its shares for all others.
    Shares(Arc<Vec<ShareTo>>),
    /// Its masked change is here.
    Uploaded(Upload),
    /// The shares that it was asked for.
    Revealed(Arc<Revealed>),
    /// It cannot go on.
    Broken {
        /// Why, for a person.
        error: String,
        /// Whose shares it cannot use, where it is that.
        because_of: Option<Number>,
    },
}

/// A masked change: 8 bytes for each value, which look random.
#[derive(Clone)]
pub struct Upload {
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Length of the file.
    pub size_bytes: u64,
    /// The file, which goes with the last that holds it.
    pub file: Arc<TempPath>,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sha256)
    }
}

impl PartialEq for Upload {
    fn eq(&self, other: &Self) -> bool {
        self.sha256 == other.sha256
    }
}

/// What is to be made of what a worker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// It counts.
    Counts,
    /// It is of the past, or known already: no harm, no effect.
    Ignored,
    /// No worker that follows the protocol says that; why, for a person.
    Wrong(String),
}

/// What has become of an attempt's sum, where it does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    /// Some share was wrong; more answers may help.
    WrongShares {
        /// What is wrong, for a person.
        why: String,
        /// Whose secret cannot be put together, where it is that.
        of: Option<Number>,
    },
    /// The sum is none of changes.
    NoSum(String),
}

/// Secure aggregation in a session's rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Masking {
    rules: Rules,
    /// The next attempt's number. None is given twice.
    next: u64,
    attempt: Option<Attempt>,
    /// Attempts of the round that have failed.
    failures: u32,
    /// Why the last one has.
    trouble: Option<String>,
    again_at: Option<Moment>,
    /// Shares were asked for in this round: there is no other sum of it.
    is_spent: bool,
    /// The round is about to close without a sum.
    is_closing: bool,
    /// Who has sent a masked change that shares were asked for, in an attempt that came to nothing.
    exposed: Vec<WorkerId>,
    accusations: Accusations,
}

/// Who is to blame that an attempt does not go on well, and why, for a person.
pub(super) type Blamed = Vec<(WorkerId, String)>;

impl Masking {
    /// Without an attempt. They are numbered from `first` on, which must not be the number of any that was made before.
    /// `is_spent` tells whether shares were asked for in the round that is open.
    pub fn new(rules: Rules, first: u64, is_spent: bool) -> Self {
        Self {
            rules,
            next: first,
            attempt: None,
            failures: 0,
            trouble: None,
            again_at: None,
            is_spent,
            is_closing: false,
            exposed: Vec::new(),
            accusations: Accusations::default(),
        }
    }

    /// What the session was made with.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The attempt under way.
    pub fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_ref()
    }

    /// Why the round's results are not summed yet, for a person; none where nothing was tried.
    pub fn waiting_because(&self) -> Option<String> {
        match (&self.attempt, &self.trouble) {
            (Some(attempt), _) => Some(attempt.stands()),
            (None, trouble) if self.is_spent => {
                let why = trouble.as_deref().unwrap_or("it was broken off");
                Some(format!(
                    "the sum of the results came to nothing ({why}); there is no other of the same round, which closes without a change"
                ))
            }
            (None, Some(trouble)) => Some(format!(
                "the results could not be summed ({trouble}); another attempt begins"
            )),
            (None, None) => None,
        }
    }

    /// Who says that it cannot use whose shares.
    pub(super) fn accusations(&self) -> impl Iterator<Item = (WorkerId, WorkerId)> + '_ {
        self.accusations.iter()
    }

    /// When time changes something.
    pub fn next_due(&self) -> Option<Moment> {
        match &self.attempt {
            Some(attempt) => attempt.deadline(),
            None => self.again_at,
        }
    }

    /// Whether an attempt may begin.
    pub fn may_begin(&self) -> bool {
        self.attempt.is_none() && !self.is_spent && self.again_at.is_none()
    }

    /// An attempt begins with these workers, which hold results trained on so many examples.
    pub(super) fn begin(
        &mut self,
        trained: BTreeMap<WorkerId, u64>,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let until = now + self.rules.time_of(Stage::Keys, self.failures);
        let attempt = Attempt::new(self.next, trained, until);
        self.next += 1;
        self.again_at = None;
        effects.extend(attempt.asks());
        self.attempt = Some(attempt);
    }

    /// The round is closed, or open again: whatever was under way is of no use.
    pub(super) fn forget(&mut self) {
        self.attempt = None;
        self.failures = 0;
        self.trouble = None;
        self.again_at = None;
        self.is_closing = false;
    }

    /// Another round.
    pub(super) fn begin_round(&mut self) {
        self.forget();
        self.is_spent = false;
        self.exposed.clear();
    }

    /// Who has sent a masked change in the attempt under way.
    pub(super) fn summed(&self) -> Vec<WorkerId> {
        self.attempt
            .as_ref()
            .map_or_else(Vec::new, |attempt| attempt.uploaders().collect())
    }

    /// Whether the round has to close without a sum, which is said once. Gives those whose masked changes were to be in
    /// it, as far as that is known.
    pub(super) fn gives_up(&mut self) -> Option<Vec<WorkerId>> {
        let gives_up = self.is_spent && self.attempt.is_none() && !self.is_closing;
        self.is_closing |= gives_up;
        gives_up.then(|| std::mem::take(&mut self.exposed))
    }

    /// What is to be made of what a worker says in an attempt.
    pub fn judge(&self, worker: WorkerId, attempt: u64, said: &Said) -> Judgement {
        match &self.attempt {
            Some(under_way) if under_way.id() == attempt => under_way.judge(worker, said),
            // One that is over, also of before a restart.
            _ => Judgement::Ignored,
        }
    }

    /// The same of a masked change with that SHA-256, before it is looked at.
    pub fn judge_upload(&self, worker: WorkerId, attempt: u64, sha256: &str) -> Judgement {
        match self.attempt.as_ref().filter(|it| it.id() == attempt) {
            Some(under_way) => under_way.judge_upload(worker, sha256),
            None => Judgement::Ignored,
        }
    }

    /// Takes in what a worker says, if it counts. Gives who is to blame that the attempt goes on without it.
    pub(super) fn take(&mut self, worker: WorkerId, attempt: u64, said: Said) -> Blamed {
        let counts = self.judge(worker, attempt, &said) == Judgement::Counts;
        match self.attempt.as_mut().filter(|_| counts) {
            Some(under_way) => under_way.take(worker, said, &mut self.accusations),
            None => Blamed::new(),
        }
    }

    /// A worker takes no part in the session any more.
    pub(super) fn left(&mut self, worker: WorkerId) {
        self.lost(worker);
        self.accusations.forget(worker);
    }

    /// A worker is not there any more, or not to be relied on. What it has sent is as good as before.
    pub(super) fn lost(&mut self, worker: WorkerId) {
        if let Some(attempt) = &mut self.attempt {
            attempt.lost(worker);
        }
    }

    /// A worker's masked result could not be taken in (yet), by no fault of its own.
    pub(super) fn put_off(&mut self, worker: WorkerId, attempt: u64) {
        if let Some(under_way) = self.attempt.as_mut().filter(|it| it.id() == attempt) {
            under_way.put_off(worker);
        }
    }

    /// What the worker is to be asked again, which may not have got it.
    pub(super) fn asked(&self, worker: WorkerId) -> Option<Effect> {
        self.attempt.as_ref()?.ask_of(worker)
    }

    /// The sum of an attempt could not be read, or is none.
    pub(super) fn unread(&mut self, attempt: u64, why: Unread, now: Moment) {
        let Some(under_way) = self.attempt.as_mut().filter(|it| it.id() == attempt) else {
            return;
        };
        match why {
            Unread::WrongShares { why, of } => under_way.misread(why, of),
            Unread::NoSum(why) => self.fail(why, now),
        }
    }

    /// Goes on to the stage that is due. Gives who is to blame for what was waited for in vain.
    pub(super) fn advance(&mut self, now: Moment, effects: &mut Vec<Effect>) -> Blamed {
        self.again_at = self.again_at.filter(|at| *at > now);
        let mut blamed = Blamed::new();
        while let Some(attempt) = &mut self.attempt {
            let next = attempt.next(&self.rules, now);
            if matches!(next, Next::Stage(_) | Next::Failed(_)) {
                blamed.extend(attempt.blamed(now));
            }
            match next {
                Next::Waits => break,
                Next::Stage(stage) => {
                    if stage == Stage::Reveals {
                        self.is_spent = true;
                        effects.push(Effect::NoteRevealing);
                    }
                    attempt.enter(stage, now + self.rules.time_of(stage, self.failures));
                    effects.extend(attempt.asks());
                }
                Next::Sum => {
                    attempt.enter(Stage::Summing, now);
                    effects.push(Effect::Sum);
                }
                Next::Failed(why) => self.fail(why, now),
            }
        }
        blamed
    }

    fn fail(&mut self, why: String, now: Moment) {
        let doublings = self.failures.min(MOST_DOUBLINGS);
        self.again_at = Some(now + SHORTEST_PAUSE * (1 << doublings));
        self.failures += 1;
        self.trouble = Some(why);
        if self.is_spent {
            self.exposed = self.summed();
        }
        self.attempt = None;
    }
}

/// What is needed to read the sum of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct ToSum {
    /// The attempt.
    pub attempt: u64,
    /// Who began it.
    pub roster: trainyard_privacy::secure::Roster,
    /// The numbers of those that masked against each other.
    pub participants: BTreeSet<Number>,
    /// The largest number of examples among the participants.
    pub most_examples: u64,
    /// The masked changes that are summed.
    pub uploads: BTreeMap<Number, Summand>,
    /// What was revealed, by whom.
    pub revealed: BTreeMap<Number, (WorkerId, Arc<Revealed>)>,
}

/// A masked change in a sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Summand {
    /// Whose it is.
    pub worker: WorkerId,
    /// Examples that it was trained on.
    pub examples: u64,
    /// The file.
    pub upload: Upload,
}
