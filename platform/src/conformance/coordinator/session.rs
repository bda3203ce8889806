//! The session under judgement as volunteers see it: tasks, weights, shards, results. Whatever goes wrong on the way
//! stands in the way of the check; it breaks no rule but that of the check which looks at it.

use std::collections::HashSet;
use std::rc::Rc;

use rand::RngExt;
use rand::distr::Alphanumeric;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::adapter::Adapter;
use super::line::{Answer, Ask, Line};
use super::rounds::Closing;
use super::turns::Turns;
use super::{Pace, Target};
use crate::conformance::report::{Outcome, Problem, needed};

/// Between two questions of one who waits, at first and at most.
const POLL_AFTER: std::time::Duration = std::time::Duration::from_millis(20);
const POLL_AT_MOST: std::time::Duration = std::time::Duration::from_secs(1);
/// How often weights are fetched again that are not those of the task.
const TRIES: u32 = 4;

/// The session under judgement and what the judge has there.
pub struct Session {
    pub line: Line,
    pub pace: Pace,
    pub(super) turns: Turns,
    /// What all of the judge's volunteers are called at the beginning.
    prefix: String,
    volunteers: u64,
    /// The last adapter that was fetched, with its digest.
    global: Option<(String, Rc<Adapter>)>,
    /// How often other weights than before were fetched for a task, and why the first that cannot be read cannot.
    pub weights_read: u64,
    pub unreadable: Option<String>,
    shard: Option<Rc<Shard>>,
    pub(super) closing: Option<Rc<Closing>>,
    /// The statuses with which results that are not valid were refused.
    pub refused_with: Vec<(&'static str, u16)>,
}

/// An answer of `GET /gorev`.
#[derive(Debug, Clone)]
pub enum Reply {
    /// A task.
    Task(Value),
    /// `bekle`, with the round.
    Wait(Option<u64>),
    /// `bitti`
    Finished,
    /// Something else.
    Other(Answer),
}

/// A volunteer with its task and the adapter that it begins with.
#[derive(Debug, Clone)]
pub struct Part {
    pub worker: String,
    pub round: u64,
    pub task: Value,
    pub adapter: Rc<Adapter>,
}

/// A volunteer's shard of the data.
#[derive(Debug)]
pub struct Shard {
    pub task: Value,
    pub answer: Answer,
}

/// What `GET /agirlik` says of its body, and what that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// `X-Tur`
    pub round: Option<String>,
    /// `X-Sha256`
    pub said_sha256: Option<String>,
    /// The body's own.
    pub sha256: String,
}

impl Labels {
    /// Those of an answer.
    pub fn of(answer: &Answer) -> Self {
        Self {
            round: answer.header("x-tur").map(str::to_owned),
            said_sha256: answer.header("x-sha256").map(str::to_owned),
            sha256: answer.sha256(),
        }
    }

    /// Whether `X-Sha256` is the body's digest.
    pub fn is_true(&self) -> bool {
        self.said_sha256.as_ref() == Some(&self.sha256)
    }
}

impl Session {
    /// Nothing is played yet.
    ///
    /// # Errors
    /// The HTTP client does not start.
    pub fn new(target: Target, pace: Pace) -> reqwest::Result<Self> {
        let letters = rand::rng().sample_iter(Alphanumeric).take(8);
        let prefix: String = letters.map(char::from).collect();
        Ok(Self {
            line: Line::new(target, pace.answer_within)?,
            pace,
            turns: Turns::new(format!("judge-{prefix}-watcher")),
            prefix: format!("judge-{prefix}"),
            volunteers: 0,
            global: None,
            weights_read: 0,
            unreadable: None,
            shard: None,
            closing: None,
            refused_with: Vec::new(),
        })
    }

    /// The name of a volunteer that was not seen before.
    pub fn newcomer(&mut self) -> String {
        self.volunteers += 1;
        format!("{}-{}", self.prefix, self.volunteers)
    }

