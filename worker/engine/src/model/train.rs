//! A model in training: runs batches forward and backward and adds up gradients.

use std::sync::Arc;

use super::{
    Adapter, Batch, Llama, LossSum, Masks, Parameter, Parameters, TokenScore,
    backward::{InputGradient, LayerBackward},
    forward::{Pass, layer_forward},
    llama::Weight,
    memory::{Keep, Memory, Plan},
    trainable::Trainable,
};
use crate::{
    EngineError,
    device::{ActivationsMut, Buffer, padded_tokens, run},
    ops::{
        attention::Sequences,
        cross_entropy::{cross_entropy_forward, cross_entropy_forward_backward},
        embedding::{embedding_backward, embedding_forward},
        linear::{Start, linear_forward},
        rms_norm::{rms_norm_backward, rms_norm_backward_weight, rms_norm_forward},
    },
};

/// A base model with what is trained of it.
#[derive(Debug)]
pub struct TrainModel {
    model: Arc<Llama>,
    trainable: Trainable,
    checkpointing: bool,
    memory: Buffer,
}

impl TrainModel {
    /// An adapter to be trained on a frozen model.
    ///
    /// # Errors
    /// What [`Adapter::validate`] says, and [`EngineError::OutOfMemory`].
    pub fn new(model: Arc<Llama>, adapter: &Adapter) -> Result<Self, EngineError> {
        let trainable = Trainable::new(&model, adapter, &[])?;
        Ok(Self::with(model, trainable))
    }

    /// An adapter to be trained together with some of the model's own weights.
    ///
    /// # Errors
    /// As [`TrainModel::new`].
    pub(crate) fn with_weights(
        mut model: Llama,
        adapter: &Adapter,
        weights: &[Weight],
    ) -> Result<Self, EngineError> {
        for weight in weights {
            model.unpack(*weight)?;
        }
        let trainable = Trainable::new(&model, adapter, weights)?;
        Ok(Self::with(Arc::new(model), trainable))
    }

    /// A model to be trained in all its weights.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`].
    pub fn full(model: Llama) -> Result<Self, EngineError> {
        let (none, all) = (Adapter::empty(model.config()), Weight::all(model.config()));
        let trainable = Trainable::new(&model, &none, &all)?;
        Ok(Self::with(Arc::new(model), trainable))
    }

    fn with(model: Arc<Llama>, trainable: Trainable) -> Self {
        Self {
            model,
            trainable,
            checkpointing: false,
            memory: Buffer::empty(),
        }
    }

    /// Keeps only the layers' inputs for the backward pass and computes the rest again: less memory, more time.
    pub fn set_gradient_checkpointing(&mut self, on: bool) {
        self.checkpointing = on;
    }

    /// The base model.
    pub fn model(&self) -> &Arc<Llama> {
        &self.model
    }

