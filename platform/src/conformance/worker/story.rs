//! All that passed between the judge and the worker, in order and with the times: what the rules are judged by.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::conformance::report::{Outcome, Problem};
use crate::conformance::socket::Received;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A part of the play begins.
    Began(Act),
    /// A part of the play was played to its end.
    Ended(Act),
    /// The worker tried to connect.
    Tried,
    /// The worker's WebSocket was opened at this path and query.
    Opened(String),
    /// The worker's connection brought this.
    Heard(Received),
    /// The worker was told this.
    Said(Value),
    /// The connection was cut.
    Cut,
    /// The worker asked for a file of the judge's.
    Fetched(String),
    /// The worker stored a file under this key.
    Stored(String),
}

/// A part of the play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It connects for the first time, and registers.
    Join,
    /// It is left alone for some heartbeats.
    Idle,
    /// It is pinged while it has nothing to do.
    Ping,
    /// It is told what it cannot know.
    UnknownType,
    /// It is sent what is no JSON.
    Malformed,
    /// It is sent a message with a field that it cannot know.
    UnknownField,
    /// It trains a short job to its end.
    ShortJob,
    /// It is stopped in a long job, which was sent to it twice.
    LongJob,
    /// Its data set is not there.
    LostData,
    /// Its job cannot be read.
    BadJob,
    /// It answers a chat.
    Chat,
    /// It is stopped in a long answer.
    LongChat,
    /// It is asked what it cannot read.
    BadChat,
    /// It evaluates a model.
    Evaluation,
    /// It is asked for an evaluation that it cannot read.
    BadEvaluation,
    /// Its connection is cut while it has nothing to do.
    IdleCut,
    /// Its connection is cut while it trains.
    BusyCut,
    /// Its connection is cut, and it is not let in again at once.
    Refusals,
}

/// One event with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// When.
    pub at: Instant,
    /// What.
    pub event: Event,
}

/// The story while it is being played.
#[derive(Debug, Clone)]
pub struct Recorder {
    entries: Arc<Mutex<Vec<Entry>>>,
    count: Arc<watch::Sender<usize>>,
}

impl Recorder {
    /// Nothing has happened.
    pub fn new() -> Self {
        Self {
            entries: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Something happens.
    pub fn note(&self, event: Event) {
        let at = Instant::now();
        let mut entries = self.entries.lock().expect("no holder panics");
        entries.push(Entry { at, event });
        self.count.send_replace(entries.len());
    }

    /// How much has happened so far.
    pub fn now(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits for the first event since `from` for which `wanted` holds. None when `within` has passed.
    pub async fn until(
        &self,
        from: usize,
        within: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Option<Entry> {
        let mut count = self.count.subscribe();
        let mut seen = from;
        let waiting = async {
            loop {
                count.borrow_and_update();
                {
                    let entries = self.entries.lock().expect("no holder panics");
                    if let Some(entry) = entries[seen..].iter().find(|entry| wanted(&entry.event)) {
                        return Some(entry.clone());
                    }
                    seen = entries.len();
                }
                count.changed().await.ok()?;
            }
        };
        tokio::time::timeout(within, waiting).await.ok().flatten()
    }

    /// Waits for the first message since `from` for which `wanted` holds.
    pub async fn until_heard(
        &self,
        from: usize,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Option<Value> {
        let is_wanted = |event: &Event| matches!(event, Event::Heard(Received::Message(message)) if wanted(message));
        match self.until(from, within, is_wanted).await?.event {
            Event::Heard(Received::Message(message)) => Some(message),
            _ => None,
        }
    }

    /// The story so far.
    pub fn story(&self) -> Story {
        Story {
            entries: self.entries.lock().expect("no holder panics").clone(),
        }
    }
}

/// The story once it is told.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// All events in order.
    pub entries: Vec<Entry>,
}

impl Story {
    /// What happened in a part of the play.
    ///
    /// # Errors
    /// Blocked where it was not played.
    pub fn act(&self, act: Act) -> Outcome<&[Entry]> {
        let position = |event: Event| {
            let same = |entry: &Entry| entry.event == event;
            self.entries.iter().position(same)
        };
        let begin = position(Event::Began(act)).ok_or_else(|| {
            Problem::Blocked(format!("the worker did not come as far as {act:?}"))
        })?;
        let end = position(Event::Ended(act)).unwrap_or(self.entries.len());
        Ok(&self.entries[begin..end])
    }

    /// All messages of one type, with their times.
    pub fn heard(&self, kind: &str) -> Vec<(Instant, &Value)> {
        heard(&self.entries, kind)
    }
}

/// The messages of one type among `entries`, with their times.
pub fn heard<'a>(entries: &'a [Entry], kind: &str) -> Vec<(Instant, &'a Value)> {
    entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Heard(Received::Message(message)) if message["type"] == kind => {
                Some((entry.at, message))
            }
            _ => None,
        })
        .collect()
}

/// The messages of all types about one job among `entries`.
pub fn about_job(entries: &[Entry], job: i64) -> Vec<&Value> {
    entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Heard(Received::Message(message)) if message["job_id"] == job => Some(message),
            _ => None,
        })
        .collect()
}
