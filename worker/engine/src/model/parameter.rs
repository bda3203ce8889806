//! A trainable weight with its gradient, as optimizers and checkpoints see it.

/// Trainable weights that an optimizer goes through, always in one order.
pub trait Parameters {
    /// Calls `visit` with each of them.
    fn each(&mut self, visit: impl FnMut(Parameter<'_>));
}

impl Parameters for Vec<Parameter<'_>> {
    fn each(&mut self, mut visit: impl FnMut(Parameter<'_>)) {
        for Parameter {
            name,
            shape,
            value,
            gradient,
        } in self
        {
            visit(Parameter {
                name,
                shape,
                value,
                gradient,
            });
        }
    }
}

/// One trainable weight of a `TrainModel`.
#[derive(Debug)]
pub struct Parameter<'a> {
    /// For LoRA PEFT's name without its prefix `base_model.model.` and suffix `.weight`
    /// (`model.layers.0.self_attn.q_proj.lora_A`), for full fine-tuning Hugging Face's
    /// (`model.layers.0.self_attn.q_proj.weight`).
    pub name: &'a str,
    /// Its shape, `[rows, columns]` but for norms; the values are row-major.
    pub shape: &'a [usize],
    /// Its values.
    pub value: &'a mut [f32],
    /// The gradient of the loss, added up since it was last set to zero.
    pub gradient: &'a mut [f32],
}
