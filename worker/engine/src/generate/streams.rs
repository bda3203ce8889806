//! Several continuations at once over one set of weights: each joins and leaves at any step.
//!
//! One round is a part of one prompt, where any is not run yet, and then one token for every stream whose
//! prompt is. So a long prompt delays the others by one part at a time, and each weight is read once a round
//! for all streams. A stream's tokens do not depend on the streams beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Finish, SamplingOptions, sampling::Sampler};
use crate::{
    EngineError,
    device::LANES,
    model::{CacheRoom, Context, Decoder, Llama, LoadedAdapter, Prefill},
};

/// Tokens of a prompt that are run at once: few enough for [`PART_TIME`], in whole blocks.
const PARTS: std::ops::RangeInclusive<usize> = LANES..=16 * LANES;
/// What a part is to take about.
const PART_TIME: Duration = Duration::from_millis(100);

/// A stream among those of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

/// What a round brought.
#[derive(Debug)]
pub enum StreamEvent {
    /// A new token. The answer to it says whether the stream goes on.
    Token(u32),
    /// The stream is over by itself.
    Finished(Finish),
    /// The stream cannot go on; the others do.
    Failed(EngineError),
}

/// What becomes of a stream after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It goes on, if it is not over.
    GoOn,
    /// It leaves.
    Leave,
}

/// What takes part in the rounds of [`Streams`].
pub trait Audience {
    /// Whether a stream is to stop; asked often while its prompt runs, and before each of its tokens.
    fn is_stopped(&self, stream: StreamId) -> bool;

    /// Takes what happened to a stream.
    fn take(&mut self, stream: StreamId, event: StreamEvent) -> Next;
}

/// The streams of one model.
#[derive(Debug)]
pub struct Streams {
    decoder: Decoder,
    room: CacheRoom,
    streams: Vec<Stream>,
    next_id: u64,
    part: usize,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    context: Context,
    /// The prompt's tokens but the last, which runs as the first step.
    prompt: Vec<u32>,
    /// The token of the next step.
    next: u32,
    sampler: Sampler,
    stop_ids: Vec<u32>,
    /// Tokens that may still come.
    left: usize,
}

impl Streams {
    /// No streams yet; their contexts share `room`.
    pub fn new(model: Arc<Llama>, room: CacheRoom) -> Self {
        Self {
            decoder: Decoder::new(model),
            room,
            streams: Vec::new(),
            next_id: 0,
            part: 4 * LANES,
        }
    }

    /// The model.
    pub fn model(&self) -> &Arc<Llama> {
        self.decoder.model()
    }

    /// How many streams there are.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Adds a stream that continues `prompt` with this adapter; it takes part from the next round on.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] for options out of range, [`EngineError::InvalidBatch`] for a prompt that is
    /// empty, has unknown tokens or leaves no room in the model's context.
    pub fn join(
        &mut self,
        prompt: &[u32],
        options: &SamplingOptions,
        adapter: Arc<LoadedAdapter>,
    ) -> Result<StreamId, EngineError> {
        let config = self.model().config();
        let sampler = Sampler::new(options, prompt)?;
        let left = room_for_answer(prompt, config.max_position_embeddings)?;
        if let Some(id) = prompt.iter().find(|id| **id as usize >= config.vocab_size) {
            return Err(EngineError::InvalidBatch(format!(
                "token {id} is outside the vocabulary of {}",
                config.vocab_size
            )));
        }
        let (last, before) = prompt.split_last().ok_or_else(empty_prompt)?;
        let context = Context::new(config, adapter, self.room.clone());
        let id = StreamId(self.next_id);
        self.next_id += 1;
        self.streams.push(Stream {
            id,
            context,
            prompt: before.to_vec(),
            next: *last,
            sampler,
            stop_ids: options.stop_ids.clone(),
            left: options.max_tokens.min(left),
        });
        Ok(id)
    }

    /// Runs one round.
    pub fn advance(&mut self, audience: &mut impl Audience) {
        self.end_stopped(audience);
        self.run_part(audience);
        self.run_step(audience);
    }

