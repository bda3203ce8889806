//! Training steps against transformers and PEFT: losses, gradient norms and weights after them.

use std::sync::Arc;

use serde_json::Value;
use trainyard_shared::training::TrainingConfig;

use crate::adapter::{self, peft_name};
use crate::golden;
use crate::model::{Batch, IGNORE, Llama, LossSum, Masks, TrainModel};
use crate::optimizer::Optimizer;
use crate::weights::{ModelFiles, SafetensorsFile};

/// Within this, weights are the same.
const TOLERANCE: f32 = 1e-5;
/// Within this (a tenth of one step of AdamW), one weight of a tensor may be off: AdamW divides by the
/// gradient's size, so where that is near zero, rounding decides how far a weight moves.
const FAR: f32 = 1e-4;

const VARIANTS: [&str; 2] = ["tied", "untied"];

/// The golden rows, each a sequence of its own without its padding.
fn batch(meta: &Value) -> Batch {
    let mut batch = Batch::default();
    let rows = |name: &str| {
        meta[name]
            .as_array()
            .unwrap()
            .iter()
            .map(golden::numbers)
            .collect::<Vec<_>>()
    };
    for ((ids, labels), mask) in rows("input_ids")
        .iter()
        .zip(rows("labels"))
        .zip(rows("attention_mask"))
    {
        let length = mask.iter().filter(|seen| **seen == 1.0).count();
        let ids: Vec<u32> = ids[..length].iter().map(|id| *id as u32).collect();
        let mut targets: Vec<i32> = labels[1..length]
            .iter()
            .map(|label| *label as i32)
            .collect();
        targets.push(IGNORE);
        batch.push_sequence(&ids, &targets);
    }
    batch
}

fn config(meta: &Value) -> TrainingConfig {
    let adamw = |name: &str| meta["adamw"][name].as_f64().unwrap();
    TrainingConfig {
        adam_beta1: meta["adamw"]["betas"][0].as_f64().unwrap(),
        adam_beta2: meta["adamw"]["betas"][1].as_f64().unwrap(),
        adam_epsilon: adamw("eps"),
        weight_decay: adamw("weight_decay"),
        max_grad_norm: meta["clip"].as_f64().unwrap(),
        ..TrainingConfig::default()
    }
}

/// Trains as the golden log did and compares each step with it; `file` names the weights after a step,
/// where there are some, and `name` a parameter in them.
fn compare(
    mut model: TrainModel,
    meta: &Value,
    log: &Value,
    file: impl Fn(u64) -> Option<SafetensorsFile>,
    name: impl Fn(&str) -> String,
) {
    let batch = batch(meta);
    let scale = 1.0 / batch.labelled_tokens() as f32;
    let mut optimizer = Optimizer::new(&config(meta), &model.parameters_mut());
    for expected in log.as_array().unwrap() {
        let step = expected["step"].as_u64().unwrap();
        model.zero_gradients();
        let loss = model
            .forward_backward(&batch, scale, Masks::of(0))
            .unwrap()
            .mean();
        let norm = optimizer.update(&mut model, meta["adamw"]["lr"].as_f64().unwrap());
        for (what, found, expected) in [
            ("loss", loss, &expected["loss_before"]),
            ("gradient norm", norm, &expected["grad_norm_before_clip"]),
        ] {
            let expected = expected.as_f64().unwrap();
            assert!(
                (found / expected - 1.0).abs() < 1e-5,
                "step {step}: {what} {found} is not {expected}"
            );
        }
        if let Some(file) = file(step) {
            compare_weights(&mut model, &file, &name, step);
        }
    }
}

fn compare_weights(
    model: &mut TrainModel,
    file: &SafetensorsFile,
    name: impl Fn(&str) -> String,
    step: u64,
) {
    let parameters = model.parameters_mut();
    assert_eq!(parameters.len(), file.names().count());
    for parameter in parameters {
        let name = name(parameter.name);
        assert_eq!(file.shape(&name), Some(parameter.shape), "{name}");
        let distances = parameter
            .value
            .iter()
            .zip(file.tensor(&name).unwrap())
            .map(|(found, expected)| (found - expected).abs());
        let far: Vec<f32> = distances.filter(|distance| *distance > TOLERANCE).collect();
        assert!(
            far.len() <= 1 && far.iter().all(|distance| *distance < FAR),
            "step {step}: {name}: off by {far:?}"
        );
    }
}

#[test]
fn lora_steps_equal_those_of_peft() {
    let meta = golden::meta();
    for variant in VARIANTS {
        let files = ModelFiles::open(&golden::path(variant)).unwrap();
        let (adapter, _) =
            adapter::load(&golden::path(variant).join("adapter"), &files.config).unwrap();
        let model = TrainModel::new(Arc::new(Llama::load(&files).unwrap()), &adapter).unwrap();
        let after = |step| {
            let path = golden::path(variant).join(format!("lora_step{step}.safetensors"));
            [1, 5, 20]
                .contains(&step)
                .then(|| SafetensorsFile::open(&path).unwrap())
        };
        compare(
            model,
            &meta,
            &meta["variants"][variant]["lora_adamw"],
            after,
            peft_name,
        );
    }
}

#[test]
fn steps_of_all_weights_equal_those_of_transformers() {
    let meta = golden::meta();
    for variant in VARIANTS {
        let files = ModelFiles::open(&golden::path(variant)).unwrap();
        let model = TrainModel::full(Llama::load(&files).unwrap()).unwrap();
        let after = |step| {
            let path = golden::path(variant).join("full_step5.safetensors");
            (step == 5).then(|| SafetensorsFile::open(&path).unwrap())
        };
        compare(
            model,
            &meta,
            &meta["variants"][variant]["full_adamw"],
            after,
            str::to_owned,
        );
    }
}

#[test]
fn g072_rows_of_different_lengths_count_by_their_labelled_tokens() {
    let meta = golden::meta();
    let files = ModelFiles::open(&golden::path("tied")).unwrap();
    let mut model = TrainModel::full(Llama::load(&files).unwrap()).unwrap();
    let together = batch(&meta);
    let mut alone = LossSum::default();
    for (start, end) in [(0, 16), (16, together.tokens())] {
        let mut row = Batch::default();
        row.push_sequence(&together.ids[start..end], &together.targets[start..end]);
        alone += model.evaluate(&row).unwrap();
    }
    let both = model.evaluate(&together).unwrap();
    assert_eq!(both.tokens, alone.tokens);
    assert_eq!(both.tokens, together.labelled_tokens() as u64);
    assert!((both.mean() / alone.mean() - 1.0).abs() < 1e-5);
}

#[test]
fn g071_the_loss_of_a_step_is_over_its_tokens_and_not_over_its_micro_batches() {
    let mut step = LossSum {
        nll_sum: 4.0,
        tokens: 1,
    };
    step += LossSum {
        nll_sum: 0.0,
        tokens: 3,
    };
    assert_eq!(step.mean(), 1.0);
}
