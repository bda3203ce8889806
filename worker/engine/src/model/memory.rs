//! What a training step holds in memory, laid out in one buffer that is planned once and used again by every step.

use super::{ModelConfig, Projection};
use crate::{
    device::{Activations, ActivationsMut, Carver, LANES},
    ops::{
        attention::attention_scratch,
        cross_entropy::cross_entropy_scratch,
        linear::{full_scratch, lora_scratch},
    },
};

/// What a layer keeps between its forward and its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Everything.
    All,
    /// Its input only; the rest is computed again.
    Inputs,
    /// Nothing: there is no backward pass.
    Nothing,
}

/// Sizes that decide how much memory a batch needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan<'a> {
    pub config: &'a ModelConfig,
    /// Tokens in whole blocks.
    pub tokens: usize,
    /// Rank of each projection's pair in each layer, 0 for none.
    pub ranks: &'a [[usize; 7]],
    pub dropout: bool,
    /// Whether the weights themselves are trained.
    pub full: bool,
    pub keep: Keep,
}

/// All memory of one step.
pub(super) struct Memory<'a> {
    /// The layers' inputs and the last one's output, `[layer][tokens * hidden]` (or two that take turns).
    inputs: &'a mut [f32],
    /// What layers keep, one part each (or one for all).
    kept: &'a mut [f32],
    pub shared: SharedMemory<'a>,
}

/// What a layer works on.
pub(super) struct LayerView<'a, 'm> {
    /// `[tokens, hidden]`.
    pub input: Activations<'a>,
    /// `[tokens, hidden]`.
    pub output: ActivationsMut<'a>,
    /// What the layer keeps.
    pub kept: LayerMemory<'a>,
    /// What all layers use.
    pub shared: &'a mut SharedMemory<'m>,
}

/// What all layers use one after the other.
pub(super) struct SharedMemory<'a> {
    /// First token that each token may attend to.
    pub starts: &'a mut [f32],
    /// The same for layers with a sliding window; empty where there are none.
    pub window_starts: &'a mut [f32],
    /// Cosines and sines.
    pub angles: &'a mut [f32],
    /// `1 / rms` of the final norm.
    pub rstd: &'a mut [f32],
    /// Normalised inputs `[tokens, hidden]`.
    pub n: ActivationsMut<'a>,
    /// The feed-forward layer's inner values `[tokens, intermediate]`, and their gradients.
    pub h: ActivationsMut<'a>,
    /// Gradient of the residual stream `[tokens, hidden]`.
    pub dx: ActivationsMut<'a>,
    /// Gradient of `n`.
    pub dn: ActivationsMut<'a>,
    /// Gradient of the attention's output `[tokens, queries]`.
    pub d_o: ActivationsMut<'a>,
    pub dq: ActivationsMut<'a>,
    pub dk: ActivationsMut<'a>,
    pub dv: ActivationsMut<'a>,
    /// Gradients of up to three pairs' inner values.
    pub du: &'a mut [f32],
    /// For whatever operation runs.
    pub scratch: &'a mut [f32],
}

/// What one layer keeps.
pub(super) struct LayerMemory<'a> {
    pub attention_rstd: &'a mut [f32],
    pub q: ActivationsMut<'a>,
    pub k: ActivationsMut<'a>,
    /// Queries before their norm; empty where heads have none.
    pub raw_q: ActivationsMut<'a>,
    /// As `raw_q`.
    pub raw_k: ActivationsMut<'a>,
    /// `1 / rms` of each query head.
    pub q_rstd: &'a mut [f32],
    /// `1 / rms` of each key head.
    pub k_rstd: &'a mut [f32],
    pub v: ActivationsMut<'a>,
    pub lse: &'a mut [f32],
    pub o: ActivationsMut<'a>,
    /// The residual stream between attention and feed-forward layer.
    pub mid: ActivationsMut<'a>,
    pub mlp_rstd: &'a mut [f32],
    pub gate: ActivationsMut<'a>,
    pub up: ActivationsMut<'a>,
    /// Inner values of the pairs; empty where there is none.
    pub u: [&'a mut [f32]; 7],
}

impl<'a> Plan<'a> {
    /// Number of values in the whole buffer.
    pub(super) fn len(&self) -> usize {
        self.inputs_len() + self.kept_len() + space(&self.shared_sizes())
    }