    /// What is trained, with its gradients, always in the same order.
    pub fn parameters_mut(&mut self) -> Vec<Parameter<'_>> {
        self.trainable.parameters().collect()
    }

    /// How many values are trained.
    pub fn trainable_count(&self) -> u64 {
        self.trainable.count()
    }

    /// Sets all gradients to zero.
    pub fn zero_gradients(&mut self) {
        self.trainable.zero_gradients();
    }

    /// Runs a batch forward and backward, and adds the gradients of `scale * nll_sum`.
    ///
    /// `masks` says what LoRA's dropout drops.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`], [`EngineError::OutOfMemory`]; the gradients are then as before.
    pub fn forward_backward(
        &mut self,
        batch: &Batch,
        scale: f32,
        masks: Masks,
    ) -> Result<LossSum, EngineError> {
        let keep = if self.checkpointing {
            Keep::Inputs
        } else {
            Keep::All
        };
        self.with_memory(batch, keep, |model, trainable, plan, mut memory| {
            let pass = prepare(model, batch, &mut memory, Some(masks));
            layers_forward(pass, trainable, batch, &plan, &mut memory, &|| false);
            let loss = loss_and_gradient(pass, trainable, batch, scale, &plan, &mut memory);
            for layer in (0..model.config().num_hidden_layers).rev() {
                if plan.keep == Keep::Inputs {
                    let mut view = memory.layer(&plan, layer);
                    layer_forward(pass, trainable, layer, &mut view, None);
                }
                let wanted = match layer > 0 || trainable.trains_weights() {
                    true => InputGradient::Wanted,
                    false => InputGradient::Unused,
                };
                LayerBackward {
                    pass,
                    trainable,
                    layer,
                }
                .run(memory.layer(&plan, layer), wanted);
            }
            if let Some(de) = trainable.gradient(Weight::Embedding) {
                embedding_backward(de, &batch.ids, memory.shared.dx.view());
            }
            loss
        })
    }

    /// The loss of a batch, without gradients and without dropout.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`], [`EngineError::OutOfMemory`].
    pub fn evaluate(&mut self, batch: &Batch) -> Result<LossSum, EngineError> {
        let mut loss = LossSum::default();
        let scores = self.score(batch, &|| false)?;
        scores.into_iter().flatten().for_each(|s| loss += s);
        Ok(loss)
    }

    /// How well each labelled token of a batch is predicted, in order, without dropout; none where it was
    /// stopped. `stopped` is asked before every layer.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`], [`EngineError::OutOfMemory`].
    pub fn score(
        &mut self,
        batch: &Batch,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<TokenScore>>, EngineError> {
        self.with_memory(
            batch,
            Keep::Nothing,
            |model, trainable, plan, mut memory| {
                let pass = prepare(model, batch, &mut memory, None);
                if layers_forward(pass, trainable, batch, &plan, &mut memory, stopped)
                    == Forward::Stopped
                {
                    return None;
                }
                let (x, shared) = memory.last(&plan);
                rms_norm_forward(
                    &mut shared.n,
                    shared.rstd,
                    x,
                    &model.norm,
                    model.config().rms_norm_eps,
                );
                let mut scores = Vec::with_capacity(batch.labelled_tokens());
                cross_entropy_forward(
                    shared.n.view(),
                    model.head(),
                    &batch.targets,
                    shared.scratch,
                    |score| scores.push(score),
                );
                Some(scores)
            },
        )
    }

    /// The logits of every token, row-major `[tokens, vocabulary]`: large, for tests and small inputs.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`], [`EngineError::OutOfMemory`].
    pub fn logits(&mut self, batch: &Batch) -> Result<Vec<f32>, EngineError> {
        self.with_memory(
            batch,
            Keep::Nothing,
            |model, trainable, plan, mut memory| {
                let pass = prepare(model, batch, &mut memory, None);
                layers_forward(pass, trainable, batch, &plan, &mut memory, &|| false);
                let (x, shared) = memory.last(&plan);
                rms_norm_forward(
                    &mut shared.n,
                    shared.rstd,
                    x,
                    &model.norm,
                    model.config().rms_norm_eps,
                );
                let vocabulary = model.config().vocab_size;
                let mut logits = vec![0.0; padded_tokens(batch.tokens()) * vocabulary];
                let mut logits = ActivationsMut::new(&mut logits, vocabulary);
                linear_forward(
                    &mut logits,
                    Start::Zero,
                    shared.n.view(),
                    model.head(),
                    None,
                    &mut [],
                );
                logits.view().to_rows(batch.tokens())
            },
        )
    }

    /// Checks the batch, brings the model up to date, and calls `work` with memory for the batch, on the engine's
    /// threads.
    fn with_memory<R: Send>(
        &mut self,
        batch: &Batch,
        keep: Keep,
        work: impl FnOnce(&Llama, &mut Trainable, Plan<'_>, Memory<'_>) -> R + Send,
    ) -> Result<R, EngineError> {
        batch.validate(self.model.config())?;
        if self.trainable.must_pack() {
            let model =
                Arc::get_mut(&mut self.model).ok_or_else(|| EngineError::InvalidSetting {
                    field: "use_peft",
                    message: "the model is used elsewhere while all its weights are trained"
                        .to_owned(),
                })?;
            self.trainable.pack_into(model);
        }
        let ranks = self.trainable.ranks().clone();
        let plan = Plan {
            config: self.model.config(),
            tokens: padded_tokens(batch.tokens()),
            ranks: &ranks,
            dropout: self.trainable.dropout(),
            full: self.trainable.trains_weights(),
            keep,
        };
        self.memory.reserve(plan.len())?;
        let memory = plan.carve(self.memory.as_mut_slice());
        let (model, trainable) = (&*self.model, &mut self.trainable);
        Ok(run(|| work(model, trainable, plan, memory)))
    }
}

