//! A model that generates: prompts in parts, then one token a step for any number of sequences at once.

mod context;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{
    Batch, IGNORE, Llama, Projection,
    forward::{Earlier, layer_forward},
    memory::{Keep, Plan},
    train::prepare,
};
use crate::{
    EngineError,
    device::{Activations, Buffer, LANES, Team, padded_tokens, rows_mut, run},
    ops::{
        attention::attend_one,
        bias::bias_rows,
        embedding::embedding_forward,
        linear::{FewTokens, Lora, linear_few_tokens},
        rms_norm::{rms_norm_in_place, rms_norm_one},
        rotary::rotary_one,
        swiglu::swiglu_one,
    },
};
use context::Cached;

pub use context::{CacheRoom, Context, LoadedAdapter};

/// A model with the memory that its steps need; what belongs to one sequence is in its [`Context`].
#[derive(Debug)]
pub struct Decoder {
    model: Arc<Llama>,
    memory: Buffer,
    tokens: TokenMemory,
}

/// What a step's tokens need on their way through the layers, one row per token.
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
    logits: Vec<f32>,
    /// Attention's scores of each token's heads.
    scores: Vec<f32>,
    /// Sines and cosines of each token's position.
    turns: Vec<Vec<(f32, f32)>>,
    scratch: Vec<f32>,
}

/// Whether a part of a prompt was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefill {
    /// It is in the context.
    Done,
    /// The caller asked to stop; the context is as before.
    Stopped,
}

impl Decoder {
    /// A decoder for a model.
    pub fn new(model: Arc<Llama>) -> Self {
        Self {
            model,
            memory: Buffer::empty(),
            tokens: TokenMemory::default(),
        }
    }

    /// The base model.
    pub fn model(&self) -> &Arc<Llama> {
        &self.model
    }

    /// Runs the next part of a prompt, whose length is a multiple of [`LANES`] unless it is the last part.
    /// `stopped` is asked before every layer.
    ///
    /// However a prompt is cut into parts, its context comes out the same, bit for bit.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] for no tokens, an unknown one, or a context that ends within a block;
    /// [`EngineError::OutOfMemory`]. The context is then as before.
    pub fn prefill(
        &mut self,
        context: &mut Context,
        ids: &[u32],
        stopped: &dyn Fn() -> bool,
    ) -> Result<Prefill, EngineError> {
        let config = self.model.config();
        let mut batch = Batch::default();
        batch.push_sequence(ids, &vec![IGNORE; ids.len()]);
        batch.validate(config)?;
        if !context.len.is_multiple_of(LANES) {
            let message = format!("a prompt's part behind {} tokens", context.len);
            return Err(EngineError::InvalidBatch(message));
        }
        let first = context.len as u32;
        batch.positions.iter_mut().for_each(|p| *p += first);
        context.make_room(ids.len())?;
        let adapter = context.adapter.clone();
        let plan = Plan {
            config: self.model.config(),
            tokens: padded_tokens(ids.len()),
            ranks: adapter.pairs.ranks(),
            dropout: false,
            full: false,
            keep: Keep::Nothing,
        };
        self.memory.reserve(plan.len())?;
        let mut memory = plan.carve(self.memory.as_mut_slice());
        let pass = run(|| {
            let pass = prepare(&self.model, &batch, &mut memory, None);
            embedding_forward(&mut memory.input(&plan, 0), ids, &self.model.embedding);
            pass
        });
        let blocks = context.len / LANES;
        for (layer, Cached { keys, values }) in context.layers.iter_mut().enumerate() {
            if stopped() {
                return Ok(Prefill::Stopped);
            }
            let earlier = Earlier {
                keys: keys.as_mut_slice(),
                values: values.as_mut_slice(),
                blocks,
            };
            let mut view = memory.layer(&plan, layer);
            run(|| layer_forward(pass, &adapter.pairs, layer, &mut view, Some(earlier)));
        }
        context.len += ids.len();
        Ok(Prefill::Done)
    }

