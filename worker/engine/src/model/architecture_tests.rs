//! Every architecture against golden values of transformers and PEFT: logits, losses, every gradient, steps, decoding.

use std::sync::Arc;

use safetensors::SafeTensors;
use serde_json::Value;
use trainyard_shared::training::TrainingConfig;

use super::{
    Adapter, Batch, CacheRoom, Context, Decoder, IGNORE, Llama, LoadedAdapter, LoraModule, Masks,
    ModelConfig, Prefill, Projection, RopeScaling, TrainModel,
    golden_tests::{assert_near, read, tensor},
};
use crate::{
    adapter::named_tensors,
    golden,
    ops::rotary::{Rotary, rotary_one},
    optimizer::Optimizer,
    weights::{ModelFiles, config_of},
};

const ARCHITECTURES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

fn meta() -> Value {
    golden::json("architectures/meta.json")
}

/// The golden rows one behind the other, without their padding.
fn batch() -> Batch {
    let meta = meta();
    let mut batch = Batch::default();
    for (row, length) in golden::numbers(&meta["lengths"]).iter().enumerate() {
        let column = |name: &str| golden::numbers(&meta[name][row])[..*length as usize].to_vec();
        let ids: Vec<u32> = column("input_ids").iter().map(|&id| id as u32).collect();
        let labels = column("labels");
        let mut targets: Vec<i32> = labels[1..].iter().map(|&label| label as i32).collect();
        targets.push(IGNORE);
        batch.push_sequence(&ids, &targets);
    }
    batch
}

fn model(name: &str) -> Llama {
    let folder = golden::path("architectures").join(name);
    Llama::load(&ModelFiles::open(&folder).unwrap()).unwrap()
}

fn golden_file(name: &str) -> Vec<u8> {
    read(&format!("architectures/{name}/golden.safetensors"))
}

fn adapter(name: &str, config: &ModelConfig) -> Adapter {
    let bytes = golden_file(name);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut adapter = Adapter::empty(config);
    for layer in 0..config.num_hidden_layers {
        for projection in Projection::ALL {
            let matrix = |matrix| {
                let module = projection.full_name(layer);
                tensor(
                    &file,
                    &format!("adapter.base_model.model.{module}.{matrix}.weight"),
                )
            };
            adapter.layers[layer][projection as usize] = Some(LoraModule {
                rank: 4,
                scale: 2.0,
                a: matrix("lora_A"),
                b: matrix("lora_B"),
            });
        }
    }
    adapter
}

fn lora_model(name: &str) -> TrainModel {
    let model = model(name);
    let adapter = adapter(name, model.config());
    TrainModel::new(Arc::new(model), &adapter).unwrap()
}

/// Compares loss and every gradient with those whose names begin with `prefix`.
fn assert_gradients(name: &str, model: &mut TrainModel, loss: &Value, prefix: &str, suffix: &str) {
    let batch = batch();
    let scale = 1.0 / batch.labelled_tokens() as f32;
    let found = model.forward_backward(&batch, scale, Masks::of(0)).unwrap();
    let expected = loss.as_f64().unwrap();
    let error = (found.mean() - expected).abs();
    assert!(
        error < 2e-6 * expected,
        "{name}: loss {}, not {expected}",
        found.mean()
    );
    let bytes = golden_file(name);
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let mut parameters = model.parameters_mut();
    let compared = golden
        .names()
        .iter()
        .filter(|n| n.starts_with(prefix))
        .count();
    assert_eq!(
        parameters.len(),
        compared,
        "{name}: every gradient is compared"
    );
    for parameter in &mut parameters {
        let expected = tensor(&golden, &format!("{prefix}{}{suffix}", parameter.name));
        let what = format!("{name}: {}", parameter.name);
        assert_near(&what, parameter.gradient, &expected, 1e-5);
    }
}

#[test]
fn g059_each_architecture_in_f32_f16_and_bf16_together_matches_transformers_in_every_gradient() {
    for name in ARCHITECTURES {
        let mut model = TrainModel::full(model(name)).unwrap();
        let bytes = golden_file(name);
        let expected = tensor(&SafeTensors::deserialize(&bytes).unwrap(), "logits");
        assert_near(name, &model.logits(&batch()).unwrap(), &expected, 3e-6);
        let loss = &meta()["models"][name]["full_loss"];
        assert_gradients(name, &mut model, loss, "full.grad.", "");
    }
}

