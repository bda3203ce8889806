//! Generation: a prompt's continuation, token by token, greedily or by sampling.

mod sampling;

use std::sync::Arc;

use super::{
    EngineError,
    model::{Adapter, Decoder, Llama},
};
use sampling::Sampler;

pub use sampling::SamplingOptions;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model gave a stop token.
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

/// Continues prompts with a model and, where given, an adapter.
#[derive(Debug)]
pub struct Generator {
    decoder: Decoder,
}

impl Generator {
    /// A generator for a model.
    ///
    /// # Errors
    /// An adapter that does not fit the model, or [`EngineError::OutOfMemory`].
    pub fn new(model: Arc<Llama>, adapter: Option<&Adapter>) -> Result<Self, EngineError> {
        Ok(Self {
            decoder: Decoder::new(model, adapter)?,
        })
    }

    /// Continues a prompt; `on_token` is called with every new token as it comes, and `stopped` is asked before
    /// each one.
    ///
    /// The same prompt, options and number of threads give the same tokens.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] for options out of range, [`EngineError::InvalidBatch`] for a prompt that is
    /// empty, has unknown tokens or leaves no room in the model's context, [`EngineError::OutOfMemory`].
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &SamplingOptions,
        stopped: &dyn Fn() -> bool,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, EngineError> {
        let mut sampler = Sampler::new(options)?;
        let context = self.decoder.model().config().max_position_embeddings;
        if prompt.len() >= context {
            let message = format!(
                "a prompt of {} tokens in a context of {context}",
                prompt.len()
            );
            return Err(EngineError::InvalidBatch(message));
        }
        let room = options.max_tokens.min(context - prompt.len());
        let mut ids = Vec::new();
        if stopped() {
            return Ok(Generated {
                ids,
                finish: Finish::Cancelled,
            });
        }
        let mut next = sampler.pick(self.decoder.prefill(prompt, prompt.len() + room)?);
        loop {
            if options.stop_ids.contains(&next) {
                return Ok(Generated {
                    ids,
                    finish: Finish::Stop,
                });
            }
            ids.push(next);
            on_token(next);
            if ids.len() >= room {
                return Ok(Generated {
                    ids,
                    finish: Finish::Length,
                });
            }
            if stopped() {
                return Ok(Generated {
                    ids,
                    finish: Finish::Cancelled,
                });
            }
            next = sampler.pick(self.decoder.step(next)?);
        }
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
                streamed.push(id)
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
            .generate(&prompt(), &options, &|| false, &mut |_| {})
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
    fn the_caller_can_stop_at_any_token() {
        let count = std::cell::Cell::new(0);
        let generated = generator()
            .generate(&prompt(), &greedy(16), &|| count.get() >= 5, &mut |_| {
                count.set(count.get() + 1)
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
            .generate(&prompt(), &greedy(16), &|| true, &mut |_| {})
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
            .generate(&long, &greedy(100), &|| false, &mut |_| {})
            .unwrap();
        assert_eq!((generated.ids.len(), generated.finish), (6, Finish::Length));
        assert!(
            generator()
                .generate(&[1; 256], &greedy(1), &|| false, &mut |_| {})
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
                .generate(&prompt(), &options(seed), &|| false, &mut |_| {})
                .unwrap()
                .ids
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
