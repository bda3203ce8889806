//! The model against golden values of transformers and PEFT: logits, losses and every gradient.

use std::sync::Arc;

use safetensors::SafeTensors;
use serde_json::Value;

use super::{
    Adapter, Batch, IGNORE, Llama, LoraModule, Masks, ModelConfig, Projection, RopeScaling,
    TrainModel,
};
use crate::{golden, weights::ModelFiles};

const VARIANTS: [&str; 2] = ["tied", "untied"];

/// The batch of `meta.json`, its padding left out, and the tokens' places in the padded `[2, 16]`.
pub(super) fn batch() -> (Batch, Vec<usize>) {
    let meta = golden::meta();
    let mut batch = Batch::default();
    let mut places = Vec::new();
    for row in 0..2 {
        let column = |name: &str| golden::numbers(&meta[name][row]);
        let length = column("attention_mask").iter().sum::<f64>() as usize;
        let ids: Vec<u32> = column("input_ids")[..length]
            .iter()
            .map(|&id| id as u32)
            .collect();
        let labels = column("labels");
        let shifted = (1..=length).map(|i| if i < length { labels[i] as i32 } else { IGNORE });
        batch.push_sequence(&ids, &shifted.collect::<Vec<_>>());
        places.extend((0..length).map(|i| row * 16 + i));
    }
    (batch, places)
}

/// A tensor of a golden file.
pub(super) fn tensor(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let view = file
        .tensor(name)
        .unwrap_or_else(|_| panic!("{name} is in the golden file"));
    view.data()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

pub(super) fn read(name: &str) -> Vec<u8> {
    std::fs::read(golden::path(name)).expect("the golden values are in the repository")
}

pub(super) fn model(variant: &str) -> Llama {
    Llama::load(&ModelFiles::open(&golden::path(variant)).unwrap()).unwrap()
}

fn with_rope(variant: &str, rope_scaling: RopeScaling) -> Llama {
    let files = ModelFiles::open(&golden::path(variant)).unwrap();
    let config = ModelConfig {
        rope_scaling,
        ..files.config.clone()
    };
    Llama::from_tensors(config, |name, shape| files.tensor(name, shape)).unwrap()
}

/// The golden adapter with its own scale, or another.
pub(super) fn adapter(variant: &str, config: &ModelConfig, scale: f32) -> Adapter {
    let bytes = read(&format!("{variant}/adapter/adapter_model.safetensors"));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut adapter = Adapter::empty(config);
    for layer in 0..config.num_hidden_layers {
        for projection in Projection::ALL {
            let matrix = |name| {
                tensor(
                    &file,
                    &format!(
                        "base_model.model.{}.{name}.weight",
                        projection.full_name(layer)
                    ),
                )
            };
            adapter.layers[layer][projection as usize] = Some(LoraModule {
                rank: 4,
                scale,
                a: matrix("lora_A"),
                b: matrix("lora_B"),
            });
        }
    }
    adapter
}

/// Asserts that values differ by no more than a few roundings of the largest among them.
pub(super) fn assert_near(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: number of values");
    let scale = expected.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= tolerance * scale,
            "{what}, value {i}: {found}, not {expected} (largest {scale})"
        );
    }
}

/// Compares logits with a golden `[2, 16, vocabulary]`, padding left out.
fn assert_logits(model: &mut TrainModel, file: &str) {
    let (batch, places) = batch();
    let found = model.logits(&batch).unwrap();
    let bytes = read(file);
    let golden = tensor(&SafeTensors::deserialize(&bytes).unwrap(), "logits");
    let vocabulary = golden.len() / 32;
    let expected: Vec<f32> = places
        .iter()
        .flat_map(|p| golden[p * vocabulary..][..vocabulary].to_vec())
        .collect();
    assert_near(file, &found, &expected, 2e-6);
}

/// Compares the mean loss with a golden one, and every gradient of it.
fn assert_gradients(model: &mut TrainModel, file: &str, prefix: &str, suffix: &str, loss: &Value) {
    let (batch, _) = batch();
    let scale = 1.0 / batch.labelled_tokens() as f32;
    let found = model.forward_backward(&batch, scale, Masks::of(0)).unwrap();
    let expected = loss.as_f64().unwrap();
    assert!(
        (found.mean() - expected).abs() < 2e-6 * expected,
        "loss {}, not {expected}",
        found.mean()
    );
    assert_eq!(model.evaluate(&batch).unwrap(), found);
    let bytes = read(file);
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let mut parameters = model.parameters_mut();
    let gradients = golden
        .names()
        .iter()
        .filter(|n| n.starts_with("grad."))
        .count();
    assert_eq!(parameters.len(), gradients, "every gradient is compared");
    for parameter in &mut parameters {
        let expected = tensor(&golden, &format!("grad.{prefix}{}{suffix}", parameter.name));
        assert_near(parameter.name, parameter.gradient, &expected, 5e-6);
    }
}

