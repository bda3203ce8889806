//! When a round takes a result, when it closes and what follows: pure, the same for workers and volunteers.
//!
//! `open` -> `merging` -> `open` (the next round) … -> `finished`; `stopped` from everywhere before the end. A
//! round closes as soon as there are enough results, or at its deadline with fewer; without those it stays open
//! and closes with the first ones that suffice. Rounds are counted from 0.
//!
//! An event is decided upon ([`Rounds::decide`]); what it changes is written down; only then is it made
//! ([`Rounds::make`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock::Moment;

/// So many rounds are remembered once they have closed, so that a result that is sent again is known.
pub const REMEMBERED_ROUNDS: u64 = 2;

/// When rounds close.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Rounds of the session.
    pub total_rounds: u64,
    /// So many results close a round at once.
    pub enough: usize,
    /// So many close it at its deadline.
    pub at_least: usize,
    /// From a round's opening to its deadline; none: it waits for enough.
    pub timeout: Option<Duration>,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The round takes results.
    Open,
    /// The round is closed, and its results are being merged.
    Merging,
    /// All rounds are done.
    Finished,
    /// Ended by request.
    Stopped,
}

impl Phase {
    /// Whether nothing can change any more.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Finished | Self::Stopped)
    }
}

/// What a participant's result for a round would meet with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It would be taken.
    Welcome,
    /// There is one from this participant already, with this SHA-256.
    Given(String),
    /// The round is closed.
    Late,
    /// The round has not begun.
    NotBegun,
    /// The session has ended.
    Ended,
}

/// What happens to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A result was checked and stored.
    ResultStored {
        /// Whose it is.
        participant: String,
        /// The round that it is for.
        round: u64,
        /// SHA-256 of its file.
        sha256: String,
    },
    /// The mean of these participants' results, which nobody has seen one by one, is stored.
    MeanStored {
        /// The round that it is of.
        round: u64,
        /// Whose results are in it, as the SHA-256 of what they sent.
        results: Results,
    },
    /// The round's deadline may have passed.
    DeadlinePassed,
    /// The round's results were merged, and the outcome is stored.
    Merged {
        /// The round.
        round: u64,
    },
    /// Some results of the round cannot be merged.
    Unusable {
        /// The round.
        round: u64,
        /// Whose they are.
        participants: Vec<String>,
    },
    /// Other numbers of results close rounds from now on.
    Expected {
        /// As in [`Rules`].
        enough: usize,
        /// As in [`Rules`].
        at_least: usize,
    },
    /// The round's deadline is another one.
    DeadlineMoved(Option<Moment>),
    /// Rules or results may have become such that the round closes.
    Sufficient,
    /// The session is to end.
    StopAsked,
}

/// What follows from an event. It is to be written down before it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The result counts; the round closes with it or does not.
    Accepted {
        /// Whose it is.
        participant: String,
        /// SHA-256 of its file.
        sha256: String,
        /// Whether there are enough now.
        closes: bool,
    },
    /// These results count, as their mean; the round closes with it.
    MeanAccepted(Results),
    /// The round is closed.
    Closed,
    /// The deadline has passed, and there are too few results to close the round.
    Overdue,
    /// The next round is open, or the session is finished.
    Advanced,
    /// The round is open again without these results.
    Reopened(Vec<String>),
    /// Rules or deadline are other ones. Nothing of it is stored.
    Adjusted {
        /// The rules.
        rules: Rules,
        /// The deadline.
        deadline: Option<Moment>,
    },
    /// The session has ended.
    Stopped,
}

/// What whoever let an event happen is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It counts.
    Taken,
    /// It counts already: the same bytes came again.
    Again,
    /// It does not count.
    Refused(Standing),
}

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// For whoever let the event happen.
    pub answer: Answer,
    /// What is to be written down and made.
    pub change: Option<Change>,
}

/// Results by participant, as their SHA-256.
pub type Results = BTreeMap<String, String>;

/// The rounds of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rounds {
    rules: Rules,
    phase: Phase,
    round: u64,
    results: Results,
    past: VecDeque<Results>,
    deadline: Option<Moment>,
    is_overdue: bool,
}

impl Rounds {
    /// A session as it stands in the database. `past` holds the results of the rounds before this one, the
    /// latest first. An open round gets its whole time (again, after a restart).
    pub fn new(
        rules: Rules,
        phase: Phase,
        round: u64,
        results: Results,
        past: VecDeque<Results>,
        now: Moment,
    ) -> Self {
        let mut rounds = Self {
            rules,
            phase,
            round,
            results,
            past,
            deadline: None,
            is_overdue: false,
        };
        rounds.begin_waiting(now);
        rounds
    }

    /// Where the session stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The round, from 0; the number of all rounds once the session is finished.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// The round's results so far.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Results of the round that was merged last.
    pub fn merged_results(&self) -> usize {
        self.past.front().map_or(0, BTreeMap::len)
    }

