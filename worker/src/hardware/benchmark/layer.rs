//! The largest batch that a training step takes: one layer of SmolLM2-135M's width, forward and backward.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::EngineError;
use crate::engine::model::{
    Adapter, Architecture, Batch, Llama, LoraModule, Masks, ModelConfig, Projection, RopeScaling,
    TrainModel,
};
use crate::hardware::{BYTES_PER_GB, Machine};

/// Tokens of one sequence.
const SEQUENCE: usize = 128;
/// Rank of the adapter on every projection.
const RANK: usize = 16;
/// No more sequences than this are tried.
const LARGEST: u64 = 256;
/// Layers of the models that this is about; activations of all of them are kept at once.
const LAYERS: f64 = 30.0;
/// So much of the memory may be used.
const MEMORY_SHARE: f64 = 0.7;

/// The largest batch in sequences that was trained within `budget` and fits the machine's memory with
/// 30 layers. None where not even one sequence could be trained.
pub(super) fn largest_batch(machine: &Machine, budget: Duration) -> Option<u64> {
    let start = Instant::now();
    let mut model = one_layer()
        .inspect_err(|error| tracing::warn!(%error, "largest batch cannot be measured"))
        .ok()?;
    let memory_bytes = machine.ram_total_gb * BYTES_PER_GB * MEMORY_SHARE;
    let mut largest = None;
    let mut sequences = 1;
    while sequences <= LARGEST && activations_bytes(sequences) * LAYERS < memory_bytes {
        let step = Instant::now();
        if let Err(error) = model.forward_backward(&batch(sequences), 1.0, Masks::of(0)) {
            tracing::debug!(%error, sequences, "batch does not fit");
            break;
        }
        largest = Some(sequences);
        // The next one takes twice as long.
        if start.elapsed() + 2 * step.elapsed() > budget {
            break;
        }
        sequences *= 2;
    }
    largest
}

/// What one layer keeps of a batch for its backward pass, about: eleven vectors of the hidden width and
/// four of the intermediate width for each token.
fn activations_bytes(sequences: u64) -> f64 {
    let config = config();
    let values = 11 * config.hidden_size + 4 * config.intermediate_size;
    (sequences as usize * SEQUENCE * values * size_of::<f32>()) as f64
}

fn config() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        num_hidden_layers: 1,
        hidden_size: 576,
        intermediate_size: 1536,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        vocab_size: 2048,
        max_position_embeddings: SEQUENCE,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::Default,
        tie_word_embeddings: true,
        biased: Vec::new(),
        qk_norm: false,
        sliding_window: None,
    }
}

fn one_layer() -> Result<TrainModel, EngineError> {
    let config = config();
    let mut adapter = Adapter::empty(&config);
    for projection in Projection::ALL {
        let [outputs, inputs] = config.projection_shape(projection);
        adapter.layers[0][projection as usize] = Some(LoraModule {
            rank: RANK,
            scale: 2.0,
            a: vec![0.01; RANK * inputs],
            b: vec![0.0; outputs * RANK],
        });
    }
    let model = Llama::from_tensors(config, |_, shape| {
        // Any small values do; a pattern keeps them from being all alike.
        let count = shape.iter().product();
        Ok((0..count)
            .map(|index| ((index % 17) as f32 - 8.0) * 0.005)
            .collect())
    })?;
    TrainModel::new(Arc::new(model), &adapter)
}

fn batch(sequences: u64) -> Batch {
    let ids: Vec<u32> = (0..SEQUENCE as u32).collect();
    let targets: Vec<i32> = (1..=SEQUENCE as i32).collect();
    let mut batch = Batch::default();
    for _ in 0..sequences {
        batch.push_sequence(&ids, &targets);
    }
    batch
}
