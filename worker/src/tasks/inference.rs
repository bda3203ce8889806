//! One answer, from `start_inference` to the message that ends it.
//!
//! 1. The request is checked ([`request`]). It then waits for its turn: so many answers are given at once.
//! 2. The adapter's files and the base model are found or fetched, and loaded unless they are in memory.
//! 3. The model's thread generates; tokens go out in batches ([`pieces`]).
//! 4. The end is put into the outbox: completed (cancelled ones too) or failed.
//!
//! A lost connection does not matter to any of it: the answer goes on, and its end waits in the outbox.

mod pieces;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout_at;
use trainyard_shared::ids::{InferenceId, MessageId};
use trainyard_shared::message::{
    BaseModel, FromWorker, InferenceCompleted, InferenceCompletedData, InferenceFailed,
    InferenceFailedData, InferenceMetrics, StartInference, StartInferenceData,
};
use trainyard_shared::{FailureKind, FinishReason};

use super::failure::Failure;
use super::loaded::{AnswerEvent, AnswerRequest, LoadedModel};
use super::result_files::{JobResult, fetch_result};
use super::{StopReason, StopSignal, TaskContext};
use crate::connection::Reports;
use crate::engine::generate::Finish;
use crate::engine::model::LoadedAdapter;
use crate::hardware::rounded;
use pieces::Pieces;
use request::{Request, refused};

/// Answers that are given at once; further ones wait for their turn.
pub(super) const ANSWERS_AT_ONCE: usize = 16;
/// Answers that wait or are given; further ones are refused.
pub(super) const MOST_ANSWERS: usize = 256;
/// A text longer than this, as JSON, is left out of `inference_completed`: with it the message would be too
/// large for a frame. Whoever wants it takes the tokens.
const LONGEST_TEXT_JSON: usize = 900 * 1024;

/// Gives an answer to its end, which is reported before this returns.
pub(super) async fn run_inference(
    start: StartInference,
    context: TaskContext,
    turns: Arc<Semaphore>,
    stop: StopSignal,
) {
    let id = &start.inference_id;
    let mut answer = Answer::new(id, context.reports.clone());
    answer.is_streamed = start.data.stream;
    let result = answer.give(&start.data, &context, &turns, &stop).await;
    match (result, stop.reason()) {
        // It is nobody's wish to end it: someone may want to ask again elsewhere.
        (Ok(FinishReason::Cancelled), Some(StopReason::Shutdown)) => {
            let failure = Failure::new(FailureKind::WorkerRestarted, "the worker was shut down");
            report_failed(id, failure, &context.reports);
        }
        (Ok(finish), _) => answer.report_completed(finish),
        (Err(failure), _) => report_failed(id, failure, &context.reports),
    }
}

/// Says that there is no answer.
pub(super) fn report_failed(id: &InferenceId, failure: Failure, reports: &Reports) {
    tracing::warn!(inference.id = %id, reason = failure.message, "answer failed");
    reports.keep_or_send(FromWorker::InferenceFailed(InferenceFailed {
        worker_id: None,
        inference_id: id.clone(),
        message_id: Some(MessageId::random()),
        data: InferenceFailedData {
            error: failure.message,
            failure_kind: Some(failure.kind),
        },
    }));
}

/// Says that an answer which this worker does not know has ended.
pub(super) fn report_unknown(id: &InferenceId, reports: &Reports) {
    Answer::new(id, reports.clone()).report_completed(FinishReason::Cancelled);
}

/// An answer that is being given.
struct Answer {
    id: InferenceId,
    is_streamed: bool,
    reports: Reports,
    pieces: Pieces,
    text: String,
    tokens: u64,
    prompt_tokens: Option<u64>,
    began: Instant,
    first_token: Option<Instant>,
}

/// What an answer is made with.
struct Prepared {
    model: Arc<LoadedModel>,
    adapter: Arc<LoadedAdapter>,
    request: Request,
    prompt: Vec<u32>,
}

impl Answer {
    fn new(id: &InferenceId, reports: Reports) -> Self {
        Self {
            id: id.clone(),
            is_streamed: false,
            reports,
            pieces: Pieces::default(),
            text: String::new(),
            tokens: 0,
            prompt_tokens: None,
            began: Instant::now(),
            first_token: None,
        }
    }

    async fn give(
        &mut self,
        data: &StartInferenceData,
        context: &TaskContext,
        turns: &Semaphore,
        stop: &StopSignal,
    ) -> Result<FinishReason, Failure> {
        let request = Request::parse(data, rand::random())?;
        let prepare = async {
            let turn = turns.acquire().await;
            Ok::<_, Failure>((turn, prepare(request, data, context).await?))
        };
        let (_turn, prepared) = tokio::select! {
            prepared = prepare => prepared?,
            _ = stop.stopped() => return Ok(FinishReason::Cancelled),
        };
        self.prompt_tokens = Some(prepared.prompt.len() as u64);
        self.generate(prepared, context, stop).await
    }