#[test]
fn g058_the_head_of_a_tied_model_is_its_embedding_and_an_adapter_holds_no_full_matrix() {
    let model = model("qwen2");
    assert!(std::ptr::eq(model.head(), &model.embedding));
    let adapter = adapter("qwen2", model.config());
    for (name, shape, _) in named_tensors(&adapter, model.config()) {
        assert!(name.contains(".lora_"), "{name}");
        assert!(
            shape.contains(&4),
            "{name} of {shape:?} has the pair's rank"
        );
    }
}

#[test]
fn an_adapter_on_each_architecture_matches_peft_in_loss_and_every_gradient() {
    for name in ARCHITECTURES {
        let loss = &meta()["models"][name]["lora_loss"];
        let prefix = "lora.grad.base_model.model.";
        assert_gradients(name, &mut lora_model(name), loss, prefix, ".weight");
    }
}

#[test]
fn steps_on_each_architecture_follow_those_of_torch() {
    let adamw = &golden::meta()["adamw"];
    let number = |value: &Value| value.as_f64().unwrap();
    let config = TrainingConfig {
        adam_beta1: number(&adamw["betas"][0]),
        adam_beta2: number(&adamw["betas"][1]),
        adam_epsilon: number(&adamw["eps"]),
        weight_decay: number(&adamw["weight_decay"]),
        max_grad_norm: number(&golden::meta()["clip"]),
        ..TrainingConfig::default()
    };
    let batch = batch();
    let scale = 1.0 / batch.labelled_tokens() as f32;
    for name in ARCHITECTURES {
        let full = TrainModel::full(model(name)).unwrap();
        for (kind, mut model) in [("full", full), ("lora", lora_model(name))] {
            let mut optimizer = Optimizer::new(&config, &model.parameters_mut());
            for expected in meta()["models"][name]["steps"][kind].as_array().unwrap() {
                model.zero_gradients();
                let loss = model
                    .forward_backward(&batch, scale, Masks::of(0))
                    .unwrap()
                    .mean();
                let norm = optimizer.update(&mut model, number(&adamw["lr"]));
                for (found, name) in [(loss, "loss_before"), (norm, "grad_norm_before_clip")] {
                    let expected = number(&expected[name]);
                    // AdamW divides by the gradient's size: where that is near zero, rounding decides a step.
                    let near = (found - expected).abs() < 2e-4 * expected;
                    assert!(near, "{kind} {name}: {found}, not {expected}");
                }
            }
        }
    }
}

