//! Whole models written and read back.

use serde_json::Value;

use super::{FloatType, FolderOptions, write_model_folder};
use crate::EngineError;
use crate::golden::{model_with_tokenizer, path};
use crate::model::Weight;
use crate::weights::ModelFiles;

/// Asserts that two models have the same config and weights.
fn assert_same_model(found: &ModelFiles, expected: &ModelFiles) {
    assert_eq!(found.config, expected.config);
    for weight in Weight::all(&expected.config) {
        let (name, shape) = (weight.name(), weight.shape(&expected.config));
        assert_eq!(
            found.tensor(&name, &shape).unwrap(),
            expected.tensor(&name, &shape).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn a_model_folder_holds_the_weights_config_and_tokenizer_that_its_base_has() {
    for variant in ["tied", "untied"] {
        let base = model_with_tokenizer(variant);
        let base = ModelFiles::open(base.path()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = FolderOptions::default();
        write_model_folder(folder.path(), &base, options, |name, shape| {
            base.tensor(name, shape)
        })
        .unwrap();
        let written = ModelFiles::open(folder.path()).unwrap();
        assert_same_model(&written, &base);
        let tokens = |model: &ModelFiles| {
            let tokenizer = model.tokenizer().unwrap();
            tokenizer.encode_text("A lighthouse.").unwrap()
        };
        assert_eq!(tokens(&written), tokens(&base));
        assert!(folder.path().join("generation_config.json").exists());
    }
}

#[test]
fn weights_that_are_too_large_for_one_file_are_spread_over_shards() {
    let base = ModelFiles::open(&path("untied")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = FolderOptions {
        max_shard_bytes: 100_000,
        ..FolderOptions::default()
    };
    write_model_folder(folder.path(), &base, options, |name, shape| {
        base.tensor(name, shape)
    })
    .unwrap();
    assert_same_model(&ModelFiles::open(folder.path()).unwrap(), &base);
    let index = folder.path().join("model.safetensors.index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(index).unwrap()).unwrap();
    let bytes = base.config.parameter_count() * 4;
    assert_eq!(index["metadata"]["total_size"], bytes);
    let first = &index["weight_map"]["model.embed_tokens.weight"];
    assert_eq!(first, "model-00001-of-00004.safetensors");
    assert!(!folder.path().join("model.safetensors").exists());
}

#[test]
fn another_type_stands_in_the_config_and_its_rounding_in_the_weights() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = FolderOptions {
        float_type: Some(FloatType::Bf16),
        ..FolderOptions::default()
    };
    write_model_folder(folder.path(), &base, options, |name, shape| {
        base.tensor(name, shape)
    })
    .unwrap();
    let written = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(written.config_json().unwrap()["dtype"], "bfloat16");
    let norm = |model: &ModelFiles| model.tensor("model.norm.weight", &[64]).unwrap();
    let rounded: Vec<f32> = norm(&base)
        .iter()
        .map(|&x| half::bf16::from_f32(x).to_f32())
        .collect();
    assert_eq!(norm(&written), rounded);
}

#[test]
fn a_weight_that_is_not_finite_is_refused_by_name() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let written = write_model_folder(
        folder.path(),
        &base,
        FolderOptions::default(),
        |name, shape| {
            let mut values = base.tensor(name, shape)?;
            if name == "model.norm.weight" {
                values[3] = f32::INFINITY;
            }
            Ok(values)
        },
    );
    assert!(
        matches!(&written, Err(EngineError::InvalidCheckpoint { message, .. }) if message.contains("model.norm.weight")),
        "{written:?}"
    );
}