    async fn generate(
        &mut self,
        prepared: Prepared,
        context: &TaskContext,
        stop: &StopSignal,
    ) -> Result<FinishReason, Failure> {
        let Prepared {
            model,
            adapter,
            request,
            prompt,
        } = prepared;
        let (events, mut coming) = mpsc::unbounded_channel();
        let begun = model.answer(AnswerRequest {
            prompt,
            options: request.sampling,
            stops: request.stops,
            adapter,
            chat: model.chat()?,
            stop: stop.clone(),
            events,
        });
        let broken_down = || {
            context.loaded.forget(&model);
            Failure::new(FailureKind::Internal, "the engine broke down")
        };
        if !begun {
            return Err(broken_down());
        }
        loop {
            let event = match self.pieces.due() {
                None => coming.recv().await,
                Some(due) => match timeout_at(due.into(), coming.recv()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.send_pieces();
                        continue;
                    }
                },
            };
            match event {
                Some(AnswerEvent::Token {
                    text,
                    is_incomplete,
                }) => self.token(text, is_incomplete),
                Some(AnswerEvent::Ended { rest, finish }) => {
                    self.text.push_str(&rest);
                    self.pieces.finish(&rest, Instant::now());
                    self.send_pieces();
                    return Ok(reason(finish));
                }
                Some(AnswerEvent::Failed(error)) => {
                    self.send_pieces();
                    return Err(error.into());
                }
                None => return Err(broken_down()),
            }
        }
    }

    fn token(&mut self, text: String, is_incomplete: bool) {
        let now = Instant::now();
        self.tokens += 1;
        self.first_token.get_or_insert(now);
        self.text.push_str(&text);
        self.pieces.push(text, is_incomplete, now);
        if self.pieces.is_full() {
            self.send_pieces();
        }
    }

    fn send_pieces(&mut self) {
        let pieces = self.pieces.take();
        if self.is_streamed && !pieces.is_empty() {
            self.reports.send_tokens(&self.id, pieces);
        }
    }

    fn report_completed(self, finish: FinishReason) {
        let metrics = self.metrics(Instant::now());
        tracing::info!(
            inference.id = %self.id,
            inference.tokens = self.tokens,
            inference.finish = %finish,
            "answer has ended"
        );
        let json = serde_json::to_string(&self.text).map_or(usize::MAX, |json| json.len());
        self.reports
            .keep_or_send(FromWorker::InferenceCompleted(InferenceCompleted {
                worker_id: None,
                inference_id: self.id,
                message_id: Some(MessageId::random()),
                data: InferenceCompletedData {
                    tokens_generated: Some(self.tokens),
                    metrics,
                    text: (json <= LONGEST_TEXT_JSON).then_some(self.text),
                    finish_reason: Some(finish),
                    prompt_tokens: self.prompt_tokens,
                },
            }));
    }

    /// Times from the moment at which the request came; null where there is no such time.
    fn metrics(&self, now: Instant) -> InferenceMetrics {
        // To the microsecond: more would be noise on the wire.
        let ms = |duration: std::time::Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        let later = self.first_token.map(|first| now - first);
        let tps = later
            .filter(|later| self.tokens > 1 && !later.is_zero())
            .map(|later| rounded((self.tokens - 1) as f64 / later.as_secs_f64()));
        let ttft = self.first_token.map(|first| ms(first - self.began));
        InferenceMetrics {
            ttft_ms: Some(ttft.unwrap_or(f64::NAN)),
            tps: Some(tps.unwrap_or(f64::NAN)),
            total_time_ms: Some(ms(now - self.began)),
        }
    }
}

async fn prepare(
    request: Request,
    data: &StartInferenceData,
    context: &TaskContext,
) -> Result<Prepared, Failure> {
    let result = match data.model_path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => {
            Some(fetch_result(path, ("download_urls", &data.download_urls), context).await?)
        }
        None => None,
    };
    let (path, files) = match result {
        Some(JobResult::Model(folder)) => (folder, None),
        Some(JobResult::Adapter(files)) => (find_base(data, context).await?, Some(files)),
        None => (find_base(data, context).await?, None),
    };
    let model = match &files {
        Some(files) => context.loaded.get_for(&path, files).await?,
        None => context.loaded.get(&path).await?,
    };
    // Reading an adapter and cutting a long chat into tokens take their time.
    let work = move || {
        let adapter = match &files {
            Some(files) => model.adapter(files.digest(), files.folder())?,
            None => model.no_adapter(),
        };
        let chat = model.chat()?;
        let prompt = chat
            .encode_prompt(&request.turns)
            .map_err(|error| refused(&format!("messages: {error}")))?;
        let context = model.config().max_position_embeddings;
        if prompt.len() >= context {
            return Err(refused(&format!(
                "messages: {} tokens in a context of {context}",
                prompt.len()
            )));
        }
        let mut request = request;
        request.sampling.stop_ids = model.stop_ids().to_vec();
        Ok(Prepared {
            model,
            adapter,
            request,
            prompt,
        })
    };
    actix_rt::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|panic| Err(Failure::new(FailureKind::Internal, panic.to_string())))
}

async fn find_base(data: &StartInferenceData, context: &TaskContext) -> Result<PathBuf, Failure> {
    let base = BaseModel {
        huggingface_id: data.huggingface_id.clone(),
        download_urls: Vec::new(),
    };
    Ok(context.models.find(&base, |_| {}).await?)
}

const fn reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::Cancelled => FinishReason::Cancelled,
    }
}