    /// How many volunteers there were; makes results differ.
    pub fn volunteers(&self) -> u64 {
        self.volunteers
    }

    /// Asks `GET /gorev` once. `worker` is written as it goes over the wire.
    pub async fn reply(&mut self, worker: &str) -> Outcome<Reply> {
        let answer = self
            .line
            .ask(Ask::get("gorev", format!("isci={worker}")))
            .await?;
        let object = answer.object().filter(|_| answer.status == 200);
        let Some(object) = object else {
            return Ok(Reply::Other(answer));
        };
        if object["bitti"] == true {
            return Ok(Reply::Finished);
        }
        let round = object["tur"].as_u64();
        if object["bekle"] == true {
            return Ok(Reply::Wait(round));
        }
        match round {
            Some(round) => {
                self.turns.note(round);
                Ok(Reply::Task(object))
            }
            None => Ok(Reply::Other(answer)),
        }
    }

    /// Waits for a task: while a round is merged there may be none.
    pub async fn task(&mut self, worker: &str) -> Outcome<Value> {
        let mut patience = Patience::until(self.pace.answer_within + self.pace.merge_within);
        loop {
            let came = match self.reply(worker).await? {
                Reply::Task(task) => return Ok(task),
                Reply::Finished => {
                    let why = "training has finished: this takes a session that goes on";
                    return Err(Problem::Blocked(why.to_owned()));
                }
                Reply::Other(answer) if answer.status != 503 => {
                    self.is_let_in(&answer)?;
                    return Err(Problem::broken("a task", answer.describe()));
                }
                Reply::Other(answer) => answer.describe(),
                Reply::Wait(_) => "bekle".to_owned(),
            };
            if !patience.wait().await {
                return Err(Problem::broken("a task", format!("{came} all the time")));
            }
        }
    }

    /// Blocked where an answer says that there is a key which the judge does not have.
    fn is_let_in(&self, answer: &Answer) -> Outcome {
        if answer.status == 401 && !self.line.has_key() {
            let why = "the session wants its shared key: give it with --anahtar";
            return Err(Problem::Blocked(why.to_owned()));
        }
        Ok(())
    }

    /// A volunteer that has asked for a task for the first time.
    pub async fn newcomer_with_task(&mut self) -> Outcome<(String, Value)> {
        let worker = self.newcomer();
        let task = needed(self.task(&worker)).await?;
        Ok((worker, task))
    }

    /// A new volunteer with its task and the weights of that.
    pub async fn newcomer_with_part(&mut self) -> Outcome<Part> {
        let worker = self.newcomer();
        self.part(worker).await
    }

    /// A volunteer with its task and the weights of that.
    pub async fn part(&mut self, worker: String) -> Outcome<Part> {
        needed(async {
            let mut tries = 0;
            loop {
                tries += 1;
                let task = self.task(&worker).await?;
                let digest = digest_in(&task, "agirlik_sha256");
                let known = self.global.as_ref().filter(|(known, _)| *known == digest);
                let adapter = match known {
                    Some((_, adapter)) => adapter.clone(),
                    None => {
                        let answer = self.weights().await?;
                        let found = answer.sha256();
                        self.weights_read += 1;
                        let adapter = Adapter::read(answer.body.to_vec()).map_err(|why| {
                            let told = format!("{why} (tur {})", task["tur"]);
                            self.unreadable.get_or_insert(told);
                            Problem::broken("GET /agirlik to give safetensors", why)
                        })?;
                        let adapter = Rc::new(adapter);
                        self.global = Some((found.clone(), adapter.clone()));
                        // Where they never agree, that is for the rule which says so.
                        if found != digest && tries < TRIES {
                            continue;
                        }
                        adapter
                    }
                };
                return Ok(Part {
                    round: task["tur"].as_u64().unwrap_or_default(),
                    worker,
                    task,
                    adapter,
                });
            }
        })
        .await
    }