#[test]
fn gradient_checkpointing_changes_no_bit_in_any_architecture() {
    for name in ARCHITECTURES {
        let gradients = |checkpointing: bool| -> Vec<Vec<f32>> {
            let mut model = TrainModel::full(model(name)).unwrap();
            model.set_gradient_checkpointing(checkpointing);
            model.forward_backward(&batch(), 1.0, Masks::of(0)).unwrap();
            let parameters = model.parameters_mut();
            parameters.iter().map(|p| p.gradient.to_vec()).collect()
        };
        assert!(gradients(false) == gradients(true), "{name}");
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap() as u32
}

fn context(config: &ModelConfig, adapter: &Adapter) -> Context {
    let adapter = LoadedAdapter::new(config, adapter).unwrap();
    Context::new(config, Arc::new(adapter), CacheRoom::unlimited())
}

#[test]
fn the_greedy_continuation_of_each_architecture_is_that_of_transformers() {
    let meta = meta();
    for name in ARCHITECTURES {
        let prompt: Vec<u32> = golden::numbers(&meta["input_ids"][0])[..12]
            .iter()
            .map(|&id| id as u32)
            .collect();
        let (last, before) = prompt.split_last().unwrap();
        let mut decoder = Decoder::new(Arc::new(model(name)));
        let config = decoder.model().config().clone();
        let mut context = context(&config, &Adapter::empty(&config));
        let done = decoder.prefill(&mut context, before, &|| false).unwrap();
        assert_eq!(done, Prefill::Done);
        let mut next = *last;
        for expected in golden::numbers(&meta["models"][name]["greedy_from_12_of_row_0"]) {
            context.make_room(1).unwrap();
            next = argmax(decoder.step(&mut [(&mut context, next)]).unwrap());
            assert_eq!(f64::from(next), expected, "{name} at {}", context.tokens());
        }
    }
}

#[test]
fn eight_streams_of_each_architecture_give_the_logits_of_a_whole_batch() {
    const STREAMS: usize = 8;
    for name in ARCHITECTURES {
        let model = Arc::new(model(name));
        let config = model.config().clone();
        let adapters = [Adapter::empty(&config), adapter(name, &config)];
        let row = |stream: usize| -> Vec<u32> {
            (0..90)
                .map(|i| ((i * 7 + stream * 13) % 61) as u32 + 3)
                .collect()
        };
        let whole = |stream: usize| {
            let mut batch = Batch::default();
            batch.push_sequence(&row(stream), &[IGNORE; 90]);
            let mut model = TrainModel::new(model.clone(), &adapters[stream % 2]).unwrap();
            model.logits(&batch).unwrap()
        };
        let expected: Vec<Vec<f32>> = (0..STREAMS).map(whole).collect();
        let mut decoder = Decoder::new(model.clone());
        let mut contexts: Vec<Context> = (0..STREAMS)
            .map(|stream| {
                let mut context = context(&config, &adapters[stream % 2]);
                let prompt = 32 * (stream % 3);
                for part in row(stream)[..prompt].chunks(32) {
                    decoder.prefill(&mut context, part, &|| false).unwrap();
                }
                context
            })
            .collect();
        for _ in 0..26 {
            let mut next: Vec<(&mut Context, u32)> = Vec::new();
            for (stream, context) in contexts.iter_mut().enumerate() {
                context.make_room(1).unwrap();
                let token = row(stream)[context.tokens()];
                next.push((context, token));
            }
            let logits = decoder.step(&mut next).unwrap().to_vec();
            for (stream, found) in logits.chunks(config.vocab_size).enumerate() {
                let place = contexts[stream].tokens() - 1;
                let expected = &expected[stream][place * config.vocab_size..][..config.vocab_size];
                assert_near(
                    &format!("{name}, stream {stream} at {place}"),
                    found,
                    expected,
                    1e-5,
                );
            }
        }
    }
}

#[test]
fn rotary_frequencies_and_angles_match_transformers() {
    let golden = golden::json("architectures/ropes.json");
    for (name, expected) in golden["ropes"].as_object().unwrap() {
        let mut json = golden::json("tied/config.json");
        json["head_dim"] = 32.into();
        json["max_position_embeddings"] = 8192.into();
        json["rope_parameters"] = expected["rope_parameters"].clone();
        let config = config_of(&json).unwrap();
        let rotary = Rotary::new(&config);
        let inv_freq = golden::numbers(&expected["inv_freq"]);
        for (found, expected) in rotary.frequencies().iter().zip(&inv_freq) {
            // One rounding of f32.
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error <= 1.2e-7 * expected,
                "{name}: {found}, not {expected}"
            );
        }
        if let RopeScaling::Yarn {
            attention_factor, ..
        } = config.rope_scaling
        {
            let expected = expected["attention_factor"].as_f64().unwrap();
            assert!((attention_factor - expected).abs() < 1e-12, "{name}");
        }
        for (row, position) in golden::numbers(&golden["positions"]).iter().enumerate() {
            // Turned out of the first half, cosines stay there and sines come into the second.
            let mut head = [[1.0; 16], [0.0; 16]].concat();
            let turns: Vec<(f32, f32)> = rotary.turns(*position as u32).collect();
            rotary_one(&mut head, &turns);
            let golden = ["cos", "sin"].map(|part| golden::numbers(&expected[part][row]));
            for (found, expected) in head.iter().zip(golden.concat()) {
                // A frequency's last bit, this far out.
                let tolerance = 1e-6 + 1.2e-7 * position;
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error < tolerance,
                    "{name} at {position}: {found}, not {expected}"
                );
            }
        }
    }
}
