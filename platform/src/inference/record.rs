//! One request as everybody sees it: what was asked, how it stands, and the answer as far as it has come.
//!
//! Its actor alone writes; any number of HTTP responses read, each at its own pace: a reader keeps only its
//! place in the answer, so a slow one costs nothing beyond the answer itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use trainyard_shared::FinishReason;
use trainyard_shared::ids::{InferenceId, UserId, WorkerId};
use trainyard_shared::message::{InferenceCompletedData, InferenceMetrics};

use super::request::Request;
use super::state::{Failure, Phase, owner_of};
use crate::auth::Credential;

/// A request.
#[derive(Debug)]
pub struct Record {
    /// Its id.
    pub id: InferenceId,
    /// Whose it is.
    pub owner: UserId,
    /// What was asked.
    pub request: Request,
    /// With what who asked has shown who it is.
    pub credential: Credential,
    /// When.
    pub created_at: DateTime<Utc>,
    is_awaited: AtomicBool,
    shown: Mutex<Shown>,
    changes: watch::Sender<()>,
}

/// How a request stands.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Where it stands.
    pub phase: Phase,
    /// Who had, or has, which attempt.
    pub owners: Vec<WorkerId>,
    /// Why it waits.
    pub waits_because: String,
    /// The answer so far.
    pub text: String,
    /// Where each token of it ends, in bytes.
    token_ends: Vec<usize>,
    /// Tokens that were generated, once the worker has said so.
    pub tokens_generated: Option<u64>,
    /// Tokens of the chat that was continued, once the worker has said so.
    pub prompt_tokens: Option<u64>,
    /// Why the answer ended.
    pub finish_reason: Option<FinishReason>,
    /// How fast it came.
    pub metrics: Option<InferenceMetrics>,
    /// Why there is none.
    pub failure: Option<Failure>,
    /// When the present attempt was given to its worker.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}

impl Shown {
    /// The answer's length in tokens: as the worker counts, or as they came.
    pub fn tokens(&self) -> u64 {
        let came = u64::try_from(self.token_ends.len()).unwrap_or(u64::MAX);
        self.tokens_generated.unwrap_or(came)
    }
}

impl Record {
    /// A request that has just been made.
    pub fn new(id: InferenceId, owner: UserId, credential: Credential, request: Request) -> Self {
        Self {
            id,
            owner,
            request,
            credential,
            created_at: Utc::now(),
            is_awaited: AtomicBool::new(false),
            shown: Mutex::new(Shown {
                phase: Phase::Waiting,
                owners: Vec::new(),
                waits_because: String::new(),
                text: String::new(),
                token_ends: Vec::new(),
                tokens_generated: None,
                prompt_tokens: None,
                finish_reason: None,
                metrics: None,
                failure: None,
                started_at: None,
                ended_at: None,
            }),
            changes: watch::Sender::new(()),
        }
    }

    /// How it stands now.
    pub fn shown(&self) -> Shown {
        self.lock().clone()
    }

    /// Where it stands now.
    pub fn phase(&self) -> Phase {
        self.lock().phase
    }

    /// Who has, or had, that attempt, counted from 1.
    pub fn owner_of(&self, attempt: u32) -> Option<WorkerId> {
        owner_of(&self.lock().owners, attempt)
    }

    /// Whether that worker is to go on with that attempt.
    pub fn is_with(&self, worker: WorkerId, attempt: u32) -> bool {
        let shown = self.lock();
        let is_newest = usize::try_from(attempt) == Ok(shown.owners.len());
        shown.phase == Phase::Running(worker) && is_newest
    }

    /// Whether a response is open that waits for the answer, or was.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// A response waits for the answer.
    pub(super) fn set_awaited(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Bytes that it keeps in memory, about.
    pub fn weight_bytes(&self) -> usize {
        let shown = self.lock();
        self.request.weight_bytes()
            + shown.text.capacity()
            + shown.token_ends.capacity() * size_of::<usize>()
    }

    /// Changes how it stands, and wakes those who wait for that.
    pub(super) fn change(&self, change: impl FnOnce(&mut Shown)) {
        change(&mut self.lock());
        self.changes.send_replace(());
    }

    /// Adds the next tokens.
    pub(super) fn add_tokens(&self, tokens: &[String]) {
        self.change(|shown| {
            for token in tokens {
                shown.text.push_str(token);
                shown.token_ends.push(shown.text.len());
            }
        });
    }

    /// The answer is whole. Gives what of it was not streamed. Where the worker's whole text is not what it has
    /// streamed before, what was streamed stands: people have read it.
    pub(super) fn complete(&self, data: &InferenceCompletedData) -> Option<String> {
        let mut rest = None;
        self.change(|shown| {
            if let Some(text) = &data.text {
                match text.strip_prefix(shown.text.as_str()) {
                    Some("") => {}
                    Some(more) => rest = Some(more.to_owned()),
                    None => tracing::warn!(
                        inference.id = %self.id,
                        "the worker's text is not what it has streamed"
                    ),
                }
            }
            if let Some(more) = &rest {
                shown.text.push_str(more);
                shown.token_ends.push(shown.text.len());
            }
            shown.tokens_generated = data.tokens_generated;
            shown.prompt_tokens = data.prompt_tokens;
            shown.finish_reason = data.finish_reason;
            shown.metrics = Some(data.metrics.clone());
            shown.phase = Phase::Completed;
            shown.ended_at = Some(Utc::now());
        });
        rest
    }

    /// A reader at the answer's beginning.
    pub fn reader(&self) -> Reader {
        Reader {
            changes: self.changes.subscribe(),
            token: 0,
        }
    }

    /// A panic while the lock was held leaves a state that is whole.
    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A place in an answer.
pub struct Reader {
    changes: watch::Receiver<()>,
    token: usize,
}

/// What a reader sees next.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// The next tokens, all that are there.
    Tokens(Vec<String>),
    /// Nothing new.
    Nothing,
    /// Nothing will come any more.
    End,
}

impl Reader {
    /// What there is now behind the reader's place.
    pub fn read(&mut self, record: &Record) -> Seen {
        self.changes.borrow_and_update();
        let shown = record.lock();
        let mut start = match self.token {
            0 => 0,
            token => shown.token_ends[token - 1],
        };
        let tokens: Vec<String> = shown.token_ends[self.token..]
            .iter()
            .map(|end| {
                let token = shown.text[start..*end].to_owned();
                start = *end;
                token
            })
            .collect();
        self.token = shown.token_ends.len();
        if !tokens.is_empty() {
            Seen::Tokens(tokens)
        } else if shown.phase.is_ended() {
            Seen::End
        } else {
            Seen::Nothing
        }
    }

    /// Waits until something has changed since the last [`Reader::read`].
    pub async fn changed(&mut self) {
        // Fails only when the record is gone, which whoever reads it holds.
        let _ = self.changes.changed().await;
    }
}

/// Waits until the request has ended.
pub async fn ended(record: &Record) {
    wait_until(record, Phase::is_ended).await;
}

/// Waits until the request is with a worker, or has ended.
pub async fn left_queue(record: &Record) {
    wait_until(record, |phase| phase != Phase::Waiting).await;
}

async fn wait_until(record: &Record, holds: impl Fn(Phase) -> bool) {
    let mut changes = record.changes.subscribe();
    while !holds(record.phase()) {
        // Fails only when the record is gone, which whoever reads it holds.
        if changes.changed().await.is_err() {
            return;
        }
    }
}