    /// Runs one more token of each sequence, and gives the logits of what follows each, row-major
    /// `[sequences, vocabulary]`. Every weight is read once for all of them.
    ///
    /// A sequence's logits are the same, bit for bit, whatever other sequences are beside it.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] for an unknown token, or a context without room for one more
    /// ([`Context::make_room`]); nothing has changed then.
    pub fn step(&mut self, next: &mut [(&mut Context, u32)]) -> Result<&mut [f32], EngineError> {
        let vocabulary = self.model.config().vocab_size;
        for (context, token) in next.iter() {
            let problem = if *token as usize >= vocabulary {
                format!("token {token} is outside the vocabulary of {vocabulary}")
            } else if context.len >= context.capacity {
                format!("{} of {} tokens are cached", context.len, context.capacity)
            } else {
                continue;
            };
            return Err(EngineError::InvalidBatch(problem));
        }
        self.tokens.fit(&self.model, next.len());
        let hidden = self.model.config().hidden_size;
        let rows = self.tokens.x.chunks_exact_mut(hidden);
        let turns = self.tokens.turns.iter_mut();
        for ((x, turns), (context, token)) in rows.zip(turns).zip(next.iter()) {
            let embedding = self.model.embedding.row(*token as usize);
            x.iter_mut().zip(embedding).for_each(|(x, e)| *x = e);
            turns.clear();
            turns.extend(self.model.rotary.turns(context.len as u32));
        }
        Team::gather(|team| {
            for layer in 0..self.model.config().num_hidden_layers {
                self.layer(layer, next, team);
            }
            self.logits(team);
        });
        for (context, _) in next.iter_mut() {
            context.len += 1;
        }
        Ok(&mut self.tokens.logits)
    }

    /// One layer for one token of each sequence, behind what its context holds.
    fn layer(&mut self, layer: usize, next: &mut [(&mut Context, u32)], team: &Team) {
        use Projection::{Down, Gate, K, O, Q, Up, V};
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
            turns,
            scratch,
            ..
        } = &mut self.tokens;
        let model = &*self.model;
        let (weights, eps) = (&model.layers[layer], model.config().rms_norm_eps);
        let of = LayerOf { model, layer };

        rms_norm_rows(n, x, &weights.attention_norm, eps);
        let qkv = [of.few(Q, q, next), of.few(K, k, next), of.few(V, v, next)];
        linear_few_tokens(qkv, n, scratch, team);
        for (y, p) in [(&mut *q, Q), (k, K), (v, V)] {
            of.add_bias(y, p);
        }
        let (wide, narrow) = (
            model.config().query_width(),
            model.config().key_value_width(),
        );
        let new_tokens = (rows_mut(next, 1), rows_mut(q, wide), rows_mut(k, narrow));
        team.share(new_tokens, |token, (joining, q, k)| {
            let v = &v[token * narrow..][..narrow];
            for (context, _) in joining {
                of.join_context(context, (q, k, v), &turns[token]);
            }
        });
        let heads = model.heads();
        let capacity = next.iter().map(|(context, _)| context.capacity).max();
        let most = capacity.unwrap_or(LANES);
        scores.resize(next.len() * heads.queries * most, 0.0);
        // Heads that share keys go together, as soon as there is enough for all threads: keys and values stay near.
        let together = match next.len() {
            1 => 1,
            _ => heads.queries / heads.keys,
        };
        let outputs = (
            rows_mut(o, together * heads.dim),
            rows_mut(scores, together * most),
        );
        team.share(outputs, |i, (o, scores)| {
            let o = o.chunks_exact_mut(heads.dim);
            for (j, (o, scores)) in o.zip(scores.chunks_exact_mut(most)).enumerate() {
                let i = i * together + j;
                let (token, head) = (i / heads.queries, i % heads.queries);
                let q = &q[i * heads.dim..][..heads.dim];
                of.attend(&*next[token].0, head, (o, q), scores);
            }
        });
        linear_few_tokens([of.few(O, out, next)], o, scratch, team);
        of.add_bias(out, O);
        x.iter_mut().zip(&*out).for_each(|(x, out)| *x += out);

        rms_norm_rows(n, x, &weights.mlp_norm, eps);
        let inner = [of.few(Gate, gate, next), of.few(Up, up, next)];
        linear_few_tokens(inner, n, scratch, team);
        of.add_bias(gate, Gate);
        of.add_bias(up, Up);
        let width = model.config().intermediate_size;
        team.share(rows_mut(gate, width), |token, gate| {
            swiglu_one(gate, &up[token * width..][..width]);
        });
        linear_few_tokens([of.few(Down, out, next)], gate, scratch, team);
        of.add_bias(out, Down);
        x.iter_mut().zip(&*out).for_each(|(x, out)| *x += out);
    }

    /// Logits from the last layer's outputs.
    fn logits(&mut self, team: &Team) {
        let TokenMemory {
            x,
            n,
            logits,
            scratch,
            ..
        } = &mut self.tokens;
        rms_norm_rows(n, x, &self.model.norm, self.model.config().rms_norm_eps);
        let head = FewTokens {
            y: logits,
            w: self.model.head(),
            lora: |_| None::<Lora<'_>>,
        };
        linear_few_tokens([head], n, scratch, team);
    }
}