    /// `GET /agirlik`
    pub async fn weights(&mut self) -> Outcome<Answer> {
        let answer = self.line.ask(Ask::get("agirlik", "")).await?;
        self.is_let_in(&answer)?;
        answer.expect_status(200)?;
        Ok(answer)
    }

    /// The shard of some volunteer, fetched once.
    pub async fn shard(&mut self) -> Outcome<Rc<Shard>> {
        if let Some(shard) = &self.shard {
            return Ok(shard.clone());
        }
        let (_, task) = self.newcomer_with_task().await?;
        if task["veri_sha256"].is_null() {
            let why = "the coordinator serves no data";
            return Err(Problem::Blocked(why.to_owned()));
        }
        let query = format!("parca={}", task["parca"]);
        let answer = self.line.ask(Ask::get("veri", query)).await?;
        answer.expect_status(200)?;
        let shard = Rc::new(Shard { task, answer });
        self.shard = Some(shard.clone());
        Ok(shard)
    }

    /// `GET /bilgi`, without the key.
    pub async fn info(&mut self) -> Outcome<Value> {
        let ask = Ask::get("bilgi", "").showing(super::line::Shown::Nothing);
        let answer = self.line.ask(ask).await?;
        answer.expect_status(200)?;
        let not_object = || Problem::broken("a JSON object", answer.describe());
        answer.object().ok_or_else(not_object)
    }

    /// Sends a result. One that is taken counts for the round.
    pub async fn upload(&mut self, worker: &str, round: u64, result: Vec<u8>) -> Outcome<Answer> {
        self.upload_as(result_of(worker, round, result), worker, round)
            .await
    }

    /// Sends a result in a way of its own.
    pub async fn upload_as(&mut self, ask: Ask, worker: &str, round: u64) -> Outcome<Answer> {
        let answer = self.line.ask(ask).await?;
        if answer.is_success() {
            self.turns.count(worker, round);
        }
        Ok(answer)
    }

    /// Sends a good result, which must be taken for the check to go on.
    pub async fn good_upload(&mut self, part: &Part) -> Outcome<Answer> {
        let result = part.adapter.moved(self.volunteers);
        let answer = needed(self.upload(&part.worker, part.round, result)).await?;
        match answer.is_success() {
            true => Ok(answer),
            false => Err(Problem::Blocked(format!(
                "a good result was not taken: {}",
                answer.describe()
            ))),
        }
    }
}

/// `POST /sonuc`
pub fn result_of(worker: &str, round: u64, result: Vec<u8>) -> Ask {
    Ask::result(format!("isci={worker}&tur={round}"), result)
}

/// A digest of a task, in lower case: how it is written is for the rule which says so.
pub fn digest_in(task: &Value, field: &str) -> String {
    task[field]
        .as_str()
        .unwrap_or_default()
        .to_ascii_lowercase()
}

/// Waiting in growing steps up to a deadline.
pub struct Patience {
    end: Instant,
    step: std::time::Duration,
}

impl Patience {
    /// Gives up after that time.
    pub fn until(within: std::time::Duration) -> Self {
        Self {
            end: Instant::now() + within,
            step: POLL_AFTER,
        }
    }

    /// Waits a step; false once the time is over.
    pub async fn wait(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.end {
            return false;
        }
        sleep(self.step.min(self.end - now)).await;
        self.step = (self.step * 3 / 2).min(POLL_AT_MOST);
        true
    }
}

/// The workers whose results count in a round.
pub type Counted = HashSet<String>;

impl Reply {
    /// What it is, for reports.
    pub fn describe(&self) -> String {
        match self {
            Self::Task(task) => format!("a task: {task}"),
            Self::Wait(Some(round)) => format!("bekle, tur {round}"),
            Self::Wait(None) => "bekle without tur".to_owned(),
            Self::Finished => "bitti".to_owned(),
            Self::Other(answer) => answer.describe(),
        }
    }
}