    fn end_stopped(&mut self, audience: &mut impl Audience) {
        self.streams.retain(|stream| {
            let finish = if audience.is_stopped(stream.id) {
                Finish::Cancelled
            } else if stream.left == 0 {
                Finish::Length
            } else {
                return true;
            };
            audience.take(stream.id, StreamEvent::Finished(finish));
            false
        });
    }

    /// A part of the prompt that has the least to go: short questions need not wait for long ones.
    fn run_part(&mut self, audience: &mut impl Audience) {
        let waiting = self.streams.iter().enumerate();
        let Some((index, _)) = waiting
            .filter(|(_, stream)| !stream.is_ready())
            .min_by_key(|(_, stream)| (stream.prompt.len() - stream.context.tokens(), stream.id))
        else {
            return;
        };
        let Self {
            decoder,
            streams,
            part,
            ..
        } = self;
        // Nobody else waits for a stream that is alone.
        let most = match streams.len() {
            1 => *PARTS.end(),
            _ => *part,
        };
        let stream = &mut streams[index];
        let from = stream.context.tokens();
        let ids = &stream.prompt[from..stream.prompt.len().min(from + most)];
        let id = stream.id;
        let start = Instant::now();
        let event = match decoder.prefill(&mut stream.context, ids, &|| audience.is_stopped(id)) {
            Ok(Prefill::Done) => {
                *part = next_part(*part, ids.len(), start.elapsed());
                return;
            }
            Ok(Prefill::Stopped) => StreamEvent::Finished(Finish::Cancelled),
            Err(error) => StreamEvent::Failed(error),
        };
        streams.remove(index);
        audience.take(id, event);
    }

    /// One token for every stream whose prompt is run.
    fn run_step(&mut self, audience: &mut impl Audience) {
        self.streams.retain_mut(|stream| {
            if !stream.is_ready() {
                return true;
            }
            match stream.context.make_room(1) {
                Ok(()) => true,
                Err(error) => {
                    audience.take(stream.id, StreamEvent::Failed(error));
                    false
                }
            }
        });
        let Self {
            decoder, streams, ..
        } = self;
        let ready = streams.iter_mut().filter(|stream| stream.is_ready());
        let mut next: Vec<(&mut Context, u32)> = ready
            .map(|stream| (&mut stream.context, stream.next))
            .collect();
        if next.is_empty() {
            return;
        }
        let vocabulary = decoder.model().config().vocab_size;
        let mut rows = match decoder.step(&mut next) {
            Ok(logits) => logits.chunks_exact_mut(vocabulary),
            Err(error) => {
                // A step that fails as a whole is a fault of ours; nobody waits for ever because of it.
                for stream in streams.drain(..) {
                    let error = EngineError::InvalidBatch(error.to_string());
                    audience.take(stream.id, StreamEvent::Failed(error));
                }
                return;
            }
        };
        streams.retain_mut(|stream| match stream.has_run() {
            true => rows
                .next()
                .is_none_or(|logits| stream.take_logits(logits, audience)),
            false => true,
        });
    }
}

impl Stream {
    /// Whether all of the prompt but its last token is in the context.
    fn is_ready(&self) -> bool {
        self.context.tokens() >= self.prompt.len()
    }

    /// Whether at least the prompt's last token has run.
    fn has_run(&self) -> bool {
        self.context.tokens() > self.prompt.len()
    }

    /// Picks the next token; gives whether the stream stays.
    fn take_logits(&mut self, logits: &mut [f32], audience: &mut impl Audience) -> bool {
        let ended = match self.sampler.pick(logits) {
            None => StreamEvent::Failed(EngineError::NotFinite),
            Some(token) if self.stop_ids.contains(&token) => StreamEvent::Finished(Finish::Stop),
            Some(token) => {
                self.next = token;
                self.left -= 1;
                if audience.take(self.id, StreamEvent::Token(token)) == Next::Leave {
                    return false;
                }
                if self.left > 0 {
                    return true;
                }
                StreamEvent::Finished(Finish::Length)
            }
        };
        audience.take(self.id, ended);
        false
    }
}

