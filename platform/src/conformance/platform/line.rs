//! One connection that the judge plays, as a worker or as a dashboard. It is read all the time, so that pings are
//! answered whatever the check waits for elsewhere.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::conformance::report::{Outcome, Problem, excerpt};
use crate::conformance::socket::{self, NotOpened, Received};

/// Descriptions of what came instead are cut to so many messages.
const DESCRIBED: usize = 6;

/// What all connections have heard, for the rules about every message.
#[derive(Debug, Clone, Default)]
pub struct Heard(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    messages: u64,
    unreadable: Option<String>,
    bad_timestamp: Option<String>,
    enrolled: Vec<i64>,
}

impl Heard {
    fn note(&self, received: &Received) {
        let mut counts = self.0.lock().expect("no holder panics");
        match received {
            Received::Message(message) => {
                counts.messages += 1;
                if message["type"] == "enrollment_complete" {
                    counts
                        .enrolled
                        .extend(message["data"]["worker_id"].as_i64());
                }
                let timestamp = &message["timestamp"];
                let fits = timestamp
                    .as_str()
                    .is_some_and(|text| chrono::DateTime::parse_from_rfc3339(text).is_ok());
                if !timestamp.is_null() && !fits {
                    counts
                        .bad_timestamp
                        .get_or_insert_with(|| received.describe());
                }
            }
            Received::Unreadable(what) => {
                counts.unreadable.get_or_insert_with(|| what.clone());
            }
            Received::Closed(_) => {}
        }
    }

    /// The numbers of all workers that were enrolled.
    pub fn enrolled(&self) -> Vec<i64> {
        let counts = self.0.lock().expect("no holder panics");
        counts.enrolled.clone()
    }

    /// Whether everything was a JSON object with a type.
    pub fn readable(&self) -> Outcome {
        self.look("a JSON object with a type", |counts| &counts.unreadable)
    }

    /// Whether every timestamp is one.
    pub fn timestamps_fit(&self) -> Outcome {
        self.look("an RFC 3339 timestamp", |counts| &counts.bad_timestamp)
    }

    fn look(&self, expected: &str, fault: impl Fn(&Counts) -> &Option<String>) -> Outcome {
        let counts = self.0.lock().expect("no holder panics");
        match fault(&counts) {
            Some(got) => Err(Problem::broken(expected, got)),
            None if counts.messages == 0 => {
                Err(Problem::Blocked("no message was received".to_owned()))
            }
            None => Ok(()),
        }
    }
}

/// An open connection.
pub struct Line {
    outgoing: mpsc::UnboundedSender<Message>,
    incoming: mpsc::UnboundedReceiver<Received>,
    answers: Arc<Answers>,
    tasks: [AbortHandle; 2],
}

/// How pings are answered.
#[derive(Debug, Default)]
struct Answers {
    deaf: AtomicBool,
    job: Mutex<Option<i64>>,
}

impl Line {
    /// Opens a connection to `url`. Every ping on it is answered until told otherwise.
    pub async fn open(url: &str, heard: &Heard) -> Result<Self, NotOpened> {
        let (mut sender, mut receiver) = socket::halves(socket::open(url).await?);
        let (outgoing, mut to_send) = mpsc::unbounded_channel();
        let (received, incoming) = mpsc::unbounded_channel();
        let answers = Arc::<Answers>::default();
        let sending = tokio::spawn(async move {
            while let Some(message) = to_send.recv().await {
                if !sender.send(message).await {
                    return;
                }
            }
        });
        let reading = {
            let (heard, answers, pongs) = (heard.clone(), answers.clone(), outgoing.clone());
            tokio::spawn(async move {
                loop {
                    let next = receiver.next().await;
                    heard.note(&next);
                    if let Received::Message(message) = &next
                        && let Some(pong) = answers.to(message)
                    {
                        let _ = pongs.send(Message::text(pong.to_string()));
                    }
                    let ended = matches!(next, Received::Closed(_));
                    if received.send(next).is_err() || ended {
                        return;
                    }
                }
            })
        };
        Ok(Self {
            outgoing,
            incoming,
            answers,
            tasks: [sending.abort_handle(), reading.abort_handle()],
        })
    }

    /// Sends a message.
    pub fn say(&self, message: &Value) {
        self.say_text(&message.to_string());
    }

    /// Sends a text frame as it is.
    pub fn say_text(&self, text: &str) {
        self.say_frame(Message::text(text));
    }

