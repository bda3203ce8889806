//! A model that generates: a cache of keys and values, filled by the prompt at once and then token by token.

use std::sync::Arc;

use super::{
    Adapter, Batch, IGNORE, Llama, Projection,
    forward::layer_forward,
    memory::{Keep, Plan},
    train::prepare,
    trainable::{AdapterWeights, Trainable},
};
use crate::{
    EngineError,
    device::{Activations, Buffer, LANES, padded_tokens, run},
    ops::{
        attention::attend_one,
        embedding::embedding_forward,
        linear::{OneToken, linear_one_token},
        rms_norm::rms_norm_one,
        rotary::rotary_one,
        swiglu::swiglu_one,
    },
};

/// A model with an adapter and a cache of the tokens that it has seen.
#[derive(Debug)]
pub struct Decoder {
    model: Arc<Llama>,
    adapter: Trainable,
    cache: Buffer,
    /// Tokens that the cache has room for, in whole blocks.
    capacity: usize,
    /// Tokens in the cache.
    len: usize,
    memory: Buffer,
    token: TokenMemory,
}

/// What one token's way through the layers needs.
#[derive(Debug, Default)]
struct TokenMemory {
    x: Vec<f32>,
    n: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    o: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    out: Vec<f32>,
    scores: Vec<f32>,
    scratch: Vec<f32>,
    logits: Vec<f32>,
}

impl Decoder {
    /// A decoder with an empty cache.
    ///
    /// # Errors
    /// What [`Adapter::validate`] says, and [`EngineError::OutOfMemory`].
    pub fn new(model: Arc<Llama>, adapter: Option<&Adapter>) -> Result<Self, EngineError> {
        let none = Adapter::empty(model.config());
        let adapter = AdapterWeights::new(model.config(), adapter.unwrap_or(&none))?;
        let c = model.config();
        let zeros = |len: usize| vec![0.0; len];
        let token = TokenMemory {
            x: zeros(c.hidden_size),
            n: zeros(c.hidden_size),
            q: zeros(c.query_width()),
            k: zeros(c.key_value_width()),
            v: zeros(c.key_value_width()),
            o: zeros(c.query_width()),
            gate: zeros(c.intermediate_size),
            up: zeros(c.intermediate_size),
            out: zeros(c.hidden_size),
            logits: zeros(c.vocab_size),
            ..TokenMemory::default()
        };
        Ok(Self {
            adapter: Trainable::Adapter(adapter),
            cache: Buffer::empty(),
            capacity: 0,
            len: 0,
            memory: Buffer::empty(),
            token,
            model,
        })
    }

    /// The base model.
    pub fn model(&self) -> &Arc<Llama> {
        &self.model
    }

    /// Tokens in the cache.
    pub fn cached(&self) -> usize {
        self.len
    }

    /// Empties the cache, runs a prompt, and gives the logits of what follows it.
    ///
    /// The cache gets room for `capacity` tokens, the prompt's included.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] for an empty prompt, an unknown token or a prompt longer than `capacity`;
    /// [`EngineError::OutOfMemory`].
    pub fn prefill(&mut self, prompt: &[u32], capacity: usize) -> Result<&mut [f32], EngineError> {
        let mut batch = Batch::default();
        batch.push_sequence(prompt, &vec![IGNORE; prompt.len()]);
        batch.validate(self.model.config())?;
        if prompt.len() > capacity {
            let message = format!("a prompt of {} tokens where {capacity} fit", prompt.len());
            return Err(EngineError::InvalidBatch(message));
        }
        self.len = 0;
        self.capacity = padded_tokens(capacity);
        let per_layer = 2 * self.capacity * self.model.config().key_value_width();
        self.cache
            .reserve(per_layer * self.model.config().num_hidden_layers)?;
        let plan = Plan {
            model: &self.model,
            tokens: padded_tokens(prompt.len()),
            ranks: self.adapter.ranks(),
            dropout: false,
            full: false,
            keep: Keep::Nothing,
        };
        self.memory.reserve(plan.len())?;
        let mut memory = plan.carve(self.memory.as_mut_slice());
        let (model, adapter) = (&*self.model, &self.adapter);
        let (caches, x) = (self.cache.as_mut_slice(), &mut self.token.x);
        run(|| {
            let pass = prepare(model, &batch, &mut memory, None);
            embedding_forward(&mut memory.input(&plan, 0), prompt, &model.embedding);
            for (layer, cache) in caches
                .chunks_exact_mut(per_layer)
                .take(model.layers.len())
                .enumerate()
            {
                let mut view = memory.layer(&plan, layer);
                layer_forward(pass, adapter, layer, &mut view);
                let (keys, values) = cache.split_at_mut(per_layer / 2);
                let (k, v) = (view.kept.k.view().data(), view.kept.v.view().data());
                keys[..k.len()].copy_from_slice(k);
                values[..v.len()].copy_from_slice(v);
            }
            let last = memory.last(&plan).0.token(prompt.len() - 1);
            x.iter_mut().zip(last).for_each(|(x, value)| *x = value);
        });
        self.len = prompt.len();
        run(|| self.logits());
        Ok(&mut self.token.logits)
    }