fn lora_model(variant: &str, scale: f32) -> TrainModel {
    let model = model(variant);
    let adapter = adapter(variant, model.config(), scale);
    TrainModel::new(Arc::new(model), &adapter).unwrap()
}

#[test]
fn full_model_matches_transformers_in_logits_loss_and_every_gradient() {
    for variant in VARIANTS {
        let mut model = TrainModel::full(model(variant)).unwrap();
        assert_logits(&mut model, &format!("{variant}/full.safetensors"));
        let loss = &golden::meta()["variants"][variant]["full_loss"];
        assert_gradients(
            &mut model,
            &format!("{variant}/full.safetensors"),
            "",
            "",
            loss,
        );
    }
}

#[test]
fn adapter_matches_peft_in_logits_loss_and_every_gradient() {
    for variant in VARIANTS {
        let mut model = lora_model(variant, 2.0);
        assert_logits(&mut model, &format!("{variant}/lora.safetensors"));
        let loss = &golden::meta()["variants"][variant]["lora_loss"];
        let file = format!("{variant}/lora.safetensors");
        assert_gradients(&mut model, &file, "base_model.model.", ".weight", loss);
    }
}

#[test]
fn rank_stabilised_scale_matches_peft() {
    for variant in VARIANTS {
        assert_logits(
            &mut lora_model(variant, 8.0 / 2.0),
            &format!("{variant}/rslora_logits.safetensors"),
        );
    }
}

#[test]
fn scaled_rotary_embeddings_match_transformers() {
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    for variant in VARIANTS {
        for (name, scaling) in [
            ("llama3", llama3.clone()),
            ("linear", RopeScaling::Linear { factor: 4.0 }),
        ] {
            let llama = with_rope(variant, scaling);
            let expected =
                golden::numbers(&golden::meta()["variants"][variant]["rope"][name]["inv_freq"]);
            for (found, expected) in llama.rotary.frequencies().iter().zip(&expected) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-6 * expected,
                    "{name}: {found}, not {expected}"
                );
            }
            let empty = Adapter::empty(llama.config());
            let mut model = TrainModel::new(Arc::new(llama), &empty).unwrap();
            assert_logits(
                &mut model,
                &format!("{variant}/rope_{name}_logits.safetensors"),
            );
        }
    }
}

#[test]
fn gradient_checkpointing_changes_no_bit() {
    let (batch, _) = batch();
    let gradients = |checkpointing: bool| -> Vec<Vec<f32>> {
        let mut model = lora_model("tied", 2.0);
        model.set_gradient_checkpointing(checkpointing);
        model.forward_backward(&batch, 1.0, Masks::of(0)).unwrap();
        model
            .parameters_mut()
            .iter()
            .map(|p| p.gradient.to_vec())
            .collect()
    };
    assert_eq!(gradients(false), gradients(true));
}

#[test]
fn gradients_do_not_depend_on_the_number_of_threads() {
    let (batch, _) = batch();
    let gradients = |threads: usize| -> Vec<Vec<f32>> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let mut model = lora_model("untied", 2.0);
            model.forward_backward(&batch, 1.0, Masks::of(0)).unwrap();
            model
                .parameters_mut()
                .iter()
                .map(|p| p.gradient.to_vec())
                .collect()
        })
    };
    let one = gradients(1);
    assert_eq!(one, gradients(2));
    assert_eq!(one, gradients(5));
}

#[test]
fn g084_dropout_repeats_for_its_seed_and_is_off_in_evaluation() {
    let (batch, _) = batch();
    let model = model("tied");
    let mut dropped = adapter("tied", model.config(), 2.0);
    dropped.dropout = 0.5;
    let mut dropped = TrainModel::new(Arc::new(model), &dropped).unwrap();
    let mut plain = lora_model("tied", 2.0);
    let mut loss = |seed| {
        dropped
            .forward_backward(&batch, 1.0, Masks::of(seed))
            .unwrap()
            .nll_sum
    };
    let first = loss(1);
    assert_eq!(first, loss(1));
    assert_ne!(first, loss(2));
    assert_eq!(
        dropped.evaluate(&batch).unwrap(),
        plain.evaluate(&batch).unwrap()
    );
}

