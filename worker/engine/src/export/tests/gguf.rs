//! GGUF files: what the engine writes it reads back, and readers of the format find what they expect.

use std::collections::BTreeMap;
use std::fs;

use super::{F32, assert_same_model, write};
use crate::adapter;
use crate::export::{FloatType, Format};
use crate::gguf::{Structure, Value, WrittenTensor, WrittenType, read_structure, write_file};
use crate::golden::{json, model_with_tokenizer, path};
use crate::model::{LoraModule, ModelConfig, Projection, Weight};
use crate::weights::ModelFiles;

#[test]
fn a_file_is_byte_for_byte_that_of_the_gguf_package() {
    let text = |text: &str| Value::String(text.to_owned());
    let metadata = [
        ("general.architecture", text("llama")),
        ("general.name", text("tiny")),
        ("llama.block_count", Value::Integer(2)),
        ("llama.rope.freq_base", Value::Float(10_000.0)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        (
            "tokenizer.ggml.tokens",
            Value::Strings(["<s>", "\u{120}light", "é"].map(str::to_owned).into()),
        ),
        ("tokenizer.ggml.token_type", Value::Integers(vec![3, 1, 1])),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    let tensor = |name: &str, shape: &[usize], written_type| WrittenTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        written_type,
    };
    let tensors = [
        tensor("norm", &[5], F32),
        tensor("half", &[3, 32], WrittenType::Float(FloatType::F16)),
        tensor("quantised", &[3, 32], WrittenType::Q8_0),
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.gguf");
    write_file(&file, &metadata, &tensors, |i| {
        let count = tensors[i].shape.iter().product::<usize>();
        Ok((0..count).map(|i| (i as f32 - 40.0) / 7.0).collect())
    })
    .unwrap();
    let expected = fs::read(path("export/file.gguf")).unwrap();
    assert_eq!(fs::read(&file).unwrap(), expected);
}

#[test]
fn a_model_written_as_f32_is_read_back_as_it_was() {
    for variant in ["tied", "untied"] {
        let source = model_with_tokenizer(variant);
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        fs::write(source.path().join("chat_template.jinja"), template).unwrap();
        let base = ModelFiles::open(source.path()).unwrap();
        let output = source.path().join("model.gguf");
        write(&base, None, Format::GgufMerged(F32), &output).unwrap();
        let written = ModelFiles::open(&output).unwrap();
        assert_same_model(&written, &base);
        assert_eq!(written.chat_template().unwrap().unwrap(), template);
        let tokens = |model: &ModelFiles, text: &str| {
            let tokenizer = model.tokenizer().unwrap();
            (
                tokenizer.encode_rendered(text).unwrap(),
                tokenizer.special().clone(),
            )
        };
        let text = "<|im_start|>user\nA lighthouse, 1904.<|im_end|>";
        assert_eq!(tokens(&written, text).0, tokens(&base, text).0);
        assert_eq!(tokens(&written, text).1.eos, tokens(&base, text).1.eos);
        // And once more from the file that was written.
        let again = source.path().join("again.gguf");
        write(&written, None, Format::GgufMerged(F32), &again).unwrap();
        assert_same_model(&ModelFiles::open(&again).unwrap(), &base);
    }
}

#[test]
fn a_gguf_file_becomes_a_folder_with_the_same_model_and_tokenizer() {
    let source = model_with_tokenizer("untied");
    let base = ModelFiles::open(source.path()).unwrap();
    let file = source.path().join("model.gguf");
    write(&base, None, Format::GgufMerged(F32), &file).unwrap();
    let file = ModelFiles::open(&file).unwrap();
    let folder = source.path().join("folder");
    let format = Format::MergedSafetensors(super::FolderOptions::default());
    write(&file, None, format, &folder).unwrap();
    let folder = ModelFiles::open(&folder).unwrap();
    assert_same_model(&folder, &base);
    let tokens = |model: &ModelFiles| {
        let tokenizer = model.tokenizer().unwrap();
        tokenizer.encode_text("A lighthouse.").unwrap()
    };
    assert_eq!(tokens(&folder), tokens(&base));
    let eos = |model: &ModelFiles| model.tokenizer().unwrap().eos();
    assert_eq!(eos(&folder), eos(&base));
}

#[test]
fn types_of_fewer_bits_are_rounded_and_norms_are_not() {
    let source = model_with_tokenizer("untied");
    let base = ModelFiles::open(source.path()).unwrap();
    let config = &base.config;
    for written_type in [
        WrittenType::Float(FloatType::F16),
        WrittenType::Float(FloatType::Bf16),
        WrittenType::Q8_0,
    ] {
        let output = source.path().join(format!("{written_type}.gguf"));
        write(&base, None, Format::GgufMerged(written_type), &output).unwrap();
        let written = ModelFiles::open(&output).unwrap();
        for weight in Weight::all(config) {
            let (name, shape) = (weight.name(), weight.shape(config));
            let (found, expected) = (
                written.tensor(&name, &shape).unwrap(),
                base.tensor(&name, &shape).unwrap(),
            );
            for (found, expected) in found.chunks(32).zip(expected.chunks(32)) {
                let largest = expected.iter().fold(0f32, |a, b| a.max(b.abs()));
                // Half of the last place of 11 and 8 bits, and half a step of 127 with d itself rounded.
                let tolerance = match written_type {
                    _ if shape.len() == 1 => 0.0,
                    WrittenType::Q8_0 => largest * (0.5 / 127.0 + 1.0 / 2048.0),
                    WrittenType::Float(FloatType::Bf16) => largest / 256.0,
                    WrittenType::Float(_) => largest / 2048.0,
                };
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= tolerance, "{name}");
                }
            }
        }
    }
}

