//! The thread that generates with one model: all its answers, one round after the other.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc::UnboundedSender;
use trainyard_shared::FailureKind;

use crate::engine::EngineError;
use crate::engine::chat_template::Chat;
use crate::engine::generate::{
    AnswerText, Audience, Finish, Next, Piece, SamplingOptions, StreamEvent, StreamId, Streams,
};
use crate::engine::model::{CacheRoom, Llama, LoadedAdapter};
use crate::tasks::StopSignal;
use crate::tasks::failure::Failure;

/// An answer to generate.
#[derive(Debug)]
pub struct AnswerRequest {
    /// The tokens to go on from.
    pub(in crate::tasks) prompt: Vec<u32>,
    pub(in crate::tasks) options: SamplingOptions,
    /// Texts that end the answer.
    pub(in crate::tasks) stops: Vec<String>,
    pub(in crate::tasks) adapter: Arc<LoadedAdapter>,
    pub(in crate::tasks) chat: Arc<Chat>,
    /// Ends the answer as cancelled.
    pub(in crate::tasks) stop: StopSignal,
    /// Takes what comes. It ends with [`AnswerEvent::Ended`] or [`AnswerEvent::Failed`].
    pub(in crate::tasks) events: UnboundedSender<AnswerEvent>,
}

/// What an answer's thread tells.
#[derive(Debug)]
pub enum AnswerEvent {
    /// A token, with the text that is certain with it.
    Token {
        text: String,
        /// Whether text of this or earlier tokens is still to come.
        is_incomplete: bool,
    },
    /// The answer is over; `rest` is its last text.
    Ended { rest: String, finish: Finish },
    /// There will be no more.
    Failed(EngineError),
}

/// The thread of one model. It ends with this value.
#[derive(Debug)]
pub(super) struct Generation {
    requests: Option<mpsc::Sender<AnswerRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl Generation {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub(super) fn start(model: Arc<Llama>, room: CacheRoom) -> Result<Self, Failure> {
        let (requests, incoming) = mpsc::channel();
        let work = move || {
            let streams = Streams::new(model, room);
            // What the answers wait for goes with the panic, which tells them.
            if catch_unwind(AssertUnwindSafe(|| run(streams, &incoming))).is_err() {
                tracing::error!("generation broke down");
            }
        };
        let thread = thread::Builder::new()
            .name("generation".to_owned())
            .spawn(work)
            .map_err(|error| {
                let text = format!("no thread for generation: {error}");
                Failure::new(FailureKind::Internal, text)
            })?;
        Ok(Self {
            requests: Some(requests),
            thread: Some(thread),
        })
    }

    /// Begins an answer; false if the thread has broken down.
    pub(super) fn answer(&self, request: AnswerRequest) -> bool {
        let requests = self.requests.as_ref();
        requests.is_some_and(|requests| requests.send(request).is_ok())
    }
}

impl Drop for Generation {
    /// Waits for the thread, so that the model's memory is free when this returns.
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // It cannot panic; see above.
            let _ = thread.join();
        }
    }
}

fn run(mut streams: Streams, requests: &mpsc::Receiver<AnswerRequest>) {
    let mut answers = Answers::default();
    loop {
        if streams.is_empty() {
            match requests.recv() {
                Ok(request) => answers.join(&mut streams, request),
                Err(mpsc::RecvError) => return,
            }
        }
        while let Ok(request) = requests.try_recv() {
            answers.join(&mut streams, request);
        }
        streams.advance(&mut answers);
    }
}

/// The answers that are being given.
#[derive(Default)]
struct Answers(HashMap<StreamId, Answer>);

struct Answer {
    text: AnswerText,
    chat: Arc<Chat>,
    stop: StopSignal,
    events: UnboundedSender<AnswerEvent>,
}

impl Answers {
    fn join(&mut self, streams: &mut Streams, request: AnswerRequest) {
        let AnswerRequest {
            prompt,
            options,
            stops,
            adapter,
            chat,
            stop,
            events,
        } = request;
        match streams.join(&prompt, &options, adapter) {
            Ok(id) => {
                let answer = Answer {
                    text: AnswerText::new(&stops),
                    chat,
                    stop,
                    events,
                };
                self.0.insert(id, answer);
            }
            Err(error) => {
                // Nobody may be listening any more.
                let _ = events.send(AnswerEvent::Failed(error));
            }
        }
    }
}

impl Audience for Answers {
    fn is_stopped(&self, stream: StreamId) -> bool {
        self.0
            .get(&stream)
            .is_none_or(|answer| answer.stop.is_set() || answer.events.is_closed())
    }

    fn take(&mut self, stream: StreamId, event: StreamEvent) -> Next {
        let Some(answer) = self.0.get_mut(&stream) else {
            return Next::Leave;
        };
        let (told, next) = answer.take(event);
        let _ = answer.events.send(told);
        if next == Next::Leave {
            self.0.remove(&stream);
        }
        next
    }
}

impl Answer {
    fn take(&mut self, event: StreamEvent) -> (AnswerEvent, Next) {
        match event {
            StreamEvent::Token(id) => match self.text.push(self.chat.tokenizer(), id) {
                Ok(Piece {
                    text,
                    stopped: false,
                }) => {
                    let is_incomplete = self.text.is_incomplete();
                    let token = AnswerEvent::Token {
                        text,
                        is_incomplete,
                    };
                    (token, Next::GoOn)
                }
                Ok(Piece { text, .. }) => self.last_token(text),
                Err(error) => (AnswerEvent::Failed(error), Next::Leave),
            },
            StreamEvent::Finished(finish) => (self.ended(finish), Next::Leave),
            StreamEvent::Failed(error) => (AnswerEvent::Failed(error), Next::Leave),
        }
    }

    /// The token that completes a stop string.
    fn last_token(&self, text: String) -> (AnswerEvent, Next) {
        let token = AnswerEvent::Token {
            text,
            is_incomplete: false,
        };
        let _ = self.events.send(token);
        let ended = AnswerEvent::Ended {
            rest: String::new(),
            finish: Finish::Stop,
        };
        (ended, Next::Leave)
    }

    fn ended(&mut self, finish: Finish) -> AnswerEvent {
        match self.text.finish(self.chat.tokenizer()) {
            Ok(piece) => AnswerEvent::Ended {
                rest: piece.text,
                finish: if piece.stopped { Finish::Stop } else { finish },
            },
            Err(error) => AnswerEvent::Failed(error),
        }
    }
}
