//! The session's rounds as the judge brings them about: how many results are in, how many are missing, and how one
//! round gives way to the next.

use std::time::Duration;

use super::session::{Counted, Labels, Patience, Reply, Session};
use crate::conformance::report::{Outcome, Problem, needed};

/// More results than any session waits for.
const MOST_RESULTS: u64 = 256;

/// What is known of the rounds.
pub struct Turns {
    /// A volunteer that only asks.
    watcher: String,
    /// The round that was seen last.
    current: Option<u64>,
    /// Who has a result in it, of the judge's volunteers.
    counted: Counted,
    /// Whether the round was seen from its beginning, so that nothing else counts.
    is_clean: bool,
    /// Results that close a round.
    enough: Option<u64>,
    /// Why rounds cannot be closed any more.
    stuck: Option<String>,
    /// Whether the judge is closing a round.
    closes: bool,
    /// Rounds that closed without its doing.
    surprises: u64,
    /// What was served while a round closed, where somebody looks.
    glimpses: Option<Vec<Labels>>,
}

/// Where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Now {
    /// That round takes results.
    Open(u64),
    /// There is nothing to do at the moment.
    Waits,
    /// All rounds are over.
    Finished,
}

/// A round that was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    pub round: u64,
    /// Results that the judge sent for it.
    pub results: u64,
    /// Where the session stands then.
    pub then: Now,
}

impl Turns {
    /// Nothing is known yet.
    pub fn new(watcher: String) -> Self {
        Self {
            watcher,
            current: None,
            counted: Counted::new(),
            is_clean: false,
            enough: None,
            stuck: None,
            closes: false,
            surprises: 0,
            glimpses: None,
        }
    }

    /// A round that somebody was told of.
    pub fn note(&mut self, round: u64) {
        if self.current == Some(round) {
            return;
        }
        if self.current.is_some() {
            self.is_clean = true;
            if !self.closes {
                self.surprises += 1;
            }
        }
        self.current = Some(round);
        self.counted.clear();
    }

    /// A result that was taken.
    pub fn count(&mut self, worker: &str, round: u64) {
        if self.current == Some(round) {
            self.counted.insert(worker.to_owned());
        }
    }
}

impl Session {
    /// Rounds that closed without the judge's doing, so far.
    pub fn surprises(&self) -> u64 {
        self.turns.surprises
    }

    /// Why rounds cannot be closed any more, where that was seen.
    pub fn stuck(&self) -> Option<String> {
        self.turns.stuck.clone()
    }

    /// Whether there were more since then.
    pub async fn was_surprised_since(&mut self, before: u64) -> bool {
        // Where there is no answer, that is what the check has seen too.
        let _ = self.now().await;
        self.turns.surprises > before
    }

    /// Where the session stands now.
    pub async fn now(&mut self) -> Outcome<Now> {
        let watcher = self.turns.watcher.clone();
        match self.reply(&watcher).await? {
            Reply::Task(task) => Ok(Now::Open(task["tur"].as_u64().unwrap_or_default())),
            Reply::Finished => Ok(Now::Finished),
            Reply::Wait(_) => Ok(Now::Waits),
            Reply::Other(answer) if answer.status == 503 => Ok(Now::Waits),
            Reply::Other(answer) => Err(Problem::broken("an answer of /gorev", answer.describe())),
        }
    }

    /// Results that close a round: as `/bilgi` says, else as is seen.
    pub async fn enough(&mut self) -> Outcome<u64> {
        if let Some(enough) = self.turns.enough {
            return Ok(enough);
        }
        let said = match self.info().await {
            Ok(info) => info["en_az"].as_u64().filter(|enough| *enough > 0),
            Err(_) => None,
        };
        let enough = match said {
            Some(enough) => enough,
            None => {
                if !self.turns.is_clean {
                    needed(self.close_round()).await?;
                }
                needed(self.close_round()).await?.results
            }
        };
        self.turns.enough = Some(enough);
        Ok(enough)
    }

    /// Makes sure that the open round takes that many results without closing.
    pub async fn room(&mut self, results: u64) -> Outcome {
        let enough = self.enough().await?;
        if enough <= results {
            return Err(Problem::Blocked(format!(
                "{enough} results close a round of this session: this takes en_az of {} or more",
                results + 1
            )));
        }
        needed(self.see_current()).await?;
        let counted = self.turns.counted.len() as u64;
        if !self.turns.is_clean || counted + results >= enough {
            needed(self.close_round()).await?;
            needed(self.see_current()).await?;
        }
        Ok(())
    }

