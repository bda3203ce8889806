//! Models and adapters as GGUF files, as llama.cpp reads them.

use std::path::Path;

use super::merge::MergedWeights;
use super::{FloatType, Watch};
use crate::EngineError;
use crate::adapter::SavedAdapter;
use crate::gguf::{
    ROPE_DIVISORS, Value, WrittenTensor, WrittenType, architecture, gguf_name, model_metadata,
    rope_divisors, rows_in_file_order, weight_in_file_order, write_file,
};
use crate::model::{LoraModule, ModelConfig, Projection, Weight};
use crate::weights::ModelFiles;

/// Version of the quantised types' layout, as `general.quantization_version` says it.
const QUANTIZATION_VERSION: i128 = 2;

/// Writes a whole model, `adapter` merged into it: matrices in `written_type`, all else in f32. A matrix whose rows are
/// no whole blocks of a quantised type is written in f16.
pub(super) fn write_merged(
    path: &Path,
    base: &ModelFiles,
    adapter: Option<&SavedAdapter>,
    name: &str,
    written_type: WrittenType,
    watch: &mut Watch<'_>,
) -> Result<(), EngineError> {
    let mut merged = MergedWeights::new(base, adapter, watch);
    let config = &merged.config().clone();
    let mut metadata = general(config, "model", name, written_type);
    metadata.extend(model_metadata(config)?);
    metadata.extend(base.gguf_tokenizer()?);
    let weights = Weight::all(config);
    let divisors = rope_divisors(config);
    let mut tensors = Vec::new();
    tensors.extend(divisors.as_ref().map(|divisors| WrittenTensor {
        name: ROPE_DIVISORS.to_owned(),
        shape: vec![divisors.len()],
        written_type: WrittenType::Float(FloatType::F32),
    }));
    let first_weight = tensors.len();
    for weight in &weights {
        let shape = weight.shape(config);
        tensors.push(WrittenTensor {
            name: file_name(&weight.name())?,
            written_type: type_of(&shape, written_type),
            shape,
        });
    }
    write_file(path, &metadata, &tensors, |i| {
        let Some(i) = i.checked_sub(first_weight) else {
            return Ok(divisors.clone().unwrap_or_default());
        };
        let weight = weights[i];
        let values = merged.values(&weight.name(), &weight.shape(config))?;
        Ok(weight_in_file_order(values, weight, config))
    })
}

/// Writes an adapter by itself, which llama.cpp adds to its base model at run time.
///
/// llama.cpp multiplies each pair by alpha over the pair's rank. Where the adapter has another scale for a pair (by
/// rank-stabilisation or by patterns), B is multiplied by what is missing.
pub(super) fn write_lora(
    path: &Path,
    config: &ModelConfig,
    adapter: &SavedAdapter,
    name: &str,
    float_type: FloatType,
    watch: &mut Watch<'_>,
) -> Result<(), EngineError> {
    if !adapter.whole.is_empty() {
        let what = "modules_to_save in a GGUF adapter (it can be merged)";
        return Err(EngineError::Unsupported(what.to_owned()));
    }
    let alpha = adapter.config.lora_alpha;
    let written_type = WrittenType::Float(float_type);
    let mut metadata = general(config, "adapter", name, written_type);
    metadata.push(("adapter.type".to_owned(), Value::String("lora".to_owned())));
    metadata.push(("adapter.lora.alpha".to_owned(), Value::Float(alpha)));
    let mut tensors = Vec::new();
    let mut pairs: Vec<(Projection, &LoraModule)> = Vec::new();
    for layer in 0..config.num_hidden_layers {
        for projection in Projection::ALL {
            let Some(module) = adapter.pairs.module(layer, projection) else {
                continue;
            };
            let [outputs, inputs] = config.projection_shape(projection);
            let weight = file_name(&Weight::Projection(layer, projection).name())?;
            for (suffix, shape) in [
                ("lora_a", [module.rank, inputs]),
                ("lora_b", [outputs, module.rank]),
            ] {
                tensors.push(WrittenTensor {
                    name: format!("{weight}.{suffix}"),
                    shape: shape.to_vec(),
                    written_type,
                });
            }
            pairs.push((projection, module));
        }
    }
    let total = tensors.len() as u64;
    write_file(path, &metadata, &tensors, |i| {
        watch.check_stop()?;
        watch.tell(i as u64 + 1, total);
        let (projection, module) = pairs[i / 2];
        if i % 2 == 0 {
            return Ok(module.a.clone());
        }
        let missing = scale_beyond_alpha(module, alpha)?;
        let b = module.b.iter().map(|b| b * missing).collect();
        Ok(rows_in_file_order(b, projection, config))
    })
}

/// What a pair's scale is more than alpha over its rank.
fn scale_beyond_alpha(module: &LoraModule, alpha: f64) -> Result<f32, EngineError> {
    let plain = (alpha / module.rank as f64) as f32;
    if plain == module.scale {
        return Ok(1.0);
    }
    if alpha == 0.0 {
        let message = "0 beside an alpha_pattern cannot be written as a GGUF adapter".to_owned();
        return Err(EngineError::InvalidSetting {
            field: "lora_alpha",
            message,
        });
    }
    Ok(module.scale / plain)
}

fn general(
    config: &ModelConfig,
    kind: &str,
    name: &str,
    written_type: WrittenType,
) -> Vec<(String, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let mut keys = vec![
        ("general.architecture", text(architecture(config))),
        ("general.type", text(kind)),
        ("general.name", text(name)),
        (
            "general.file_type",
            Value::Integer(written_type.file_type()),
        ),
    ];
    if written_type == WrittenType::Q8_0 {
        let version = Value::Integer(QUANTIZATION_VERSION);
        keys.push(("general.quantization_version", version));
    }
    keys.into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn file_name(weight: &str) -> Result<String, EngineError> {
    gguf_name(weight)
        .ok_or_else(|| EngineError::Unsupported(format!("weight {weight} in a GGUF file")))
}

fn type_of(shape: &[usize], matrices: WrittenType) -> WrittenType {
    let values_per_block = matrices.block_type().values_per_block();
    match shape {
        [_] => WrittenType::Float(FloatType::F32),
        [.., row] if row.is_multiple_of(values_per_block) => matrices,
        _ => WrittenType::Float(FloatType::F16),
    }
}
