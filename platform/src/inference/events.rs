//! An answer as server-sent events: token by token, at the pace of whoever reads.
//!
//! A reader holds only its place in the answer. While nothing comes, a comment goes out five times a second: only by
//! writing is it noticed that the client is gone, and then the request is cancelled.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use bytes::Bytes;
use futures_util::stream::{Stream, unfold};

use super::record::{Reader, Record, Seen};
use crate::actors::Actors;

/// How often a silent stream is written to.
const KEEP_ALIVE: Duration = Duration::from_millis(200);

/// Words an answer.
pub trait Script {
    /// What comes before everything else.
    fn begin(&mut self, _: &Record) -> String {
        String::new()
    }

    /// The next tokens.
    fn tokens(&mut self, record: &Record, tokens: Vec<String>) -> String;

    /// The end, whichever it is.
    fn end(&mut self, record: &Record) -> String;
}

/// One event in the form of the standard; `name` is left out where it is empty.
pub fn event(name: &str, data: &str) -> String {
    match name {
        "" => format!("data: {data}\n\n"),
        name => format!("event: {name}\ndata: {data}\n\n"),
    }
}

/// The response that streams the answer.
pub fn respond(wanted: Wanted, script: impl Script + 'static) -> HttpResponse {
    let id = wanted.record.id.to_string();
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream; charset=utf-8"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .insert_header(("x-accel-buffering", "no"))
        .insert_header(("x-inference-id", id))
        .streaming(stream(wanted, script))
}

fn stream(
    wanted: Wanted,
    script: impl Script + 'static,
) -> impl Stream<Item = Result<Bytes, actix_web::Error>> {
    let reader = wanted.record.reader();
    let telling = Telling {
        wanted,
        reader,
        script,
        stage: Stage::Beginning,
    };
    unfold(telling, |mut telling| async move {
        let text = telling.next().await?;
        Some((Ok(Bytes::from(text)), telling))
    })
}

/// Cancels the request when it is dropped before the end: nobody reads the answer any more.
pub struct Wanted {
    actors: Actors,
    record: Arc<Record>,
}

impl Wanted {
    /// As long as this is kept the answer is wanted.
    pub fn new(actors: Actors, record: Arc<Record>) -> Self {
        record.set_awaited();
        Self { actors, record }
    }

    /// The request.
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        if !self.record.phase().is_ended() {
            tracing::info!(inference.id = %self.record.id, "whoever wanted the answer is gone");
            self.actors.inferences.cancel_soon(&self.record.id);
        }
    }
}

struct Telling<S> {
    wanted: Wanted,
    reader: Reader,
    script: S,
    stage: Stage,
}

#[derive(PartialEq, Eq)]
enum Stage {
    Beginning,
    Middle,
    Ended,
}

impl<S: Script> Telling<S> {
    async fn next(&mut self) -> Option<String> {
        match self.stage {
            Stage::Beginning => {
                self.stage = Stage::Middle;
                let begin = self.script.begin(&self.wanted.record);
                return Some(if begin.is_empty() {
                    COMMENT.to_owned()
                } else {
                    begin
                });
            }
            Stage::Middle => {}
            Stage::Ended => return None,
        }
        loop {
            match self.reader.read(&self.wanted.record) {
                Seen::Tokens(tokens) => {
                    return Some(self.script.tokens(&self.wanted.record, tokens));
                }
                Seen::End => {
                    self.stage = Stage::Ended;
                    return Some(self.script.end(&self.wanted.record));
                }
                Seen::Nothing => {
                    let changed = self.reader.changed();
                    if tokio::time::timeout(KEEP_ALIVE, changed).await.is_err() {
                        return Some(COMMENT.to_owned());
                    }
                }
            }
        }
    }
}

/// Readers pass over it.
const COMMENT: &str = ":\n\n";