    /// Runs one more token, and gives the logits of what follows it.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] for an unknown token, or when the cache is full.
    pub fn step(&mut self, token: u32) -> Result<&mut [f32], EngineError> {
        let vocabulary = self.model.config().vocab_size;
        if token as usize >= vocabulary {
            let message = format!("token {token} is outside the vocabulary of {vocabulary}");
            return Err(EngineError::InvalidBatch(message));
        }
        if self.len == 0 || self.len >= self.capacity {
            let message = format!("{} of {} tokens are cached", self.len, self.capacity);
            return Err(EngineError::InvalidBatch(message));
        }
        run(|| {
            let row = self.model.embedding.row(token as usize);
            self.token
                .x
                .iter_mut()
                .zip(row)
                .for_each(|(x, value)| *x = value);
            for layer in 0..self.model.config().num_hidden_layers {
                self.layer(layer);
            }
            self.len += 1;
            self.logits();
        });
        Ok(&mut self.token.logits)
    }

    /// One layer for one token, at position `self.len`.
    fn layer(&mut self, layer: usize) {
        use Projection::{Down, Gate, K, O, Q, Up, V};
        let Self {
            model,
            adapter,
            token,
            len,
            ..
        } = self;
        let TokenMemory {
            x,
            n,
            q,
            k,
            v,
            o,
            gate,
            up,
            out,
            scores,
            scratch,
            ..
        } = token;
        let (weights, eps, heads) = (
            &model.layers[layer],
            model.config().rms_norm_eps,
            model.heads(),
        );
        let layer_of = LayerOf {
            model,
            adapter,
            layer,
        };
        let narrow = model.config().key_value_width();
        let caches = &mut self.cache.as_mut_slice()[layer * 2 * self.capacity * narrow..];
        let (keys, values) =
            caches[..2 * self.capacity * narrow].split_at_mut(self.capacity * narrow);

        rms_norm_one(n, x, &weights.attention_norm, eps);
        linear_one_token(
            [layer_of.one(Q, q), layer_of.one(K, k), layer_of.one(V, v)],
            n,
            scratch,
        );
        rotary_one(q, &model.rotary, *len as u32);
        rotary_one(k, &model.rotary, *len as u32);
        write_token(keys, *len, k);
        write_token(values, *len, v);
        let (keys, values) = (
            Activations::new(keys, narrow),
            Activations::new(values, narrow),
        );
        scores.resize(heads.queries * padded_tokens(*len + 1), 0.0);
        attend_one(o, q, (keys, values), *len + 1, heads, scores);
        linear_one_token([layer_of.one(O, out)], o, scratch);
        x.iter_mut().zip(&*out).for_each(|(x, out)| *x += out);

        rms_norm_one(n, x, &weights.mlp_norm, eps);
        linear_one_token([layer_of.one(Gate, gate), layer_of.one(Up, up)], n, scratch);
        swiglu_one(gate, up);
        linear_one_token([layer_of.one(Down, out)], gate, scratch);
        x.iter_mut().zip(&*out).for_each(|(x, out)| *x += out);
    }