    /// When rounds close.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// When [`Event::DeadlinePassed`] is due.
    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
            .filter(|_| self.phase == Phase::Open && !self.is_overdue)
    }

    /// Why the round does not close, for people; none where nothing is waited for.
    pub fn waits_because(&self) -> Option<String> {
        if self.phase != Phase::Open {
            return None;
        }
        let (has, enough) = (self.results.len(), self.rules.enough);
        Some(if self.is_overdue {
            let least = self.rules.at_least.max(1);
            format!("the round's time is over; it closes with {least} results, and has {has}")
        } else {
            format!("{has} of {enough} results are there")
        })
    }

    /// What a result of this participant for this round would meet with.
    pub fn standing(&self, participant: &str, round: u64) -> Standing {
        if let Some(sha256) = self
            .results_of(round)
            .and_then(|given| given.get(participant))
        {
            return Standing::Given(sha256.clone());
        }
        match self.phase {
            Phase::Finished | Phase::Stopped => Standing::Ended,
            _ if round < self.round => Standing::Late,
            _ if round > self.round => Standing::NotBegun,
            Phase::Merging => Standing::Late,
            Phase::Open => Standing::Welcome,
        }
    }

    fn results_of(&self, round: u64) -> Option<&Results> {
        match self.round.checked_sub(round)? {
            0 => Some(&self.results),
            back => self.past.get(usize::try_from(back).ok()? - 1),
        }
    }

    /// Decides upon an event; changes nothing.
    pub fn decide(&self, event: Event, now: Moment) -> Decision {
        let change = match event {
            Event::ResultStored {
                participant,
                round,
                sha256,
            } => return self.decide_result(participant, round, sha256),
            Event::MeanStored { round, results } => return self.decide_mean(round, results),
            _ if self.phase.is_ended() => None,
            Event::DeadlinePassed => self.decide_deadline(now),
            Event::Merged { round } => self.is_merging(round).then_some(Change::Advanced),
            Event::Unusable {
                round,
                participants,
            } => self
                .is_merging(round)
                .then_some(Change::Reopened(participants)),
            Event::Expected { enough, at_least } => {
                let mut rules = self.rules.clone();
                (rules.enough, rules.at_least) = (enough, at_least);
                let deadline = self.deadline;
                Some(Change::Adjusted { rules, deadline })
            }
            Event::DeadlineMoved(deadline) => {
                let rules = self.rules.clone();
                Some(Change::Adjusted { rules, deadline })
            }
            Event::Sufficient => self.closes_now().then_some(Change::Closed),
            Event::StopAsked => Some(Change::Stopped),
        };
        let answer = match &change {
            Some(_) => Answer::Taken,
            None if self.phase.is_ended() => Answer::Refused(Standing::Ended),
            None => Answer::Again,
        };
        Decision { answer, change }
    }

    fn decide_result(&self, participant: String, round: u64, sha256: String) -> Decision {
        let (answer, change) = match self.standing(&participant, round) {
            Standing::Welcome => {
                let closes = self.results.len() + 1 >= self.needed();
                let change = Change::Accepted {
                    participant,
                    sha256,
                    closes,
                };
                (Answer::Taken, Some(change))
            }
            Standing::Given(known) if known == sha256 => (Answer::Again, None),
            standing => (Answer::Refused(standing), None),
        };
        Decision { answer, change }
    }

    fn decide_mean(&self, round: u64, results: Results) -> Decision {
        let standing = match self.phase {
            Phase::Finished | Phase::Stopped => Standing::Ended,
            Phase::Open if round == self.round => Standing::Welcome,
            _ if round > self.round => Standing::NotBegun,
            _ => Standing::Late,
        };
        match standing {
            Standing::Welcome => Decision {
                answer: Answer::Taken,
                change: Some(Change::MeanAccepted(results)),
            },
            other => Decision {
                answer: Answer::Refused(other),
                change: None,
            },
        }
    }

    fn is_merging(&self, round: u64) -> bool {
        self.phase == Phase::Merging && self.round == round
    }

    fn decide_deadline(&self, now: Moment) -> Option<Change> {
        let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
        if !is_due {
            return None;
        }
        let has_some = self.results.len() >= self.rules.at_least.max(1);
        Some(if has_some {
            Change::Closed
        } else {
            Change::Overdue
        })
    }

    /// How many results close the round as it stands.
    fn needed(&self) -> usize {
        let needed = match self.is_overdue {
            true => self.rules.at_least.min(self.rules.enough),
            false => self.rules.enough,
        };
        needed.max(1)
    }

    /// Makes a change that was decided upon and written down.
    pub fn make(&mut self, change: Change, now: Moment) {
        match change {
            Change::Accepted {
                participant,
                sha256,
                closes,
            } => {
                self.results.insert(participant, sha256);
                if closes {
                    self.phase = Phase::Merging;
                }
            }
            Change::MeanAccepted(results) => {
                self.results = results;
                self.phase = Phase::Merging;
            }
            Change::Closed => self.phase = Phase::Merging,
            Change::Overdue => self.is_overdue = true,
            Change::Advanced => {
                self.past.push_front(std::mem::take(&mut self.results));
                self.past.truncate(REMEMBERED_ROUNDS as usize);
                self.round += 1;
                self.phase = if self.round >= self.rules.total_rounds {
                    Phase::Finished
                } else {
                    Phase::Open
                };
                self.begin_waiting(now);
            }
            Change::Reopened(without) => {
                self.results.retain(|name, _| !without.contains(name));
                self.phase = Phase::Open;
                self.begin_waiting(now);
            }
            Change::Adjusted { rules, deadline } => {
                if deadline != self.deadline {
                    self.is_overdue = false;
                }
                self.rules = rules;
                self.deadline = deadline;
            }
            Change::Stopped => self.phase = Phase::Stopped,
        }
    }

    /// Whether the round can close as it stands: rules that were lowered may be met already.
    pub fn closes_now(&self) -> bool {
        self.phase == Phase::Open && self.results.len() >= self.needed()
    }

    /// The same with the rules and the deadline of a state that was known before, where that is of the same round:
    /// neither is stored.
    pub fn with_time_of(mut self, known: &Self) -> Self {
        self.rules = known.rules.clone();
        if self.round == known.round && self.phase == known.phase {
            self.deadline = known.deadline;
            self.is_overdue = known.is_overdue;
        }
        self
    }

    fn begin_waiting(&mut self, now: Moment) {
        self.is_overdue = false;
        self.deadline = self.rules.timeout.map(|timeout| now + timeout);
    }
}

#[cfg(test)]
mod tests;
