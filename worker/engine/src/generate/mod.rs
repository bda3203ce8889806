//! Generation: a prompt's continuation, token by token, greedily or by sampling; one at a time or many.

mod sampling;
mod streams;
mod text;

use std::sync::Arc;

use super::{
    EngineError,
    model::{Adapter, CacheRoom, Llama, LoadedAdapter},
};

pub use sampling::SamplingOptions;
pub use streams::{Audience, Next, StreamEvent, StreamId, Streams};
pub use text::{AnswerText, Piece};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model gave a stop token, or the caller has enough.
    Stop,
    /// `max_tokens` were given, or the model's context is full.
    Length,
    /// The caller asked to stop.
    Cancelled,
}

/// What came out of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The new tokens, without a stop token.
    pub ids: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
}

/// Continues prompts with a model and, where given, an adapter, one after the other.
#[derive(Debug)]
pub struct Generator {
    streams: Streams,
    adapter: Arc<LoadedAdapter>,
}

impl Generator {
    /// A generator for a model.
    ///
    /// # Errors
    /// An adapter that does not fit the model, or [`EngineError::OutOfMemory`].
    pub fn new(model: Arc<Llama>, adapter: Option<&Adapter>) -> Result<Self, EngineError> {
        let adapter = match adapter {
            Some(adapter) => LoadedAdapter::new(model.config(), adapter)?,
            None => LoadedAdapter::none(model.config())?,
        };
        Ok(Self {
            streams: Streams::new(model, CacheRoom::unlimited()),
            adapter: Arc::new(adapter),
        })
    }

    /// Continues a prompt; `on_token` is called with every new token as it comes and says whether to go on, and
    /// `stopped` is asked before each one and often while the prompt runs.
    ///
    /// The same prompt, options and number of threads give the same tokens.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] for options out of range, [`EngineError::InvalidBatch`] for a prompt that is
    /// empty, has unknown tokens or leaves no room in the model's context, [`EngineError::OutOfMemory`],
    /// [`EngineError::NotFinite`].
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &SamplingOptions,
        stopped: &dyn Fn() -> bool,
        on_token: &mut dyn FnMut(u32) -> Next,
    ) -> Result<Generated, EngineError> {
        self.streams.join(prompt, options, self.adapter.clone())?;
        let mut listener = Listener {
            stopped,
            on_token,
            ids: Vec::new(),
            end: Ok(Finish::Stop),
        };
        while !self.streams.is_empty() {
            self.streams.advance(&mut listener);
        }
        let finish = listener.end?;
        Ok(Generated {
            ids: listener.ids,
            finish,
        })
    }
}

/// The audience of one stream.
struct Listener<'a> {
    stopped: &'a dyn Fn() -> bool,
    on_token: &'a mut dyn FnMut(u32) -> Next,
    ids: Vec<u32>,
    /// How it ended; a caller that leaves has what it wanted.
    end: Result<Finish, EngineError>,
}

