//! The backward pass through one decoder layer: the forward pass's formulas in reverse order.

use super::{
    Projection,
    forward::Pass,
    llama::Weight,
    memory::{LayerMemory, LayerView, SharedMemory},
    trainable::Trainable,
};
use crate::{
    device::{Activations, ActivationsMut},
    ops::{
        attention::attention_backward,
        bias::bias_backward,
        linear::{
            Branch, Start, linear_backward_input, linear_backward_weight, lora_backward_a,
            lora_backward_b,
        },
        rms_norm::{rms_norm_again, rms_norm_backward, rms_norm_backward_weight},
        rotary::rotary_backward,
        swiglu::swiglu_backward,
    },
};

/// Whether the gradient of a layer's input is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputGradient {
    /// It goes on to the layer below, or to the embedding.
    Wanted,
    /// Nothing below is trained.
    Unused,
}

/// One layer of one backward pass.
pub(super) struct LayerBackward<'a> {
    pub pass: Pass<'a>,
    pub trainable: &'a mut Trainable,
    pub layer: usize,
}

impl LayerBackward<'_> {
    /// Turns `shared.dx` from the gradient of the layer's output into that of its input, and adds to the gradients
    /// of what is trained. What the layer had kept is used up.
    pub(super) fn run(&mut self, view: LayerView<'_, '_>, wanted: InputGradient) {
        let LayerView {
            input,
            mut kept,
            shared,
            ..
        } = view;
        self.mlp(&mut kept, shared);
        self.attention(input, &mut kept, shared, wanted);
    }

    /// From the gradient of `out` to that of `mid`, both in `shared.dx`.
    fn mlp(&mut self, kept: &mut LayerMemory<'_>, shared: &mut SharedMemory<'_>) {
        use Projection::{Down, Gate, Up};
        let SharedMemory {
            n,
            h,
            dx,
            dn,
            du,
            scratch,
            ..
        } = shared;
        let [du_first, du_second, _] = thirds(du);

        self.inner(Down, du_first, dx.view(), kept.u[Down as usize], scratch);
        let branch = self.branch(Down, du_first, dx.view());
        linear_backward_input(h, Start::Zero, &[branch], scratch);
        swiglu_backward(&mut kept.gate, &mut kept.up, h);
        self.weights(Down, du_first, dx.view(), h.view(), scratch);

        let (dgate, dup) = (kept.gate.view(), kept.up.view());
        let weight = &self.pass.model.layers[self.layer].mlp_norm;
        rms_norm_again(n, kept.mlp_rstd, kept.mid.view(), weight);
        self.inner(Gate, du_first, dgate, kept.u[Gate as usize], scratch);
        self.inner(Up, du_second, dup, kept.u[Up as usize], scratch);
        self.weights(Gate, du_first, dgate, n.view(), scratch);
        self.weights(Up, du_second, dup, n.view(), scratch);
        let branches = [
            self.branch(Gate, du_first, dgate),
            self.branch(Up, du_second, dup),
        ];
        linear_backward_input(dn, Start::Zero, &branches, scratch);
        self.norm(
            (Weight::MlpNorm(self.layer), weight),
            dx,
            dn.view(),
            kept.mid.view(),
            kept.mlp_rstd,
        );
    }

    /// From the gradient of `mid` to that of `x`, both in `shared.dx`.
    fn attention(
        &mut self,
        x: Activations<'_>,
        kept: &mut LayerMemory<'_>,
        shared: &mut SharedMemory<'_>,
        wanted: InputGradient,
    ) {
        use Projection::{K, O, Q, V};
        let SharedMemory {
            n,
            dx,
            dn,
            d_o,
            dq,
            dk,
            dv,
            du,
            scratch,
            ..
        } = shared;
        let [du_q, du_k, du_v] = thirds(du);

        self.inner(O, du_q, dx.view(), kept.u[O as usize], scratch);
        self.weights(O, du_q, dx.view(), kept.o.view(), scratch);
        let branch = self.branch(O, du_q, dx.view());
        linear_backward_input(d_o, Start::Zero, &[branch], scratch);

        let (q, k, v) = (kept.q.view(), kept.k.view(), kept.v.view());
        let outputs = (d_o.view(), kept.o.view(), &*kept.lse);
        let heads = self.pass.model.heads();
        attention_backward(
            (dq, dk, dv),
            outputs,
            (q, k, v),
            self.pass.sequences(self.layer),
            heads,
            scratch,
        );
        rotary_backward(dq, self.pass.angles);
        rotary_backward(dk, self.pass.angles);

        let LayerMemory {
            q, k, raw_q, raw_k, ..
        } = kept;
        let weight = Weight::QueryNorm(self.layer);
        let dq = self.head_norm(weight, q, dq.view(), raw_q.view(), kept.q_rstd);
        let weight = Weight::KeyNorm(self.layer);
        let dk = self.head_norm(weight, k, dk.view(), raw_k.view(), kept.k_rstd);
        let dv = dv.view();

        let weight = &self.pass.model.layers[self.layer].attention_norm;
        rms_norm_again(n, kept.attention_rstd, x, weight);
        for (projection, du, dy) in [
            (Q, &mut *du_q, dq),
            (K, &mut *du_k, dk),
            (V, &mut *du_v, dv),
        ] {
            self.inner(projection, du, dy, kept.u[projection as usize], scratch);
            self.weights(projection, du, dy, n.view(), scratch);
        }
        if wanted == InputGradient::Unused {
            return;
        }
        let branches = [
            self.branch(Q, du_q, dq),
            self.branch(K, du_k, dk),
            self.branch(V, du_v, dv),
        ];
        linear_backward_input(dn, Start::Zero, &branches, scratch);
        self.norm(
            (Weight::AttentionNorm(self.layer), weight),
            dx,
            dn.view(),
            x,
            kept.attention_rstd,
        );
    }

    /// The gradients of a pair's inner values and of its B.
    fn inner(
        &mut self,
        p: Projection,
        du: &mut [f32],
        dy: Activations<'_>,
        u: &[f32],
        scratch: &mut [f32],
    ) {
        if let Some((lora, _, db)) = self.trainable.lora_mut(self.layer, p, self.pass.masks) {
            let len = u.len();
            let mut du = ActivationsMut::new(&mut du[..len], lora.rank);
            lora_backward_b(
                &mut du,
                db,
                dy,
                Activations::new(u, lora.rank),
                lora,
                scratch,
            );
        }
    }

    /// The gradient of a pair's A, or of the full weight and its bias, from the layer's input `x`.
    fn weights(
        &mut self,
        p: Projection,
        du: &[f32],
        dy: Activations<'_>,
        x: Activations<'_>,
        scratch: &mut [f32],
    ) {
        if let Some((lora, da, _)) = self.trainable.lora_mut(self.layer, p, self.pass.masks) {
            let du = Activations::new(&du[..dy.tokens() * lora.rank], lora.rank);
            lora_backward_a(da, du, x, lora, scratch);
        }
        if let Some(dw) = self.trainable.gradient(Weight::Projection(self.layer, p)) {
            linear_backward_weight(dw, dy, x, scratch);
        }
        if let Some(db) = self.trainable.gradient(Weight::Bias(self.layer, p)) {
            bias_backward(db, dy);
        }
    }

    /// A projection's part in the gradient of its input.
    fn branch<'b>(&'b self, p: Projection, du: &'b [f32], dy: Activations<'b>) -> Branch<'b> {
        let lora = self.trainable.lora(self.layer, p, self.pass.masks);
        Branch {
            dy,
            w: self.pass.model.projection(self.layer, p),
            lora: lora.map(|lora| {
                (
                    lora,
                    Activations::new(&du[..dy.tokens() * lora.rank], lora.rank),
                )
            }),
        }
    }

    /// Adds to `dx` what came through a norm, and to the gradient of its weight `w`.
    fn norm(
        &mut self,
        (weight, w): (Weight, &[f32]),
        dx: &mut ActivationsMut<'_>,
        dn: Activations<'_>,
        x: Activations<'_>,
        rstd: &[f32],
    ) {
        if let Some(dw) = self.trainable.gradient(weight) {
            rms_norm_backward_weight(dw, dn, x, rstd);
        }
        rms_norm_backward(dx, dn, x, rstd, w);
    }

    /// From the gradient of normalised heads to that of the heads `x`, set in `dx`; `dy` as it is where heads have no
    /// norm.
    fn head_norm<'b>(
        &mut self,
        weight: Weight,
        dx: &'b mut ActivationsMut<'_>,
        dy: Activations<'b>,
        x: Activations<'_>,
        rstd: &[f32],
    ) -> Activations<'b> {
        let layer = &self.pass.model.layers[self.layer];
        let norm = match weight {
            Weight::QueryNorm(_) => &layer.query_norm,
            _ => &layer.key_norm,
        };
        let Some(norm) = norm else {
            return dy;
        };
        let dim = norm.len();
        dx.data().fill(0.0);
        self.norm(
            (weight, norm),
            &mut dx.heads(dim),
            dy.heads(dim),
            x.heads(dim),
            rstd,
        );
        dx.view()
    }
}

/// Three equal parts.
fn thirds(values: &mut [f32]) -> [&mut [f32]; 3] {
    let third = values.len() / 3;
    let (first, rest) = values.split_at_mut(third);
    let (second, rest) = rest.split_at_mut(third);
    [first, second, &mut rest[..third]]
}
