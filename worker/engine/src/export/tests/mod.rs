//! Whole models written and read back.

mod gguf;

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{
    Existing, Export, FloatType, FolderOptions, Format, Watch, export, write_model_folder,
};
use crate::EngineError;
use crate::adapter::{self, SavedAdapter, WholeWeights};
use crate::gguf::WrittenType;
use crate::golden::{model_with_tokenizer, path};
use crate::model::Weight;
use crate::weights::{ModelFiles, SafetensorsFile};

const F32: WrittenType = WrittenType::Float(FloatType::F32);

/// Writes an export where nothing stands.
fn write(
    base: &ModelFiles,
    adapter: Option<&SavedAdapter>,
    format: Format,
    output: &Path,
) -> Result<(), EngineError> {
    write_over(base, adapter, format, output, Existing::Keep)
}

fn write_over(
    base: &ModelFiles,
    adapter: Option<&SavedAdapter>,
    format: Format,
    output: &Path,
    existing: Existing,
) -> Result<(), EngineError> {
    let asked = Export {
        base,
        adapter,
        name: "tiny",
        format,
        output,
        existing,
    };
    let mut watch = Watch {
        is_stopped: &|| false,
        tell: &mut |_, _| {},
    };
    export(&asked, &mut watch)
}

/// Asserts that two models have the same config and weights.
fn assert_same_model(found: &ModelFiles, expected: &ModelFiles) {
    assert_eq!(found.config, expected.config);
    assert_same_weights(found, expected);
}

fn assert_same_weights(found: &ModelFiles, expected: &ModelFiles) {
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

#[test]
fn merged_weights_are_those_that_peft_merges() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let expected = SafetensorsFile::open(&path("export/merged.safetensors")).unwrap();
    for (name, adapter) in [("plain", "tied/adapter"), ("patterns", "export/patterns")] {
        let adapter = adapter::load_all(&path(adapter), &base.config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("merged");
        let format = Format::MergedSafetensors(FolderOptions::default());
        write(&base, Some(&adapter), format, &output).unwrap();
        let merged = SafetensorsFile::open(&output.join("model.safetensors")).unwrap();
        let mut compared = 0;
        for tensor in merged.names() {
            let golden = format!("{name}.{tensor}");
            if expected.shape(&golden).is_none() {
                continue;
            }
            compared += 1;
            let (found, expected) = (
                merged.tensor(tensor).unwrap(),
                expected.tensor(&golden).unwrap(),
            );
            for (found, expected) in found.iter().zip(&expected) {
                // Values are below 1: two sums of a few products in f32 differ in the last bits.
                assert!(
                    (found - expected).abs() < 5e-7,
                    "{golden}: {found} {expected}"
                );
            }
        }
        assert_eq!(compared, 4);
    }
}

#[test]
fn what_stands_in_the_place_of_an_export_stays_unless_it_is_to_be_replaced() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model");
    let format = Format::MergedSafetensors(FolderOptions::default());
    write(&base, None, format, &output).unwrap();
    fs::write(output.join("mine.txt"), "mine").unwrap();
    let refused = write(&base, None, format, &output).unwrap_err();
    assert!(
        refused.to_string().contains("is there already"),
        "{refused}"
    );
    assert!(output.join("mine.txt").exists());
    write_over(&base, None, format, &output, Existing::Replace).unwrap();
    assert!(!output.join("mine.txt").exists());
    assert_same_model(&ModelFiles::open(&output).unwrap(), &base);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_no_model_is_never_replaced() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    for format in [
        Format::MergedSafetensors(FolderOptions::default()),
        Format::GgufMerged(F32),
    ] {
        let written = write_over(&base, None, format, folder.path(), Existing::Replace);
        assert!(matches!(written, Err(EngineError::InvalidSetting { .. })));
    }
    assert_eq!(fs::read(folder.path().join("letter.txt")).unwrap(), b"dear");
}

