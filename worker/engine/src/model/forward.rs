//! The forward pass through one decoder layer.
//!
//! ```text
//! mid = x + O attention(Q n, K n, V n)        with n = norm(x), rotary embedding on queries and keys
//! out = mid + Down (silu(Gate m) * Up m)      with m = norm(mid)
//! ```
//! Where the model has them, projections add a bias, heads of queries and keys are normalised before they are turned,
//! and the attention of some layers sees only a window of keys.

use super::{
    Llama, Projection,
    memory::{LayerMemory, LayerView},
    trainable::Trainable,
};
use crate::{
    device::{Activations, ActivationsMut, LANES},
    ops::{
        attention::{Sequences, attention_forward},
        bias::bias_forward,
        linear::{Lora, Start, linear_forward},
        rms_norm::rms_norm_forward,
        rotary::{Angles, rotary_forward},
        swiglu::swiglu_forward,
    },
};

/// Which values LoRA's dropout drops: the same seed drops the same values of the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masks {
    /// Another one for every optimizer step.
    pub seed: u64,
    /// The place of the batch's first token among those of the step.
    pub first_token: u32,
}

impl Masks {
    /// The masks of a step's first tokens.
    pub const fn of(seed: u64) -> Self {
        Self {
            seed,
            first_token: 0,
        }
    }
}

/// What a pass through the layers needs besides memory.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub model: &'a Llama,
    /// What tokens see in layers without a sliding window.
    pub everything: Sequences<'a>,
    /// What tokens see in layers with one.
    pub windowed: Option<Sequences<'a>>,
    pub angles: Angles<'a>,
    /// What LoRA's dropout drops; nothing outside training.
    pub masks: Option<Masks>,
}

impl<'a> Pass<'a> {
    /// What tokens see in a layer.
    pub(super) fn sequences(&self, layer: usize) -> Sequences<'a> {
        match (self.model.config().window(layer), self.windowed) {
            (Some(_), Some(windowed)) => windowed,
            _ => self.everything,
        }
    }
}

/// Keys and values of a sequence's earlier blocks in one layer; the pass writes its own behind them.
pub(super) struct Earlier<'a> {
    /// `[tokens, keys]`, in blocks.
    pub keys: &'a mut [f32],
    /// As `keys`.
    pub values: &'a mut [f32],
    /// Blocks that are there.
    pub blocks: usize,
}

/// Runs one layer from its input to its output, and leaves in `kept` what the backward pass needs.
pub(super) fn layer_forward(
    pass: Pass<'_>,
    trainable: &Trainable,
    layer: usize,
    view: &mut LayerView<'_, '_>,
    earlier: Option<Earlier<'_>>,
) {
    let LayerView {
        input,
        output,
        kept,
        shared,
    } = view;
    let LayerMemory {
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
        u,
    } = kept;
    let [uq, uk, uv, uo, ugate, uup, udown] = u;
    let (model, weights) = (pass.model, &pass.model.layers[layer]);
    let eps = model.config().rms_norm_eps;
    let mut linear = |y: &mut ActivationsMut<'_>,
                      start: Start<'_>,
                      x: Activations<'_>,
                      p: Projection,
                      u: &mut [f32]| {
        let lora = trainable.lora(layer, p, pass.masks);
        let w = model.projection(layer, p);
        with_inner(lora, u, |lora| {
            linear_forward(y, start, x, w, lora, shared.scratch)
        });
        if let Some(bias) = &weights.biases[p as usize] {
            bias_forward(y, bias);
        }
    };

    rms_norm_forward(
        &mut shared.n,
        attention_rstd,
        *input,
        &weights.attention_norm,
        eps,
    );
    for (y, raw, rstd, norm, p, u) in [
        (
            &mut *q,
            raw_q,
            q_rstd,
            &weights.query_norm,
            Projection::Q,
            uq,
        ),
        (&mut *k, raw_k, k_rstd, &weights.key_norm, Projection::K, uk),
    ] {
        let Some(norm) = norm else {
            linear(y, Start::Zero, shared.n.view(), p, u);
            continue;
        };
        linear(raw, Start::Zero, shared.n.view(), p, u);
        let dim = norm.len();
        rms_norm_forward(&mut y.heads(dim), rstd, raw.view().heads(dim), norm, eps);
    }
    linear(v, Start::Zero, shared.n.view(), Projection::V, uv);
    rotary_forward(q, pass.angles);
    rotary_forward(k, pass.angles);
    let (keys, values, first_block) = match earlier {
        None => (k.view(), v.view(), 0),
        Some(earlier) => {
            let blocks = earlier.blocks;
            let [keys, values] = earlier.append(k.view(), v.view());
            (keys, values, blocks)
        }
    };
    attention_forward(
        o,
        lse,
        (q.view(), keys, values),
        pass.sequences(layer),
        first_block,
        model.heads(),
    );
    linear(mid, Start::From(*input), o.view(), Projection::O, uo);

    rms_norm_forward(&mut shared.n, mlp_rstd, mid.view(), &weights.mlp_norm, eps);
    linear(gate, Start::Zero, shared.n.view(), Projection::Gate, ugate);
    linear(up, Start::Zero, shared.n.view(), Projection::Up, uup);
    swiglu_forward(&mut shared.h, gate.view(), up.view());
    linear(
        output,
        Start::From(mid.view()),
        shared.h.view(),
        Projection::Down,
        udown,
    );
}

impl<'a> Earlier<'a> {
    /// Copies new keys and values behind the earlier ones, and gives all of them.
    fn append(self, k: Activations<'_>, v: Activations<'_>) -> [Activations<'a>; 2] {
        let start = self.blocks * LANES * k.width();
        let end = start + k.data().len();
        let Self { keys, values, .. } = self;
        [(keys, k), (values, v)].map(|(all, new)| {
            all[start..end].copy_from_slice(new.data());
            Activations::new(&all[..end], new.width())
        })
    }
}

/// Calls `work` with a pair and the memory of its inner values, if there is a pair.
fn with_inner<'l>(
    lora: Option<Lora<'l>>,
    u: &mut [f32],
    work: impl FnOnce(Option<(Lora<'l>, &mut ActivationsMut<'_>)>),
) {
    match lora {
        Some(lora) => {
            let mut u = ActivationsMut::new(u, lora.rank);
            work(Some((lora, &mut u)));
        }
        None => work(None),
    }
}
