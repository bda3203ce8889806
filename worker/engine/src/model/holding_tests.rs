use std::sync::Arc;

use super::{
    Adapter, Batch, CacheRoom, Context, Decoder, Holding, Llama, LoadedAdapter, LossSum, Masks,
    Prefill, TrainModel, llama::Weight,
};
use crate::{gguf::BlockType, golden, weights::ModelFiles};

fn files() -> ModelFiles {
    ModelFiles::open(&golden::path("untied")).unwrap()
}

/// The f32 model with the values of another.
fn unpacked(model: &Llama) -> Llama {
    let weights = Weight::all(model.config());
    let tensor = |name: &str, _: &[usize]| {
        let weight = weights.iter().find(|weight| weight.name() == name);
        Ok(model.get(*weight.unwrap()))
    };
    Llama::from_tensors(model.config().clone(), tensor).unwrap()
}

fn golden_adapter(model: &Llama) -> Adapter {
    let folder = golden::path("untied").join("adapter");
    crate::adapter::load(&folder, model.config()).unwrap().0
}

fn ids() -> Vec<u32> {
    (0..70).map(|i| (i * 31 + 5) % 128).collect()
}

fn batch() -> Batch {
    let ids = ids();
    let targets: Vec<i32> = ids[1..].iter().map(|&id| id as i32).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&ids[..69], &targets);
    batch
}

/// Loss and all gradients of one batch.
fn gradients(model: Llama) -> (LossSum, Vec<f32>) {
    let adapter = golden_adapter(&model);
    let mut model = TrainModel::new(Arc::new(model), &adapter).unwrap();
    let loss = model.forward_backward(&batch(), 0.1, Masks::of(1)).unwrap();
    let parameters = model.parameters_mut();
    let gradients = parameters.iter().flat_map(|p| p.gradient.to_vec());
    (loss, gradients.collect())
}

#[test]
fn training_on_a_quantised_base_is_training_on_its_values_bit_for_bit() {
    for holding in [Holding::EightBits, Holding::FourBits] {
        let model = Llama::load_as(&files(), holding).unwrap();
        let (expected_loss, expected) = gradients(unpacked(&model));
        let (loss, found) = gradients(model);
        assert_eq!(loss, expected_loss, "{holding:?}");
        assert!(found == expected, "{holding:?}");
        assert!(found.iter().any(|&gradient| gradient != 0.0));
    }
}

#[test]
fn gradients_on_a_quantised_base_agree_with_finite_differences() {
    const H: f32 = 2e-2;
    let model = Arc::new(Llama::load_as(&files(), Holding::FourBits).unwrap());
    let adapter = golden_adapter(&model);
    let mut train = TrainModel::new(model, &adapter).unwrap();
    train.forward_backward(&batch(), 1.0, Masks::of(1)).unwrap();
    let found: Vec<Vec<f32>> = train
        .parameters_mut()
        .iter()
        .map(|parameter| parameter.gradient.to_vec())
        .collect();
    let largest = found.iter().flatten().fold(0.0_f32, |m, g| m.max(g.abs()));
    for (parameter, gradients) in found.iter().enumerate() {
        let value = gradients.len() / 3;
        let mut loss = |change: f32| {
            train.parameters_mut()[parameter].value[value] += change;
            let loss = train.forward_backward(&batch(), 0.0, Masks::of(1)).unwrap();
            train.parameters_mut()[parameter].value[value] -= change;
            loss.nll_sum
        };
        let expected = (loss(H) - loss(-H)) / (2.0 * f64::from(H));
        let error = (f64::from(gradients[value]) - expected).abs();
        // f32 losses of about 300 are off by some 1e-4, and the third derivative adds as much.
        assert!(
            error < 1e-2 * f64::from(largest),
            "parameter {parameter}: {error}"
        );
    }
}

#[test]
fn weights_are_held_in_the_types_and_bytes_that_were_asked_for() {
    let held = |holding| Llama::load_as(&files(), holding).unwrap().held();
    let eight = held(Holding::EightBits);
    assert!(eight.types.iter().all(|(t, ..)| *t == BlockType::Q8_0));
    let four = held(Holding::FourBits);
    let types: Vec<BlockType> = four.types.iter().map(|(t, ..)| *t).collect();
    assert_eq!(types, [BlockType::Q8_0, BlockType::Q4_1]);
    let unpacked = held(Holding::Unpacked);
    assert_eq!(unpacked.types.len(), 1);
    // 34 and 20 bytes for 128, with the rows that fill up groups and panels.
    assert!(eight.bytes() * 3 < unpacked.bytes(), "{eight}; {unpacked}");
    assert!(four.types[1].2 * 5 < unpacked.bytes(), "{four}; {unpacked}");
    assert_eq!(held(Holding::AsStored), unpacked, "the file holds f32");
}

#[test]
fn steps_of_a_held_model_give_the_logits_of_its_prefill() {
    for holding in [Holding::Unpacked, Holding::EightBits, Holding::FourBits] {
        let model = Arc::new(Llama::load_as(&files(), holding).unwrap());
        let config = model.config().clone();
        let adapter = Arc::new(LoadedAdapter::new(&config, &golden_adapter(&model)).unwrap());
        let mut decoder = Decoder::new(model);
        let ids = ids();
        let mut logits_after = |prefilled: usize| {
            let mut context = Context::new(&config, adapter.clone(), CacheRoom::unlimited());
            let done = decoder
                .prefill(&mut context, &ids[..prefilled], &|| false)
                .unwrap();
            assert_eq!(done, Prefill::Done);
            context.make_room(ids.len()).unwrap();
            let mut logits = Vec::new();
            for &id in &ids[prefilled..] {
                logits = decoder.step(&mut [(&mut context, id)]).unwrap().to_vec();
            }
            logits
        };
        let (expected, found) = (logits_after(ids.len() - 1), logits_after(32));
        let largest = expected.iter().fold(1.0_f32, |m, x| m.max(x.abs()));
        for (expected, found) in expected.iter().zip(&found) {
            // Sums of some hundred products in another order.
            assert!((expected - found).abs() < 2e-5 * largest, "{holding:?}");
        }
    }
}
