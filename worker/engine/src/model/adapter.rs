//! LoRA weights: a low-rank pair of matrices beside any of a model's linear layers.

use super::{ModelConfig, Projection};
use crate::EngineError;

/// LoRA weights for a whole model: at most one pair per layer and projection.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    /// Per layer, the pair of each projection (by `Projection as usize`), or none where it is not adapted.
    pub layers: Vec<[Option<LoraModule>; 7]>,
    /// Probability with which an input of A is dropped while training, 0 up to but not including 1.
    pub dropout: f32,
}

/// One pair: the layer's output becomes `W x + scale * B (A x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraModule {
    /// Rank of the pair.
    pub rank: usize,
    /// alpha / rank, or alpha / sqrt(rank) for rank-stabilised LoRA.
    pub scale: f32,
    /// A, row-major `[rank, in]`.
    pub a: Vec<f32>,
    /// B, row-major `[out, rank]`.
    pub b: Vec<f32>,
}

impl Adapter {
    /// An adapter without any pair.
    pub fn empty(config: &ModelConfig) -> Self {
        Self {
            layers: vec![[const { None }; 7]; config.num_hidden_layers],
            dropout: 0.0,
        }
    }

    /// The pair beside a projection, if there is one.
    pub fn module(&self, layer: usize, projection: Projection) -> Option<&LoraModule> {
        self.layers[layer][projection as usize].as_ref()
    }

    /// Number of weights.
    pub fn parameter_count(&self) -> u64 {
        let modules = self.layers.iter().flatten().flatten();
        modules.map(|m| (m.a.len() + m.b.len()) as u64).sum()
    }

    /// Checks every pair's size against a model.
    ///
    /// # Errors
    /// [`EngineError::ShapeMismatch`] naming the first matrix of another shape,
    /// [`EngineError::InvalidSetting`] for a dropout or scale out of range.
    pub fn validate(&self, config: &ModelConfig) -> Result<(), EngineError> {
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(EngineError::InvalidSetting {
                field: "lora_dropout",
                message: format!("{} is not in 0..1", self.dropout),
            });
        }
        if self.layers.len() != config.num_hidden_layers {
            return Err(EngineError::Unsupported(format!(
                "an adapter of {} layers for a model of {}",
                self.layers.len(),
                config.num_hidden_layers
            )));
        }
        for (layer, modules) in self.layers.iter().enumerate() {
            for projection in Projection::ALL {
                let Some(module) = &modules[projection as usize] else {
                    continue;
                };
                let [output, input] = config.projection_shape(projection);
                let rank = module.rank;
                for (matrix, values, expected) in [
                    ("lora_A", &module.a, [rank, input]),
                    ("lora_B", &module.b, [output, rank]),
                ] {
                    if rank == 0 || values.len() != expected[0] * expected[1] {
                        return Err(EngineError::ShapeMismatch {
                            name: format!("{}.{matrix}", projection.full_name(layer)),
                            expected: expected.to_vec(),
                            found: vec![values.len()],
                        });
                    }
                }
                if !module.scale.is_finite() {
                    return Err(EngineError::InvalidSetting {
                        field: "lora_alpha",
                        message: format!("gives a scale of {}", module.scale),
                    });
                }
            }
        }
        Ok(())
    }
}