    /// Logits from the last layer's output.
    fn logits(&mut self) {
        let TokenMemory {
            x,
            n,
            logits,
            scratch,
            ..
        } = &mut self.token;
        rms_norm_one(n, x, &self.model.norm, self.model.config().rms_norm_eps);
        let head = OneToken {
            y: logits,
            w: self.model.head(),
            lora: None,
        };
        linear_one_token([head], n, scratch);
    }
}

/// A layer of a model with an adapter.
struct LayerOf<'a> {
    model: &'a Llama,
    adapter: &'a Trainable,
    layer: usize,
}

impl LayerOf<'_> {
    /// One projection for one token.
    fn one<'y>(&'y self, projection: Projection, y: &'y mut [f32]) -> OneToken<'y> {
        OneToken {
            y,
            w: self.model.projection(self.layer, projection),
            lora: self.adapter.lora(self.layer, projection, None),
        }
    }
}

/// Writes one token's features into activations.
fn write_token(data: &mut [f32], token: usize, features: &[f32]) {
    let start = token / LANES * features.len() * LANES + token % LANES;
    for (slot, feature) in data[start..].iter_mut().step_by(LANES).zip(features) {
        *slot = *feature;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        golden,
        model::{TrainModel, golden_tests},
    };

    fn argmax(logits: &[f32]) -> u32 {
        (0..logits.len())
            .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
            .unwrap() as u32
    }

    #[test]
    fn greedy_continuation_matches_transformers() {
        for variant in ["tied", "untied"] {
            let meta = golden::meta();
            let prompt: Vec<u32> = golden::numbers(&meta["input_ids"][0])[..8]
                .iter()
                .map(|&id| id as u32)
                .collect();
            let expected =
                golden::numbers(&meta["variants"][variant]["greedy_from_first_8_of_row_0"]);
            let mut decoder = Decoder::new(Arc::new(golden_tests::model(variant)), None).unwrap();
            let mut next = argmax(decoder.prefill(&prompt, 24).unwrap());
            for expected in expected {
                assert_eq!(f64::from(next), expected, "{variant}");
                next = argmax(decoder.step(next).unwrap());
            }
            assert_eq!(decoder.cached(), 24);
        }
    }

    #[test]
    fn tokens_one_by_one_give_the_logits_of_a_whole_batch() {
        let model = Arc::new(golden_tests::model("untied"));
        let adapter = golden_tests::adapter("untied", model.config(), 2.0);
        let ids: Vec<u32> = (0..70).map(|i| (i * 37 + 5) % 128).collect();
        let mut batch = Batch::default();
        batch.push_sequence(&ids, &vec![IGNORE; ids.len()]);
        let all = TrainModel::new(model.clone(), &adapter)
            .unwrap()
            .logits(&batch)
            .unwrap();
        let mut decoder = Decoder::new(model, Some(&adapter)).unwrap();
        let mut found = decoder.prefill(&ids[..40], 70).unwrap().to_vec();
        for (position, id) in ids.iter().enumerate().skip(40) {
            for (found, expected) in found.iter().zip(&all[(position - 1) * 128..]) {
                assert!(
                    (found - expected).abs() < 1e-4,
                    "position {position}: {found}, not {expected}"
                );
            }
            found = decoder.step(*id).unwrap().to_vec();
        }
    }

    #[test]
    fn full_caches_and_unknown_tokens_are_refused() {
        let mut decoder = Decoder::new(Arc::new(golden_tests::model("tied")), None).unwrap();
        assert!(decoder.step(1).is_err(), "nothing is cached yet");
        assert!(decoder.prefill(&[], 10).is_err());
        assert!(decoder.prefill(&[128], 10).is_err());
        assert!(decoder.prefill(&[1; 11], 10).is_err());
        decoder.prefill(&[1; 31], 31).unwrap();
        assert!(decoder.step(128).is_err());
        decoder.step(1).unwrap();
        assert!(decoder.step(1).is_err(), "the last block is full");
    }
}