/// Tokens that fit behind a prompt.
fn room_for_answer(prompt: &[u32], context: usize) -> Result<usize, EngineError> {
    match context.checked_sub(prompt.len()) {
        None | Some(0) => Err(EngineError::InvalidBatch(format!(
            "a prompt of {} tokens in a context of {context}",
            prompt.len()
        ))),
        Some(room) => Ok(room),
    }
}

fn empty_prompt() -> EngineError {
    EngineError::InvalidBatch("an empty prompt".to_owned())
}

/// How long the next part is, after one of `tokens` took `time`.
fn next_part(part: usize, tokens: usize, time: Duration) -> usize {
    let per_token = time.as_secs_f64() / tokens as f64;
    let fitting = (PART_TIME.as_secs_f64() / per_token.max(1e-9)) as usize;
    // Towards the fitting length by a factor of two at most: one slow part may have had another cause.
    let next = fitting.clamp(part / 2, part * 2) / LANES * LANES;
    next.clamp(*PARTS.start(), *PARTS.end())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use super::*;
    use crate::{golden, model::ModelConfig, weights::ModelFiles};

    /// Takes all tokens; a stream is stopped once it was asked so often, and leaves after so many tokens.
    #[derive(Default)]
    struct Notes {
        tokens: BTreeMap<StreamId, Vec<u32>>,
        ends: BTreeMap<StreamId, String>,
        asked: Cell<usize>,
        stop_after: Option<usize>,
        leave_after: Option<usize>,
    }

    impl Audience for Notes {
        fn is_stopped(&self, _: StreamId) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.stop_after.is_some_and(|most| self.asked.get() > most)
        }

        fn take(&mut self, stream: StreamId, event: StreamEvent) -> Next {
            match event {
                StreamEvent::Token(token) => {
                    let tokens = self.tokens.entry(stream).or_default();
                    tokens.push(token);
                    if Some(tokens.len()) == self.leave_after {
                        return Next::Leave;
                    }
                    return Next::GoOn;
                }
                StreamEvent::Finished(finish) => {
                    self.ends.insert(stream, format!("{finish:?}"));
                }
                StreamEvent::Failed(error) => {
                    self.ends.insert(stream, error.to_string());
                }
            }
            Next::Leave
        }
    }

    /// The golden model with a longer context.
    fn model() -> Arc<Llama> {
        let files = ModelFiles::open(&golden::path("untied")).unwrap();
        let config = ModelConfig {
            max_position_embeddings: 100_000,
            ..files.config.clone()
        };
        let tensor = |name: &str, shape: &[usize]| files.tensor(name, shape);
        Arc::new(Llama::from_tensors(config, tensor).unwrap())
    }

    fn adapter(streams: &Streams, golden: bool) -> Arc<LoadedAdapter> {
        let config = streams.model().config();
        let loaded = match golden {
            true => {
                let folder = golden::path("untied").join("adapter");
                let (adapter, _) = crate::adapter::load(&folder, config).unwrap();
                LoadedAdapter::new(config, &adapter)
            }
            false => LoadedAdapter::none(config),
        };
        Arc::new(loaded.unwrap())
    }

    fn prompt(len: u32) -> Vec<u32> {
        (0..len).map(|i| (i * 31 + len) % 128).collect()
    }

    fn options(max_tokens: usize, seed: u64) -> SamplingOptions {
        SamplingOptions {
            max_tokens,
            temperature: if seed == 0 { 0.0 } else { 1.0 },
            seed,
            ..SamplingOptions::default()
        }
    }

    fn finish(streams: &mut Streams, notes: &mut Notes) {
        while !streams.is_empty() {
            streams.advance(notes);
        }
    }

    #[test]
    fn a_stream_gives_the_same_tokens_alone_and_beside_others_that_come_and_go() {
        let cases = [(300, 0, false), (8, 0, true), (40, 7, false), (70, 9, true)];
        let mut streams = Streams::new(model(), CacheRoom::unlimited());
        let mut alone = Vec::new();
        for (len, seed, golden) in cases {
            let adapter = adapter(&streams, golden);
            let mut notes = Notes::default();
            let id = streams
                .join(&prompt(len), &options(20, seed), adapter)
                .unwrap();
            finish(&mut streams, &mut notes);
            alone.push(notes.tokens.remove(&id).unwrap());
        }
        let mut notes = Notes::default();
        let mut ids = Vec::new();
        for (len, seed, golden) in cases {
            let adapter = adapter(&streams, golden);
            ids.push(
                streams
                    .join(&prompt(len), &options(20, seed), adapter)
                    .unwrap(),
            );
            for _ in 0..3 {
                streams.advance(&mut notes);
            }
        }
        assert_eq!(streams.len(), 4);
        finish(&mut streams, &mut notes);
        for (id, alone) in ids.iter().zip(&alone) {
            assert_eq!(notes.tokens[id], *alone);
            assert_eq!(notes.ends[id], "Length");
        }
    }

    #[test]
    fn g093_a_stop_in_the_middle_of_a_long_prompt_ends_it_before_the_next_layer() {
        let mut streams = Streams::new(model(), CacheRoom::unlimited());
        let none = adapter(&streams, false);
        let id = streams.join(&prompt(4000), &options(20, 0), none).unwrap();
        let mut notes = Notes {
            stop_after: Some(4),
            ..Notes::default()
        };
        finish(&mut streams, &mut notes);
        assert_eq!(notes.ends[&id], "Cancelled");
        assert!(notes.tokens.is_empty());
        assert_eq!(notes.asked.get(), 5, "asked once more, and no more");
    }

    #[test]
    fn memory_that_has_run_out_ends_one_stream_and_leaves_the_others() {
        let model = model();
        let block = 2 * 2 * LANES * model.config().key_value_width() * size_of::<f32>();
        let mut streams = Streams::new(model, CacheRoom::new(6 * block));
        let none = adapter(&streams, false);
        let large = streams
            .join(&prompt(200), &options(4, 0), none.clone())
            .unwrap();
        let small = streams.join(&prompt(20), &options(4, 0), none).unwrap();
        let mut notes = Notes::default();
        finish(&mut streams, &mut notes);
        assert!(
            notes.ends[&large].starts_with("out of memory"),
            "{:?}",
            notes.ends
        );
        assert_eq!(notes.ends[&small], "Length");
        assert_eq!(notes.tokens[&small].len(), 4);
    }

    #[test]
    fn g094_a_stream_may_ask_for_nothing_and_may_leave_at_any_token() {
        let mut streams = Streams::new(model(), CacheRoom::unlimited());
        let none = adapter(&streams, false);
        let nothing = streams
            .join(&prompt(8), &options(0, 0), none.clone())
            .unwrap();
        let leaving = streams.join(&prompt(8), &options(20, 0), none).unwrap();
        let mut notes = Notes {
            leave_after: Some(3),
            ..Notes::default()
        };
        finish(&mut streams, &mut notes);
        assert_eq!(notes.ends[&nothing], "Length");
        assert_eq!(notes.tokens.len(), 1);
        assert_eq!(notes.tokens[&leaving].len(), 3);
        assert!(!notes.ends.contains_key(&leaving), "it left by itself");
    }

    #[test]
    fn parts_get_as_long_as_fits_the_time_in_whole_blocks() {
        let ms = Duration::from_millis;
        assert_eq!(next_part(128, 128, ms(100)), 128);
        assert_eq!(next_part(128, 128, ms(5)), 256);
        assert_eq!(next_part(512, 512, ms(1)), 512);
        assert_eq!(next_part(128, 128, ms(300)), 64);
        assert_eq!(next_part(32, 32, ms(9000)), 32);
        assert_eq!(next_part(128, 1, Duration::ZERO), 256);
        assert_eq!(next_part(128, 128, ms(130)), 96);
    }
}