    /// Lays the buffer out.
    pub(super) fn carve<'m>(&self, buffer: &'m mut [f32]) -> Memory<'m> {
        let (inputs, rest) = buffer.split_at_mut(self.inputs_len());
        let (kept, rest) = rest.split_at_mut(self.kept_len());
        let mut carver = Carver::new(rest);
        let [
            starts,
            window_starts,
            angles,
            rstd,
            n,
            h,
            dx,
            dn,
            d_o,
            dq,
            dk,
            dv,
            du,
            scratch,
        ] = self.shared_sizes().map(|len| carver.take(len));
        let c = self.config;
        let (hidden, wide, narrow) = (c.hidden_size, c.query_width(), c.key_value_width());
        Memory {
            inputs,
            kept,
            shared: SharedMemory {
                starts,
                window_starts,
                angles,
                rstd,
                n: ActivationsMut::new(n, hidden),
                h: ActivationsMut::new(h, c.intermediate_size),
                dx: ActivationsMut::new(dx, hidden),
                dn: ActivationsMut::new(dn, hidden),
                d_o: ActivationsMut::new(d_o, wide),
                dq: ActivationsMut::new(dq, wide),
                dk: ActivationsMut::new(dk, narrow),
                dv: ActivationsMut::new(dv, narrow),
                du,
                scratch,
            },
        }
    }

    fn inputs_len(&self) -> usize {
        let count = match self.keep {
            Keep::Nothing => 2,
            Keep::All | Keep::Inputs => self.config.num_hidden_layers + 1,
        };
        count * self.input_len()
    }

    fn input_len(&self) -> usize {
        Carver::space(self.tokens * self.config.hidden_size)
    }

    fn kept_len(&self) -> usize {
        let count = match self.keep {
            Keep::All => self.config.num_hidden_layers,
            Keep::Inputs | Keep::Nothing => 1,
        };
        count * self.layer_len()
    }

    fn layer_len(&self) -> usize {
        let layers = self
            .ranks
            .iter()
            .map(|ranks| space(&self.layer_sizes(ranks)));
        layers.max().unwrap_or(0)
    }

    fn layer_sizes(&self, ranks: &[usize; 7]) -> [usize; 21] {
        let c = self.config;
        let (wide, narrow) = (c.query_width(), c.key_value_width());
        let (inner, hidden) = (c.intermediate_size, c.hidden_size);
        let [q, k, v, o, gate, up, down] = *ranks;
        let normed = |width: usize| if c.qk_norm { width } else { 0 };
        let kept = [
            1,
            wide,
            narrow,
            normed(wide),
            normed(narrow),
            normed(c.num_attention_heads),
            normed(c.num_key_value_heads),
            narrow,
            c.num_attention_heads,
            wide,
            hidden,
            1,
            inner,
            inner,
        ];
        let mut sizes = [0; 21];
        let widths = kept.into_iter().chain([q, k, v, o, gate, up, down]);
        sizes
            .iter_mut()
            .zip(widths)
            .for_each(|(size, width)| *size = width * self.tokens);
        sizes
    }

    fn shared_sizes(&self) -> [usize; 14] {
        let c = self.config;
        let (wide, narrow, hidden) = (c.query_width(), c.key_value_width(), c.hidden_size);
        let backward = |width: usize| if self.keep == Keep::Nothing { 0 } else { width };
        let mut sizes = [
            1,
            usize::from(c.sliding_window.is_some()),
            c.head_dim,
            1,
            hidden,
            c.intermediate_size,
            backward(hidden),
            backward(hidden),
            backward(wide),
            backward(wide),
            backward(narrow),
            backward(narrow),
            backward(3 * self.max_rank()),
            0,
        ]
        .map(|width| width * self.tokens);
        sizes[13] = self.scratch_len();
        sizes
    }

    fn max_rank(&self) -> usize {
        self.ranks.iter().flatten().copied().max().unwrap_or(0)
    }

    /// The most that any operation asks for.
    fn scratch_len(&self) -> usize {
        let c = self.config;
        let blocks = self.tokens / LANES;
        let loss = cross_entropy_scratch(self.tokens, c.vocab_size, c.hidden_size, self.full);
        let attention = attention_scratch(blocks, self.config.heads());
        let dropped = if self.dropout {
            self.tokens * c.intermediate_size.max(c.hidden_size)
        } else {
            0
        };
        let linear = Projection::ALL.into_iter().map(|projection| {
            let [output, input] = c.projection_shape(projection);
            let lora = lora_scratch(blocks, input, output, self.max_rank(), self.dropout);
            let full = if self.full {
                full_scratch(blocks, input, output)
            } else {
                0
            };
            lora.max(full)
        });
        linear.chain([loss, attention, dropped]).max().unwrap_or(0)
    }
}

