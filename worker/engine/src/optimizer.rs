//! Drives AdamW over all trainable weights: clipping, moments, and steps that are skipped.

use std::path::Path;

use trainyard_shared::training::TrainingConfig;

use super::EngineError;
use super::adapter::{read_tensor, write_tensors};
use super::device::run;
use super::model::{Parameter, Parameters};
use super::ops::adamw::{AdamW, adamw_step};
use super::ops::gradient_norm::{clip_factor, squared_norm};
use super::weights::SafetensorsFile;

/// AdamW with its moments.
#[derive(Debug, Clone)]
pub struct Optimizer {
    settings: AdamW,
    max_grad_norm: f64,
    /// First and second moment of each parameter, in the parameters' order.
    moments: Vec<[Vec<f32>; 2]>,
}

impl Optimizer {
    /// An optimizer that has made no update.
    pub fn new(config: &TrainingConfig, parameters: &[Parameter<'_>]) -> Self {
        let zeros = |parameter: &Parameter<'_>| {
            [
                vec![0.0; parameter.value.len()],
                vec![0.0; parameter.value.len()],
            ]
        };
        Self {
            settings: AdamW {
                learning_rate: 0.0,
                beta1: config.adam_beta1,
                beta2: config.adam_beta2,
                epsilon: config.adam_epsilon,
                weight_decay: config.weight_decay,
                step: 0,
            },
            max_grad_norm: config.max_grad_norm,
            moments: parameters.iter().map(zeros).collect(),
        }
    }

    /// Updates made so far.
    pub fn updates(&self) -> u64 {
        self.settings.step
    }

    /// Clips the gradients and updates the weights. Gives the norm of all gradients before clipping;
    /// where it is not finite, nothing is updated and the step does not count for AdamW.
    pub fn update(&mut self, parameters: &mut (impl Parameters + Send), learning_rate: f64) -> f64 {
        // On the engine's threads as a whole, rather than going to them and back for every parameter.
        run(|| self.update_here(parameters, learning_rate))
    }

    /// [`Optimizer::update`] on the calling thread and its pool.
    fn update_here(&mut self, parameters: &mut impl Parameters, learning_rate: f64) -> f64 {
        let mut squares = 0.0;
        parameters.each(|parameter| squares += squared_norm(parameter.gradient));
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return norm;
        }
        self.settings.step += 1;
        self.settings.learning_rate = learning_rate;
        let clip = clip_factor(norm, self.max_grad_norm) as f32;
        let settings = self.settings;
        let mut moments = self.moments.iter_mut();
        parameters.each(|parameter| {
            let Some([m, v]) = moments.next() else {
                return;
            };
            let settings = AdamW {
                weight_decay: match decays(parameter.name) {
                    true => settings.weight_decay,
                    false => 0.0,
                },
                ..settings
            };
            adamw_step(parameter.value, m, v, parameter.gradient, clip, &settings);
        });
        norm
    }

    /// Writes the moments into a file.
    ///
    /// # Errors
    /// [`EngineError::Io`] where the disk does not take it.
    pub fn save(&self, path: &Path, parameters: &[Parameter<'_>]) -> Result<(), EngineError> {
        let mut tensors = Vec::new();
        for (parameter, [m, v]) in parameters.iter().zip(&self.moments) {
            let [m_name, v_name] = moment_names(parameter.name);
            tensors.push((m_name, parameter.shape.to_vec(), m.as_slice()));
            tensors.push((v_name, parameter.shape.to_vec(), v.as_slice()));
        }
        write_tensors(path, &tensors)
    }

    /// Takes up the moments of a file, after `updates` updates.
    ///
    /// # Errors
    /// An [`EngineError`] naming the tensor that is missing or of another shape.
    pub fn restore(
        &mut self,
        path: &Path,
        parameters: &[Parameter<'_>],
        updates: u64,
    ) -> Result<(), EngineError> {
        let file = SafetensorsFile::open(path)?;
        for (parameter, moments) in parameters.iter().zip(&mut self.moments) {
            let [m, v] = moment_names(parameter.name);
            *moments = [
                read_tensor(&file, &m, parameter.shape)?,
                read_tensor(&file, &v, parameter.shape)?,
            ];
        }
        self.settings.step = updates;
        Ok(())
    }
}

/// Whether weight decay acts on a parameter: on all but biases and the weights of norms, as in transformers.
fn decays(name: &str) -> bool {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    !(name.ends_with(".bias") || module.ends_with("norm"))
}

fn moment_names(parameter: &str) -> [String; 2] {
    ["m", "v"].map(|moment| format!("{parameter}.{moment}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(max_grad_norm: f64) -> TrainingConfig {
        TrainingConfig {
            max_grad_norm,
            weight_decay: 0.0,
            ..TrainingConfig::default()
        }
    }

    /// Two weights of one value each, updated once by these gradients.
    fn updated(gradients: [f32; 2], max_grad_norm: f64) -> (f64, [f32; 2], u64) {
        let (mut values, mut gradients) = ([1.0f32, 1.0], gradients);
        let ([a, b], [da, db]) = (&mut values, &mut gradients);
        let parameter = |name, value, gradient| Parameter {
            name,
            shape: &[1, 1],
            value: std::slice::from_mut(value),
            gradient: std::slice::from_mut(gradient),
        };
        let mut parameters = vec![parameter("a", a, da), parameter("b", b, db)];
        let mut optimizer = Optimizer::new(&config(max_grad_norm), &parameters);
        let norm = optimizer.update(&mut parameters, 0.1);
        let updates = optimizer.updates();
        (norm, values, updates)
    }

    #[test]
    fn the_norm_is_of_all_gradients_together_before_clipping() {
        let (norm, values, updates) = updated([3.0, 4.0], 1.0);
        assert!((norm - 5.0).abs() < 1e-6);
        assert_eq!(updates, 1);
        assert!(
            values.iter().all(|value| (value - 0.9).abs() < 1e-4),
            "AdamW's first step is the rate: {values:?}"
        );
    }

    #[test]
    fn biases_and_norms_do_not_decay() {
        for name in [
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.q_proj.lora_A",
            "lm_head.weight",
        ] {
            assert!(decays(name), "{name}");
        }
        for name in [
            "model.norm.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.self_attn.q_proj.bias",
        ] {
            assert!(!decays(name), "{name}");
        }
    }

    #[test]
    fn g078_a_norm_that_is_not_finite_updates_nothing_and_does_not_count() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (norm, values, updates) = updated([1.0, bad], 1.0);
            assert!(!norm.is_finite());
            assert_eq!((values, updates), ([1.0, 1.0], 0));
        }
    }

    #[test]
    fn g078_a_huge_gradient_that_is_finite_is_clipped_to_finite_weights() {
        let (norm, values, _) = updated([1e30, 1e30], 1.0);
        assert!(norm.is_finite() && norm > 1e30);
        assert!(values.iter().all(|value| value.is_finite()));
    }
}