    /// Makes sure that just that many results are missing in the open round.
    pub async fn missing(&mut self, results: u64) -> Outcome {
        self.room(results.saturating_sub(1)).await?;
        let enough = self.enough().await?;
        while self.turns.counted.len() as u64 + results < enough {
            let part = self.newcomer_with_part().await?;
            self.good_upload(&part).await?;
        }
        Ok(())
    }

    /// Waits for an open round.
    async fn see_current(&mut self) -> Outcome<u64> {
        let watcher = self.turns.watcher.clone();
        let task = self.task(&watcher).await?;
        Ok(task["tur"].as_u64().unwrap_or_default())
    }

    /// Sends good results of new volunteers until the round closes.
    ///
    /// # Errors
    /// It does not close.
    pub async fn close_round(&mut self) -> Outcome<Closed> {
        if let Some(why) = &self.turns.stuck {
            return Err(Problem::Blocked(format!("rounds do not close: {why}")));
        }
        self.turns.closes = true;
        let closed = self.fill().await;
        self.turns.closes = false;
        closed
    }

    /// Makes sure that a round is over.
    pub async fn leave(&mut self, round: u64) -> Outcome {
        match self.now().await? {
            Now::Open(still) if still == round => self.close_round().await.map(drop),
            _ => self.see_current().await.map(drop),
        }
    }

    /// Closes a round, with what `/agirlik` gave in the meantime.
    pub async fn close_round_watching(&mut self) -> Outcome<(Closed, Vec<Labels>)> {
        self.turns.glimpses = Some(Vec::new());
        let closed = self.close_round().await;
        let glimpses = self.turns.glimpses.take().unwrap_or_default();
        Ok((closed?, glimpses))
    }

    async fn fill(&mut self) -> Outcome<Closed> {
        let round = needed(self.see_current()).await?;
        let closed = |results, then| Closed {
            round,
            results,
            then,
        };
        for results in 1..=MOST_RESULTS {
            let part = self.newcomer_with_part().await?;
            if part.round != round {
                return Ok(closed(results - 1, Now::Open(part.round)));
            }
            let result = part.adapter.moved(self.volunteers());
            let answer = needed(self.upload(&part.worker, round, result)).await?;
            let has_enough = self.turns.enough.map(|enough| {
                let counted = self.turns.counted.len() as u64;
                counted >= enough || !answer.is_success()
            });
            let within = match has_enough {
                Some(true) => self.pace.merge_within,
                Some(false) => Duration::ZERO,
                // How many it takes is not known: so it is given time after each.
                None => self.pace.quiet_for,
            };
            if let Some(then) = self.gives_way_within(round, within).await? {
                return Ok(closed(results, then));
            }
            if !answer.is_success() {
                return Err(Problem::Blocked(format!(
                    "a good result was not taken: {}",
                    answer.describe()
                )));
            }
            if has_enough == Some(true) {
                return self.never_closes(round, results);
            }
        }
        self.never_closes(round, MOST_RESULTS)
    }

    fn never_closes(&mut self, round: u64, results: u64) -> Outcome<Closed> {
        let within = self.pace.merge_within;
        let got = format!("tur {round} goes on {within:?} after {results} good results were taken");
        self.turns.stuck = Some(got.clone());
        Err(Problem::broken("the round to close", got))
    }

    /// Waits for a round to close by its timeout.
    pub async fn waits_out(&mut self, round: u64, within: Duration) -> Outcome<Option<Now>> {
        self.turns.closes = true;
        let then = self.gives_way_within(round, within).await;
        self.turns.closes = false;
        then
    }

    /// Waits for a round to give way to what comes after it; where it is being merged, as long as that may take.
    pub async fn gives_way_within(&mut self, round: u64, within: Duration) -> Outcome<Option<Now>> {
        let mut patience = Patience::until(within);
        let mut merges = false;
        loop {
            if self.turns.glimpses.is_some() {
                let seen = needed(self.weights()).await?;
                let glimpses = self.turns.glimpses.iter_mut();
                glimpses.for_each(|glimpses| glimpses.push(Labels::of(&seen)));
            }
            match needed(self.now()).await? {
                Now::Open(still) if still == round => {}
                Now::Waits => {
                    if !merges {
                        merges = true;
                        patience = Patience::until(self.pace.merge_within);
                    }
                }
                then => return Ok(Some(then)),
            }
            if !patience.wait().await {
                return Ok(None);
            }
        }
    }
}