#[test]
fn a_lora_file_holds_what_llama_cpp_looks_for_and_gives_each_pair_its_own_scale() {
    let base = ModelFiles::open(&path("tied")).unwrap();
    let config = &base.config;
    for folder in ["tied/adapter", "export/patterns"] {
        let adapter = adapter::load_all(&path(folder), config).unwrap();
        let output = tempfile::tempdir().unwrap();
        let output = output.path().join("adapter.gguf");
        let format = Format::GgufLora(FloatType::F32);
        write(&base, Some(&adapter), format, &output).unwrap();
        let bytes = fs::read(&output).unwrap();
        let Structure { metadata, tensors } = read_structure(&bytes).unwrap();
        let text = |text: &str| Some(Value::String(text.to_owned()));
        assert_eq!(metadata.get("general.type").cloned(), text("adapter"));
        assert_eq!(metadata.get("general.architecture").cloned(), text("llama"));
        assert_eq!(metadata.get("adapter.type").cloned(), text("lora"));
        let Some(Value::Float(alpha)) = metadata.get("adapter.lora.alpha") else {
            panic!("no alpha");
        };
        let values = |name: &str| {
            let tensor = &tensors[name];
            let bytes = &bytes[tensor.start..][..tensor.bytes];
            (tensor.shape.clone(), tensor.block_type.dequantise(bytes))
        };
        let mut found = BTreeMap::new();
        for layer in 0..config.num_hidden_layers {
            for (projection, name) in [
                (Projection::Q, "attn_q"),
                (Projection::K, "attn_k"),
                (Projection::V, "attn_v"),
                (Projection::Down, "ffn_down"),
            ] {
                let module = adapter.pairs.module(layer, projection).unwrap();
                let (shape, a) = values(&format!("blk.{layer}.{name}.weight.lora_a"));
                assert_eq!(shape, [module.rank, config.projection_shape(projection)[1]]);
                assert_eq!(a, module.a);
                let (_, b) = values(&format!("blk.{layer}.{name}.weight.lora_b"));
                let scale = *alpha as f32 / module.rank as f32;
                let b: Vec<f32> = b.iter().map(|b| b * scale).collect();
                assert_same_pair(&b, module, projection, config);
                found.insert((layer, name), module.rank);
            }
        }
        assert_eq!(found.len(), 8);
    }
}

/// Asserts that `b` is the module's B times its scale, the rows in the file's order.
fn assert_same_pair(b: &[f32], module: &LoraModule, projection: Projection, config: &ModelConfig) {
    let half = config.head_dim / 2;
    let [rows, _] = config.projection_shape(projection);
    for row in 0..rows {
        let (head, place) = (row / config.head_dim, row % config.head_dim);
        let source = match projection {
            Projection::Q | Projection::K => head * config.head_dim + place / 2 + place % 2 * half,
            _ => row,
        };
        let found = &b[row * module.rank..][..module.rank];
        let expected = &module.b[source * module.rank..][..module.rank];
        for (found, expected) in found.iter().zip(expected) {
            let expected = expected * module.scale;
            // Two roundings of f32.
            assert!((found - expected).abs() <= 3e-7 * expected.abs());
        }
    }
}