#[test]
fn dropout_drops_the_same_values_however_a_step_is_cut_into_batches() {
    let model = Arc::new(model("tied"));
    let mut adapter = adapter("tied", model.config(), 2.0);
    adapter.dropout = 0.5;
    let mut model = TrainModel::new(model, &adapter).unwrap();
    let rows: [(&[u32], &[i32]); 2] = [
        (&[1, 2, 3, 4, 5], &[2, 3, 4, 5, 6]),
        (&[7, 8, 9], &[8, 9, 1]),
    ];
    let mut whole = Batch::default();
    let mut first_token = 0;
    let mut parts = 0.0;
    for (ids, targets) in rows {
        whole.push_sequence(ids, targets);
        let mut part = Batch::default();
        part.push_sequence(ids, targets);
        let masks = Masks {
            seed: 5,
            first_token,
        };
        parts += model.forward_backward(&part, 1.0, masks).unwrap().nll_sum;
        first_token += ids.len() as u32;
    }
    let whole = model
        .forward_backward(&whole, 1.0, Masks::of(5))
        .unwrap()
        .nll_sum;
    assert!((whole - parts).abs() < 1e-4 * whole, "{whole}, {parts}");
}

#[test]
fn gradients_with_dropout_follow_the_loss() {
    let (batch, _) = batch();
    let base = Arc::new(model("untied"));
    let mut start = adapter("untied", base.config(), 2.0);
    start.dropout = 0.3;
    let loss = |adapter: &Adapter| {
        let mut model = TrainModel::new(base.clone(), adapter).unwrap();
        model
            .forward_backward(&batch, 1.0, Masks::of(9))
            .unwrap()
            .nll_sum
    };
    let mut model = TrainModel::new(base.clone(), &start).unwrap();
    model.forward_backward(&batch, 1.0, Masks::of(9)).unwrap();
    for projection in Projection::ALL {
        let index = 2 * projection as usize;
        let gradient = model.parameters_mut()[index].gradient.to_vec();
        let largest = (0..gradient.len())
            .max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs()))
            .unwrap();
        let changed = |change: f32| {
            let mut adapter = start.clone();
            adapter.layers[0][projection as usize].as_mut().unwrap().a[largest] += change;
            loss(&adapter)
        };
        let slope = (changed(2e-3) - changed(-2e-3)) / 4e-3;
        let error = (slope - f64::from(gradient[largest])).abs();
        assert!(
            error < 0.01 * slope.abs() + 0.02,
            "{projection:?}: {} but slope {slope}",
            gradient[largest]
        );
    }
}

#[test]
fn gradients_add_up_until_they_are_set_to_zero() {
    let (batch, _) = batch();
    let mut model = lora_model("tied", 2.0);
    model.forward_backward(&batch, 1.0, Masks::of(0)).unwrap();
    let once: Vec<f32> = model.parameters_mut()[0].gradient.to_vec();
    model.forward_backward(&batch, 1.0, Masks::of(0)).unwrap();
    let twice: Vec<f32> = model.parameters_mut()[0].gradient.to_vec();
    assert_near(
        "twice",
        &twice,
        &once.iter().map(|g| 2.0 * g).collect::<Vec<_>>(),
        1e-6,
    );
    model.zero_gradients();
    assert!(
        model
            .parameters_mut()
            .iter()
            .all(|p| p.gradient.iter().all(|&g| g == 0.0))
    );
}

#[test]
fn impossible_batches_are_refused() {
    let mut model = lora_model("tied", 2.0);
    let (good, _) = batch();
    let refused = |change: &dyn Fn(&mut Batch), model: &mut TrainModel| {
        let mut batch = good.clone();
        change(&mut batch);
        assert!(model.forward_backward(&batch, 1.0, Masks::of(0)).is_err());
    };
    refused(&|b| b.ids[0] = 128, &mut model);
    refused(&|b| b.targets[0] = 128, &mut model);
    refused(&|b| b.targets[0] = -1, &mut model);
    refused(&|b| b.positions.truncate(3), &mut model);
    refused(&|b| b.offsets = vec![0, 5], &mut model);
    refused(&|b| *b = Batch::default(), &mut model);
}