    /// Sends any frame.
    pub fn say_frame(&self, frame: Message) {
        // Where the connection is gone, whoever waits for an answer is told.
        let _ = self.outgoing.send(frame);
    }

    /// Answers no ping any more, as a process that hangs.
    pub fn fall_silent(&self) {
        self.answers.deaf.store(true, Ordering::Relaxed);
    }

    /// Answers pings again.
    pub fn wake_up(&self) {
        self.answers.deaf.store(false, Ordering::Relaxed);
    }

    /// Says so in each pong from now on that this job is being worked on, or none.
    pub fn work_on(&self, job: Option<i64>) {
        *self.answers.job.lock().expect("no holder panics") = job;
    }

    /// Whether the other side has not closed it yet.
    pub fn is_open(&self) -> bool {
        !self.tasks.iter().any(AbortHandle::is_finished)
    }

    /// Drops what came and was not asked for.
    pub fn forget_the_past(&mut self) {
        while self.incoming.try_recv().is_ok() {}
    }

    /// What comes next, or none within `wait`.
    pub async fn next_within(&mut self, wait: Duration) -> Option<Received> {
        let next = tokio::time::timeout(wait, self.incoming.recv());
        // The channel ends with the connection.
        next.await
            .ok()
            .map(|next| next.unwrap_or(Received::Closed(None)))
    }

    /// The next message for which `wanted` holds; others are passed over.
    ///
    /// # Errors
    /// `expected` is broken where it does not come within `wait`.
    pub async fn wait_for(
        &mut self,
        expected: &str,
        wait: Duration,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Outcome<Value> {
        let end = Instant::now() + wait;
        let mut passed = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.next_within(left).await {
                Some(Received::Message(message)) if wanted(&message) => return Ok(message),
                Some(closed @ Received::Closed(_)) => {
                    passed.push(closed.describe());
                    return Err(Problem::broken(expected, in_order(&passed)));
                }
                Some(other) => passed.push(other.describe()),
                None => {
                    passed.push(format!("nothing more within {wait:?}"));
                    return Err(Problem::broken(expected, in_order(&passed)));
                }
            }
        }
    }

    /// The first message of type `kind`; others are passed over.
    ///
    /// # Errors
    /// As [`Line::wait_for`].
    pub async fn wait_for_type(&mut self, kind: &str, wait: Duration) -> Outcome<Value> {
        self.wait_for(kind, wait, |message| message["type"] == kind)
            .await
    }

    /// Whether nothing comes within `wait` for which `unwanted` holds.
    ///
    /// # Errors
    /// `expected` is broken by what comes, or by a close.
    pub async fn stays_quiet(
        &mut self,
        expected: &str,
        wait: Duration,
        unwanted: impl Fn(&Value) -> bool,
    ) -> Outcome {
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.next_within(left).await {
                None => return Ok(()),
                Some(Received::Message(message)) if !unwanted(&message) => {}
                // A rule of its own says that everything is JSON.
                Some(Received::Unreadable(_)) => {}
                Some(came) => return Err(Problem::broken(expected, came.describe())),
            }
        }
    }

    /// The code with which the other side closes.
    ///
    /// # Errors
    /// `expected` is broken where it does not close within `wait`.
    pub async fn closed_within(&mut self, expected: &str, wait: Duration) -> Outcome<Option<u16>> {
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.next_within(left).await {
                Some(Received::Closed(code)) => return Ok(code),
                Some(_) => {}
                None => {
                    let got = format!("a connection that is open after {wait:?}");
                    return Err(Problem::broken(expected, got));
                }
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Answers {
    /// The `pong` for a `ping`, as the source document spells it.
    fn to(&self, message: &Value) -> Option<Value> {
        if message["type"] != "ping" || self.deaf.load(Ordering::Relaxed) {
            return None;
        }
        let job = *self.job.lock().expect("no holder panics");
        let mut pong = json!({
            "type": "pong",
            "status": if job.is_some() { "training" } else { "idle" },
            "busy": job.is_some(),
            "current_job_id": job,
        });
        if let Some(id) = message.get("ping_id") {
            pong["ping_id"] = id.clone();
        }
        Some(pong)
    }
}

fn in_order(passed: &[String]) -> String {
    let skipped = passed.len().saturating_sub(DESCRIBED);
    let mut told = passed[skipped..].join("; then ");
    if skipped > 0 {
        told = format!("{skipped} messages; then {told}");
    }
    excerpt(&told)
}