impl Parameters for TrainModel {
    fn each(&mut self, visit: impl FnMut(Parameter<'_>)) {
        self.trainable.parameters().for_each(visit);
    }
}

/// Writes down where sequences start and which angles positions have.
pub(super) fn prepare<'p, 'm: 'p>(
    model: &'p Llama,
    batch: &'p Batch,
    memory: &mut Memory<'m>,
    masks: Option<Masks>,
) -> Pass<'p> {
    let starts = std::mem::take(&mut memory.shared.starts);
    let window_starts = std::mem::take(&mut memory.shared.window_starts);
    let seen = |starts, window| Sequences::new(starts, &batch.offsets, &batch.positions, window);
    let window = model.config().sliding_window.as_ref();
    let angles = std::mem::take(&mut memory.shared.angles);
    Pass {
        model,
        everything: seen(starts, None),
        windowed: window.map(|window| seen(window_starts, Some(window.tokens))),
        angles: model.rotary.angles(angles, &batch.positions),
        masks,
    }
}

/// Whether a batch was run through all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forward {
    Done,
    Stopped,
}

/// From token ids to the last layer's output.
fn layers_forward(
    pass: Pass<'_>,
    trainable: &Trainable,
    batch: &Batch,
    plan: &Plan<'_>,
    memory: &mut Memory<'_>,
    stopped: &dyn Fn() -> bool,
) -> Forward {
    embedding_forward(
        &mut memory.input(plan, 0),
        &batch.ids,
        &pass.model.embedding,
    );
    for layer in 0..pass.model.config().num_hidden_layers {
        if stopped() {
            return Forward::Stopped;
        }
        let mut view = memory.layer(plan, layer);
        layer_forward(pass, trainable, layer, &mut view, None);
    }
    Forward::Done
}

/// The loss, and its gradient by the last layer's output in `dx`.
fn loss_and_gradient(
    pass: Pass<'_>,
    trainable: &mut Trainable,
    batch: &Batch,
    scale: f32,
    plan: &Plan<'_>,
    memory: &mut Memory<'_>,
) -> LossSum {
    let model = pass.model;
    let (x, shared) = memory.last(plan);
    rms_norm_forward(
        &mut shared.n,
        shared.rstd,
        x,
        &model.norm,
        model.config().rms_norm_eps,
    );
    let head = if model.head.is_some() {
        Weight::Head
    } else {
        Weight::Embedding
    };
    let loss = cross_entropy_forward_backward(
        &mut shared.dn,
        trainable.gradient(head),
        shared.n.view(),
        model.head(),
        &batch.targets,
        scale,
        shared.scratch,
    );
    if let Some(dw) = trainable.gradient(Weight::Norm) {
        rms_norm_backward_weight(dw, shared.dn.view(), x, shared.rstd);
    }
    shared.dx.data().fill(0.0);
    rms_norm_backward(
        &mut shared.dx,
        shared.dn.view(),
        x,
        shared.rstd,
        &model.norm,
    );
    loss
}