fn space(sizes: &[usize]) -> usize {
    sizes.iter().map(|&len| Carver::space(len)).sum()
}

impl<'m> Memory<'m> {
    /// The input of layer `layer`, or the last layer's output.
    pub(super) fn input(&mut self, plan: &Plan<'_>, layer: usize) -> ActivationsMut<'_> {
        let hidden = plan.config.hidden_size;
        let start = plan.input_index(layer) * plan.input_len();
        ActivationsMut::new(&mut self.inputs[start..][..plan.tokens * hidden], hidden)
    }

    /// The last layer's output, and what all layers use.
    pub(super) fn last(&mut self, plan: &Plan<'_>) -> (Activations<'_>, &mut SharedMemory<'m>) {
        let hidden = plan.config.hidden_size;
        let start = plan.input_index(plan.config.num_hidden_layers) * plan.input_len();
        let x = Activations::new(&self.inputs[start..][..plan.tokens * hidden], hidden);
        (x, &mut self.shared)
    }

    /// Everything that layer `layer` works on.
    pub(super) fn layer(&mut self, plan: &Plan<'_>, layer: usize) -> LayerView<'_, 'm> {
        let (hidden, len) = (
            plan.config.hidden_size,
            plan.tokens * plan.config.hidden_size,
        );
        let (input, output) = (plan.input_index(layer), plan.input_index(layer + 1));
        let (first, second) = self
            .inputs
            .split_at_mut(input.max(output) * plan.input_len());
        let lower = &mut first[input.min(output) * plan.input_len()..][..len];
        let upper = &mut second[..len];
        let (input, output) = if input < output {
            (lower, upper)
        } else {
            (upper, lower)
        };
        let kept = if plan.keep == Keep::All { layer } else { 0 };
        let kept = &mut self.kept[kept * plan.layer_len()..][..plan.layer_len()];
        LayerView {
            input: Activations::new(input, hidden),
            output: ActivationsMut::new(output, hidden),
            kept: plan.carve_layer(kept, layer),
            shared: &mut self.shared,
        }
    }
}

impl Plan<'_> {
    fn input_index(&self, layer: usize) -> usize {
        if self.keep == Keep::Nothing {
            layer % 2
        } else {
            layer
        }
    }

    fn carve_layer<'a>(&self, kept: &'a mut [f32], layer: usize) -> LayerMemory<'a> {
        let c = self.config;
        let mut carver = Carver::new(kept);
        let [
            attention_rstd,
            q,
            k,
            raw_q,
            raw_k,
            q_rstd,
            k_rstd,
            v,
            lse,
            o,
            mid,
            mlp_rstd,
            gate,
            up,
            u0,
            u1,
            u2,
            u3,
            u4,
            u5,
            u6,
        ] = self
            .layer_sizes(&self.ranks[layer])
            .map(|len| carver.take(len));
        let (wide, narrow) = (c.query_width(), c.key_value_width());
        LayerMemory {
            attention_rstd,
            q: ActivationsMut::new(q, wide),
            k: ActivationsMut::new(k, narrow),
            raw_q: ActivationsMut::new(raw_q, wide),
            raw_k: ActivationsMut::new(raw_k, narrow),
            q_rstd,
            k_rstd,
            v: ActivationsMut::new(v, narrow),
            lse,
            o: ActivationsMut::new(o, wide),
            mid: ActivationsMut::new(mid, c.hidden_size),
            mlp_rstd,
            gate: ActivationsMut::new(gate, c.intermediate_size),
            up: ActivationsMut::new(up, c.intermediate_size),
            u: [u0, u1, u2, u3, u4, u5, u6],
        }
    }
}