#[test]
fn an_export_that_fails_or_is_stopped_leaves_nothing_behind() {
    let base = model_with_tokenizer("tied");
    let base = ModelFiles::open(base.path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut adapter = adapter::load_all(&path("tied/adapter"), &base.config).unwrap();
    let last = adapter.pairs.layers.last_mut().unwrap();
    last[0].as_mut().unwrap().b[0] = f32::NAN;
    let formats = [
        Format::MergedSafetensors(FolderOptions::default()),
        Format::GgufMerged(WrittenType::Q8_0),
        Format::GgufLora(FloatType::F16),
    ];
    for format in formats {
        let output = folder.path().join("export");
        let failed = write(&base, Some(&adapter), format, &output).unwrap_err();
        assert!(failed.to_string().contains("not finite"), "{failed}");
        let stopped_after = std::cell::Cell::new(0);
        let asked = Export {
            base: &base,
            adapter: Some(&adapter),
            name: "tiny",
            format,
            output: &output,
            existing: Existing::Keep,
        };
        let mut watch = Watch {
            is_stopped: &|| stopped_after.get() == 2,
            tell: &mut |_, _| stopped_after.set(stopped_after.get() + 1),
        };
        let stopped = export(&asked, &mut watch);
        assert!(matches!(stopped, Err(EngineError::Stopped)), "{stopped:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let format = Format::MergedSafetensors(FolderOptions::default());
    let failed = write(&base, None, format, &file.join("model")).unwrap_err();
    assert!(matches!(failed, EngineError::Io { .. }), "{failed}");
    assert!(failed.to_string().contains("file"), "{failed}");
}

#[test]
fn modules_that_an_adapter_brings_along_take_the_place_of_the_models_own() {
    let source = model_with_tokenizer("tied");
    let base = ModelFiles::open(source.path()).unwrap();
    let mut adapter = adapter::load_all(&path("tied/adapter"), &base.config).unwrap();
    let shape = [base.config.vocab_size, base.config.hidden_size];
    let mine: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i % 251) as f32).collect();
    adapter.whole = WholeWeights(vec![(Weight::Embedding, mine.clone())]);
    let own = base.tensor("model.embed_tokens.weight", &shape).unwrap();
    let formats = [
        (
            "folder",
            Format::MergedSafetensors(FolderOptions::default()),
        ),
        ("model.gguf", Format::GgufMerged(F32)),
    ];
    for (name, format) in formats {
        let output = source.path().join(name);
        write(&base, Some(&adapter), format, &output).unwrap();
        let merged = ModelFiles::open(&output).unwrap();
        // The output projection stays as it was, so the two are no longer tied.
        assert!(!merged.config.tie_word_embeddings);
        let tensor = |name: &str| merged.tensor(name, &shape).unwrap();
        assert_eq!(tensor("model.embed_tokens.weight"), mine);
        assert_eq!(tensor("lm_head.weight"), own);
    }
    let lora = source.path().join("lora.gguf");
    let refused = write(
        &base,
        Some(&adapter),
        Format::GgufLora(FloatType::F32),
        &lora,
    );
    assert!(refused.unwrap_err().to_string().contains("modules_to_save"));
}

#[test]
fn weights_of_every_architecture_come_back_from_both_forms() {
    for name in ["llama", "mistral", "qwen2", "qwen3"] {
        let source = architecture(name);
        let base = ModelFiles::open(source.path()).unwrap();
        let folder = source.path().join("folder");
        let format = Format::MergedSafetensors(FolderOptions::default());
        write(&base, None, format, &folder).unwrap();
        assert_same_model(&ModelFiles::open(&folder).unwrap(), &base);
        let file = source.path().join("model.gguf");
        write(&base, None, Format::GgufMerged(F32), &file).unwrap();
        let file = ModelFiles::open(&file).unwrap();
        assert_same_weights(&file, &base);
        // llama.cpp has no name of its own for Mistral.
        let expected = match name {
            "mistral" => "llama",
            other => other,
        };
        assert_eq!(file.config.architecture.model_type(), expected);
    }
}

/// A golden model of an architecture with a tokenizer of some letters, in a form that GGUF can hold.
fn architecture(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let golden = path("architectures").join(name);
    let weights = "model.safetensors";
    fs::copy(golden.join(weights), folder.path().join(weights)).unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(golden.join("config.json")).unwrap()).unwrap();
    if let Some(Value::Object(rope)) = config.get_mut("rope_parameters") {
        rope.remove("truncate");
    }
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2}, "merges": []},
    });
    for (name, json) in [("config.json", config), ("tokenizer.json", tokenizer)] {
        fs::write(folder.path().join(name), json.to_string()).unwrap();
    }
    folder
}