#[test]
fn a_tokenizer_without_a_name_in_the_format_is_refused() {
    let source = model_with_tokenizer("tied");
    let file = source.path().join("tokenizer.json");
    let text = fs::read_to_string(&file).unwrap();
    let odd = text.replace("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    assert_ne!(odd, text);
    fs::write(&file, odd).unwrap();
    let base = ModelFiles::open(source.path()).unwrap();
    let output = source.path().join("model.gguf");
    let refused = write(&base, None, Format::GgufMerged(F32), &output).unwrap_err();
    assert!(refused.to_string().contains("pre_tokenizer"), "{refused}");
    assert!(!output.exists());
}

#[test]
fn keys_are_those_of_llama_cpps_converter() {
    let source = model_with_tokenizer("tied");
    let base = ModelFiles::open(source.path()).unwrap();
    let output = source.path().join("model.gguf");
    write(&base, None, Format::GgufMerged(F32), &output).unwrap();
    let written = read_structure(&fs::read(&output).unwrap()).unwrap();
    // The golden tokenizer has no such tokens, and puts nothing in front of a text.
    let absent = ["padding_token_id", "unknown_token_id", "add_space_prefix"];
    for (key, kind) in json("export/converter_keys.json").as_object().unwrap() {
        if absent.iter().any(|name| key.ends_with(name)) {
            continue;
        }
        let found = written.metadata.get(key);
        let is_of_kind = matches!(
            (kind.as_str().unwrap(), found),
            ("UINT32", Some(Value::Integer(_)))
                | ("FLOAT32", Some(Value::Float(_)))
                | ("BOOL", Some(Value::Bool(_)))
                | ("INT32", Some(Value::Integers(_)))
                | ("STRING", Some(Value::String(_) | Value::Strings(_)))
        );
        assert!(is_of_kind, "{key} ({kind}): {found:?}");
    }
}

#[test]
fn a_tokenizer_in_sentencepieces_manner_has_scores_in_the_order_of_its_merges() {
    let source = model_with_tokenizer("tied");
    let vocab = [
        "<unk>",
        "<s>",
        "</s>",
        "<0x41>",
        "\u{2581}",
        "a",
        "b",
        "ab",
        "\u{2581}ab",
    ];
    let vocab: serde_json::Map<_, _> = vocab
        .iter()
        .enumerate()
        .map(|(id, token)| ((*token).to_owned(), id.into()))
        .collect();
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]},
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": [["a", "b"], ["\u{2581}", "ab"]]},
    });
    fs::write(source.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let base = ModelFiles::open(source.path()).unwrap();
    let output = source.path().join("model.gguf");
    write(&base, None, Format::GgufMerged(F32), &output).unwrap();
    let written = read_structure(&fs::read(&output).unwrap()).unwrap();
    let value = |key: &str| written.metadata[&format!("tokenizer.ggml.{key}")].clone();
    assert_eq!(value("model"), Value::String("llama".to_owned()));
    assert_eq!(value("add_space_prefix"), Value::Bool(true));
    let Value::Integers(types) = value("token_type") else {
        panic!("types are integers");
    };
    assert_eq!(types[..10], [2, 3, 3, 6, 1, 1, 1, 1, 1, 5]);
    let Value::Floats(scores) = value("scores") else {
        panic!("scores are floats");
    };
    assert!(scores[7] > scores[8] && scores[8] > scores[5]);
    assert_eq!(scores.len(), base.config.vocab_size);
    let tokens = |model: &ModelFiles| {
        let tokens = model.tokenizer().unwrap().encode_text("ab abbA").unwrap();
        tokens.iter().map(|token| token.id).collect::<Vec<_>>()
    };
    assert_eq!(tokens(&base), [8, 8, 6, 3]);
    assert_eq!(tokens(&ModelFiles::open(&output).unwrap()), tokens(&base));
}