impl TokenMemory {
    /// Makes one row for each of `tokens`.
    fn fit(&mut self, model: &Llama, tokens: usize) {
        let c = model.config();
        for (rows, width) in [
            (&mut self.x, c.hidden_size),
            (&mut self.n, c.hidden_size),
            (&mut self.q, c.query_width()),
            (&mut self.k, c.key_value_width()),
            (&mut self.v, c.key_value_width()),
            (&mut self.o, c.query_width()),
            (&mut self.gate, c.intermediate_size),
            (&mut self.up, c.intermediate_size),
            (&mut self.out, c.hidden_size),
            (&mut self.logits, c.vocab_size),
        ] {
            rows.resize(tokens * width, 0.0);
        }
        self.turns.resize_with(tokens, Vec::new);
    }
}

/// A layer of a model.
#[derive(Clone, Copy)]
struct LayerOf<'m> {
    model: &'m Llama,
    layer: usize,
}

impl LayerOf<'_> {
    /// One projection for one token of each sequence, with the pairs of their adapters.
    fn few<'y>(
        &'y self,
        projection: Projection,
        y: &'y mut [f32],
        next: &'y [(&mut Context, u32)],
    ) -> FewTokens<'y, impl Fn(usize) -> Option<Lora<'y>> + Sync> {
        FewTokens {
            y,
            w: self.model.projection(self.layer, projection),
            lora: move |token: usize| {
                let context: &'y Context = &*next[token].0;
                context.adapter.pairs.lora(self.layer, projection, None)
            },
        }
    }

    /// Adds a projection's bias to its outputs, if it has one.
    fn add_bias(&self, y: &mut [f32], projection: Projection) {
        if let Some(bias) = &self.model.layers[self.layer].biases[projection as usize] {
            bias_rows(y, bias);
        }
    }

    /// Normalises the heads of one token, if the model does that.
    fn norm_heads(&self, heads: &mut [f32], norm: &Option<Vec<f32>>) {
        if let Some(norm) = norm {
            let eps = self.model.config().rms_norm_eps;
            for head in heads.chunks_exact_mut(norm.len()) {
                rms_norm_in_place(head, norm, eps);
            }
        }
    }

    /// Normalises and turns one sequence's new token, whose key and value join the context.
    fn join_context(
        &self,
        context: &mut Context,
        (q, k, v): (&mut [f32], &mut [f32], &[f32]),
        turns: &[(f32, f32)],
    ) {
        let Cached { keys, values } = &mut context.layers[self.layer];
        let layer = &self.model.layers[self.layer];
        self.norm_heads(q, &layer.query_norm);
        self.norm_heads(k, &layer.key_norm);
        rotary_one(q, turns);
        rotary_one(k, turns);
        write_token(keys.as_mut_slice(), context.len, k);
        write_token(values.as_mut_slice(), context.len, v);
    }

    /// Attention of one head of one sequence's new token.
    fn attend(
        &self,
        context: &Context,
        head: usize,
        (o, q): (&mut [f32], &[f32]),
        scores: &mut [f32],
    ) {
        let Cached { keys, values } = &context.layers[self.layer];
        let width = self.model.config().key_value_width();
        let cached = (
            Activations::new(keys.as_slice(), width),
            Activations::new(values.as_slice(), width),
        );
        let len = context.len + 1;
        let window = self.model.config().window(self.layer).unwrap_or(len);
        let seen = len.saturating_sub(window)..len;
        attend_one(o, q, cached, seen, (self.model.heads(), head), scores);
    }
}

fn rms_norm_rows(y: &mut [f32], x: &[f32], w: &[f32], eps: f32) {
    for (y, x) in y.chunks_exact_mut(w.len()).zip(x.chunks_exact(w.len())) {
        rms_norm_one(y, x, w, eps);
    }
}

/// Writes one token's features into activations.
fn write_token(data: &mut [f32], token: usize, features: &[f32]) {
    let start = token / LANES * features.len() * LANES + token % LANES;
    for (slot, feature) in data[start..].iter_mut().step_by(LANES).zip(features) {
        *slot = *feature;
    }
}
