//! The weights with which training begins.

use super::AdapterConfig;
use crate::EngineError;
use crate::model::{Adapter, LoraModule, ModelConfig};
use crate::random::Random;

/// A fresh adapter: A as PEFT draws it (evenly over ± 1 / sqrt(inputs)), B zero, so that it changes
/// nothing yet.
///
/// # Errors
/// [`EngineError::InvalidSetting`] naming targets that match no layer.
pub fn fresh(
    config: &AdapterConfig,
    model: &ModelConfig,
    seed: u64,
) -> Result<Adapter, EngineError> {
    let targets = config
        .targets(model)
        .map_err(|message| EngineError::InvalidSetting {
            field: "target_modules",
            message,
        })?;
    let mut adapter = Adapter::empty(model);
    adapter.dropout = config.lora_dropout as f32;
    for target in targets {
        let [outputs, inputs] = model.projection_shape(target.projection);
        let purpose = format!("adapter {}", target.projection.full_name(target.layer));
        let mut random = Random::new(seed, &purpose);
        // Kaiming's uniform distribution with a = sqrt(5) over the inputs has this bound.
        let bound = 1.0 / (inputs as f32).sqrt();
        adapter.layers[target.layer][target.projection as usize] = Some(LoraModule {
            rank: target.rank,
            scale: target.scale as f32,
            a: (0..target.rank * inputs)
                .map(|_| bound * random.symmetric_f32())
                .collect(),
            b: vec![0.0; outputs * target.rank],
        });
    }
    adapter.validate(model)?;
    Ok(adapter)
}