impl Audience for Listener<'_> {
    fn is_stopped(&self, _: StreamId) -> bool {
        (self.stopped)()
    }

    fn take(&mut self, _: StreamId, event: StreamEvent) -> Next {
        match event {
            StreamEvent::Token(id) => {
                self.ids.push(id);
                return (self.on_token)(id);
            }
            StreamEvent::Finished(finish) => self.end = Ok(finish),
            StreamEvent::Failed(error) => self.end = Err(error),
        }
        Next::Leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{golden, weights::ModelFiles};

    fn generator() -> Generator {
        let files = ModelFiles::open(&golden::path("untied")).unwrap();
        Generator::new(Arc::new(Llama::load(&files).unwrap()), None).unwrap()
    }

    fn prompt() -> Vec<u32> {
        golden::numbers(&golden::meta()["input_ids"][0])[..8]
            .iter()
            .map(|&id| id as u32)
            .collect()
    }

    fn greedy(max_tokens: usize) -> SamplingOptions {
        SamplingOptions {
            max_tokens,
            temperature: 0.0,
            ..SamplingOptions::default()
        }
    }

    /// The golden greedy continuation.
    fn continuation() -> Vec<u32> {
        let ids =
            golden::numbers(&golden::meta()["variants"]["untied"]["greedy_from_first_8_of_row_0"]);
        ids.iter().map(|&id| id as u32).collect()
    }

    #[test]
    fn greedy_generation_streams_the_golden_continuation() {
        let mut streamed = Vec::new();
        let generated = generator()
            .generate(&prompt(), &greedy(16), &|| false, &mut |id| {
                streamed.push(id);
                Next::GoOn
            })
            .unwrap();
        assert_eq!(
            generated,
            Generated {
                ids: continuation(),
                finish: Finish::Length
            }
        );
        assert_eq!(streamed, continuation());
    }

    #[test]
    fn stop_tokens_end_generation_and_are_not_given() {
        let expected = continuation();
        let options = SamplingOptions {
            stop_ids: vec![expected[3]],
            ..greedy(16)
        };
        let generated = generator()
            .generate(&prompt(), &options, &|| false, &mut |_| Next::GoOn)
            .unwrap();
        assert_eq!(
            generated,
            Generated {
                ids: expected[..3].to_vec(),
                finish: Finish::Stop
            }
        );
    }

    #[test]
    fn g090_any_end_of_text_id_of_the_generation_config_ends_generation() {
        let folder = golden::model_with_tokenizer("untied");
        let expected = continuation();
        let config = serde_json::json!({"eos_token_id": [120, 121, expected[4]]});
        let path = folder.path().join("generation_config.json");
        std::fs::write(path, config.to_string()).unwrap();
        let files = ModelFiles::open(folder.path()).unwrap();
        let chat = files.chat(chrono::Local::now()).unwrap();
        let options = SamplingOptions {
            stop_ids: files.stop_token_ids(&chat).unwrap(),
            ..greedy(16)
        };
        let first = expected
            .iter()
            .position(|id| options.stop_ids.contains(id))
            .unwrap();
        let generated = generator()
            .generate(&prompt(), &options, &|| false, &mut |_| Next::GoOn)
            .unwrap();
        assert_eq!(
            generated,
            Generated {
                ids: expected[..first].to_vec(),
                finish: Finish::Stop
            }
        );
    }

    #[test]
    fn the_caller_can_stop_at_any_token() {
        let count = std::cell::Cell::new(0);
        let generated = generator()
            .generate(&prompt(), &greedy(16), &|| count.get() >= 5, &mut |_| {
                count.set(count.get() + 1);
                Next::GoOn
            })
            .unwrap();
        assert_eq!(
            generated,
            Generated {
                ids: continuation()[..5].to_vec(),
                finish: Finish::Cancelled
            }
        );
        let none = generator()
            .generate(&prompt(), &greedy(16), &|| true, &mut |_| Next::GoOn)
            .unwrap();
        assert_eq!(
            none,
            Generated {
                ids: vec![],
                finish: Finish::Cancelled
            }
        );
    }

    #[test]
    fn generation_ends_where_the_context_does() {
        let long: Vec<u32> = (0..250).map(|i| 3 + i % 100).collect();
        let generated = generator()
            .generate(&long, &greedy(100), &|| false, &mut |_| Next::GoOn)
            .unwrap();
        assert_eq!((generated.ids.len(), generated.finish), (6, Finish::Length));
        assert!(
            generator()
                .generate(&[1; 256], &greedy(1), &|| false, &mut |_| Next::GoOn)
                .is_err()
        );
    }

    #[test]
    fn sampling_repeats_for_its_seed() {
        let options = |seed| SamplingOptions {
            seed,
            temperature: 1.5,
            top_p: 0.95,
            top_k: 40,
            ..greedy(24)
        };
        let mut generator = generator();
        let mut run = |seed| {
            generator
                .generate(&prompt(), &options(seed), &|| false, &mut |_| Next::GoOn)
                .unwrap()
                .ids
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
