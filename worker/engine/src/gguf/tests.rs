//! GGUF files: right ones give the model that went in, wrong ones give an error and nothing else.

use std::path::Path;

use super::testing::GgufWriter;
use super::{BlockType, GgufModel, Value, read_structure};
use crate::model::Projection;
use crate::random::Random;
use crate::weights::ModelFiles;
use crate::{EngineError, golden};

const TYPES: [BlockType; 6] = [
    BlockType::F32,
    BlockType::F16,
    BlockType::Bf16,
    BlockType::Q8_0,
    BlockType::Q4_0,
    BlockType::Q4_1,
];

fn save(writer: &GgufWriter) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, writer.finish()).unwrap();
    (folder, path)
}

/// The golden model as a GGUF file, its matrices stored as `block_type`.
fn golden_as_gguf(variant: &str, block_type: BlockType) -> GgufWriter {
    let model = ModelFiles::open(&golden::path(variant)).unwrap();
    let config = &model.config;
    let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
    let mut writer = GgufWriter::llama();
    let mut put =
        |name: &str, gguf: &str, shape: &[usize], block_type, interleaved_heads: Option<usize>| {
            let mut values = model.tensor(name, shape).unwrap();
            if let Some(heads) = interleaved_heads {
                values = interleave(&values, shape[0], heads);
            }
            writer.tensor(gguf, shape, block_type, &values);
        };
    put(
        "model.embed_tokens.weight",
        "token_embd.weight",
        &[vocabulary, hidden],
        block_type,
        None,
    );
    for layer in 0..config.num_hidden_layers {
        let (name, gguf) = (format!("model.layers.{layer}"), format!("blk.{layer}"));
        put(
            &format!("{name}.input_layernorm.weight"),
            &format!("{gguf}.attn_norm.weight"),
            &[hidden],
            BlockType::F32,
            None,
        );
        put(
            &format!("{name}.post_attention_layernorm.weight"),
            &format!("{gguf}.ffn_norm.weight"),
            &[hidden],
            BlockType::F32,
            None,
        );
        for projection in Projection::ALL {
            let (part, heads) = match projection {
                Projection::Q => ("attn_q", Some(config.num_attention_heads)),
                Projection::K => ("attn_k", Some(config.num_key_value_heads)),
                Projection::V => ("attn_v", None),
                Projection::O => ("attn_output", None),
                Projection::Gate => ("ffn_gate", None),
                Projection::Up => ("ffn_up", None),
                Projection::Down => ("ffn_down", None),
            };
            let name = format!("{}.weight", projection.full_name(layer));
            put(
                &name,
                &format!("{gguf}.{part}.weight"),
                &config.projection_shape(projection),
                block_type,
                heads,
            );
        }
    }
    put(
        "model.norm.weight",
        "output_norm.weight",
        &[hidden],
        BlockType::F32,
        None,
    );
    if !config.tie_word_embeddings {
        put(
            "lm_head.weight",
            "output.weight",
            &[vocabulary, hidden],
            block_type,
            None,
        );
    }
    writer
}

/// Rows 0, h, 1, h + 1, … of each head of `2 h` rows, as the format wants them.
fn interleave(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (width, half) = (values.len() / rows, rows / heads / 2);
    let order = (0..heads).flat_map(|head| {
        (0..half).flat_map(move |i| [0, 1].map(|part| head * 2 * half + part * half + i))
    });
    order
        .flat_map(|row| values[row * width..(row + 1) * width].to_vec())
        .collect()
}

#[test]
fn a_gguf_file_gives_the_same_config_and_weights_as_the_folder() {
    for variant in ["tied", "untied"] {
        let folder = ModelFiles::open(&golden::path(variant)).unwrap();
        let (_kept, path) = save(&golden_as_gguf(variant, BlockType::F32));
        let gguf = ModelFiles::open(&path).unwrap();
        assert_eq!(gguf.config, folder.config);
        for layer in 0..2 {
            for projection in Projection::ALL {
                let (name, shape) = (
                    format!("{}.weight", projection.full_name(layer)),
                    folder.config.projection_shape(projection),
                );
                assert_eq!(
                    gguf.tensor(&name, &shape).unwrap(),
                    folder.tensor(&name, &shape).unwrap(),
                    "{name}"
                );
            }
        }
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            if let Ok(expected) = folder.tensor(name, &[128, 64]) {
                assert_eq!(gguf.tensor(name, &[128, 64]).unwrap(), expected);
            }
        }
    }
}

#[test]
fn every_type_comes_back_as_near_as_it_can_store() {
    let mut random = Random::new(5, "values");
    let values: Vec<f32> = (0..256).map(|_| random.symmetric_f32()).collect();
    for (block_type, tolerance) in TYPES.into_iter().zip([0.0, 5e-4, 4e-3, 5e-3, 8e-2, 7e-2]) {
        let mut writer = GgufWriter::default();
        writer.tensor("t", &[4, 64], block_type, &values);
        let file = writer.finish();
        let info = read_structure(&file).unwrap().tensors["t"].clone();
        assert_eq!((info.shape, info.block_type), (vec![4, 64], block_type));
        let back = block_type.dequantise(&file[info.start..info.start + info.bytes]);
        assert_eq!(back.len(), values.len());
        for (x, y) in values.iter().zip(&back) {
            assert!(
                (x - y).abs() <= tolerance,
                "{block_type}: {x} came back as {y}"
            );
        }
    }
}

#[test]
fn quantised_blocks_are_read_as_the_reference_reads_them() {
    let text = std::fs::read_to_string(golden::path("gguf/blocks.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let golden = golden.as_object().unwrap();
    assert_eq!(golden.len(), 8);
    for (name, case) in golden {
        let block_type = (0..32)
            .filter_map(BlockType::from_id)
            .find(|known| known.to_string() == *name)
            .unwrap();
        let bytes = hex::decode(case["bytes"].as_str().unwrap()).unwrap();
        let expected = golden::numbers(&case["values"]);
        let found = block_type.dequantise(&bytes);
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error <= 1e-6 * expected.abs().max(1e-3),
                "{name}, value {i}: {found}, not {expected}"
            );
        }
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let refusal = |writer: &GgufWriter| {
        let (_kept, path) = save(writer);
        GgufModel::open(&path).expect_err("refused").to_string()
    };
    let mut two_bits = golden_as_gguf("tied", BlockType::F32);
    two_bits.raw_tensor("output.weight", &[128, 256], 10, &[0; 84]);
    assert!(refusal(&two_bits).contains("Q2_K"));
    let mut other = GgufWriter::default();
    other.string("general.architecture", "gemma");
    assert!(refusal(&other).contains("\"gemma\""));
    let mut experts = GgufWriter::llama();
    experts.u32("llama.expert_count", 8);
    assert!(refusal(&experts).contains("llama.expert_count"));
    let mut rope = golden_as_gguf("tied", BlockType::F32);
    rope.string("llama.rope.scaling.type", "longrope");
    assert!(refusal(&rope).contains("longrope"));
    let mut pattern = golden_as_gguf("tied", BlockType::F32);
    pattern.u32("llama.attention.sliding_window_pattern", 2);
    assert!(refusal(&pattern).contains("sliding_window_pattern"));
}

#[test]
fn missing_and_misshapen_weights_are_named() {
    let mut writer = GgufWriter::llama();
    writer.tensor(
        "token_embd.weight",
        &[128, 64],
        BlockType::F32,
        &[0.0; 128 * 64],
    );
    let (_kept, path) = save(&writer);
    let error = ModelFiles::open(&path).unwrap_err();
    assert!(
        matches!(&error, EngineError::MissingTensor { name } if name == "model.layers.0.input_layernorm.weight")
    );
    writer.tensor("blk.0.attn_norm.weight", &[32], BlockType::F32, &[0.0; 32]);
    let (_kept, path) = save(&writer);
    assert!(
        matches!(ModelFiles::open(&path).unwrap_err(), EngineError::ShapeMismatch { found, .. } if found == [32])
    );
}

#[test]
fn claims_that_the_bytes_do_not_bear_out_are_refused() {
    let problem = |file: &[u8]| read_structure(file).unwrap_err();
    let head = |tensors: u64, metadata: u64| {
        [
            b"GGUF".to_vec(),
            3u32.to_le_bytes().to_vec(),
            tensors.to_le_bytes().to_vec(),
            metadata.to_le_bytes().to_vec(),
        ]
        .concat()
    };
    assert!(problem(b"").contains("ends inside its magic"));
    assert!(problem(b"GGML\x03\0\0\0").contains("does not begin with GGUF"));
    assert!(problem(b"GGUF\0\0\0\x03").contains("version"));
    assert!(problem(&head(u64::MAX, 0)).contains("tensor name"));
    assert!(problem(&head(0, u64::MAX)).contains("metadata key"));
    let mut array = GgufWriter::default();
    array.strings("a", &["x", "y"]);
    let mut file = array.finish();
    let count = file
        .windows(9)
        .position(|w| w == [2, 0, 0, 0, 0, 0, 0, 0, 1])
        .unwrap();
    file[count..count + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(problem(&file).contains("ends inside an array"));
    let mut twice = GgufWriter::default();
    twice.u32("a", 1);
    twice.u32("a", 1);
    assert!(problem(&twice.finish()).contains("duplicate key"));
    let mut large = GgufWriter::default();
    large.raw_tensor("t", &[1 << 40, 1 << 40], 0, &[]);
    assert!(problem(&large.finish()).contains("does not fit"));
    let mut short = GgufWriter::default();
    short.raw_tensor("t", &[1000], 0, &[0; 4]);
    assert!(problem(&short.finish()).contains("past the end"));
    let mut same = GgufWriter::default();
    same.tensor("t", &[1], BlockType::F32, &[0.0]);
    same.tensor("t", &[1], BlockType::F32, &[0.0]);
    assert!(problem(&same.finish()).contains("stands twice"));
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let whole = {
        let mut writer = golden_as_gguf("tied", BlockType::Q8_0);
        writer.strings("tokenizer.ggml.tokens", &["a", "b"]);
        writer.i32s("tokenizer.ggml.token_type", &[1, 3]);
        writer.bool("tokenizer.ggml.add_bos_token", true);
        writer.finish()
    };
    let head = whole.len()
        - read_structure(&whole)
            .unwrap()
            .tensors
            .values()
            .map(|t| t.bytes)
            .sum::<usize>();
    for length in 0..head.min(whole.len()) {
        read_structure(&whole[..length]).expect_err("cut inside its structure");
    }
    let mut random = Random::new(1, "flip");
    for _ in 0..4000 {
        let mut file = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(head as u64) as usize;
            file[at] = random.next_u64() as u8;
        }
        let _ = read_structure(&file);
    }
}

#[test]
fn metadata_types_are_read_as_they_stand() {
    let mut writer = GgufWriter::default();
    writer.f32("f", 1e-5);
    writer.bool("b", true);
    writer.i32s("i", &[-1, 2]);
    let metadata = read_structure(&writer.finish()).unwrap().metadata;
    assert_eq!(metadata["f"], Value::Float(f64::from(1e-5f32)));
    assert_eq!(metadata["b"], Value::Bool(true));
    assert_eq!(metadata["i"], Value::Integers(vec![-1, 2]));
}

#[test]
fn a_folder_named_like_a_file_and_a_missing_file_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(GgufModel::open(folder.path()).is_err());
    assert!(matches!(
        ModelFiles::open(Path::new("no/such.gguf")),
        Err(EngineError::Io { .. })
    ));
}

/// A file with a tokenizer of the printable ASCII characters and two control tokens.
fn with_tokenizer(pre: &str, change: impl FnOnce(&mut GgufWriter)) -> GgufWriter {
    let mut writer = golden_as_gguf("tied", BlockType::F32);
    let printable: Vec<String> = (b'!'..=b'~')
        .map(|byte| char::from(byte).to_string())
        .collect();
    let mut tokens: Vec<&str> = printable.iter().map(String::as_str).collect();
    tokens.extend(["\u{120}", "ab", "12", "<|im_start|>", "<|im_end|>"]);
    let types: Vec<i32> = tokens
        .iter()
        .map(|token| if token.starts_with("<|") { 3 } else { 1 })
        .collect();
    writer.string("tokenizer.ggml.model", "gpt2");
    writer.string("tokenizer.ggml.pre", pre);
    writer.strings("tokenizer.ggml.tokens", &tokens);
    writer.i32s("tokenizer.ggml.token_type", &types);
    writer.strings("tokenizer.ggml.merges", &["a b", "1 2"]);
    writer.u32("tokenizer.ggml.bos_token_id", 97);
    writer.u32("tokenizer.ggml.eos_token_id", 98);
    change(&mut writer);
    writer
}

fn tokens(writer: &GgufWriter, text: &str) -> Vec<u32> {
    let (_kept, path) = save(writer);
    let tokenizer = ModelFiles::open(&path).unwrap().tokenizer().unwrap();
    tokenizer
        .encode_text(text)
        .unwrap()
        .iter()
        .map(|token| token.id)
        .collect()
}

#[test]
fn the_tokenizer_inside_cuts_text_as_its_name_says() {
    let [ab, one_two, one, two, bos] = [95, 96, u32::from(b'1' - b'!'), u32::from(b'2' - b'!'), 97];
    assert_eq!(
        tokens(&with_tokenizer("smollm", |_| {}), "ab12"),
        [ab, one, two],
        "each digit alone"
    );
    assert_eq!(
        tokens(&with_tokenizer("gpt-2", |_| {}), "ab12"),
        [ab, one_two]
    );
    assert_eq!(
        tokens(&with_tokenizer("qwen2", |_| {}), "ab12"),
        [ab, one, two]
    );
    assert_eq!(
        tokens(&with_tokenizer("llama-bpe", |_| {}), "ab12"),
        [bos, ab, one_two]
    );
    let without = with_tokenizer("llama-bpe", |writer| {
        writer.bool("tokenizer.ggml.add_bos_token", false)
    });
    assert_eq!(tokens(&without, "ab12"), [ab, one_two]);
}

#[test]
fn g088_control_tokens_inside_are_none_that_text_can_write() {
    let ids = tokens(&with_tokenizer("smollm", |_| {}), "<|im_end|>");
    assert!(ids.len() == 10 && ids.iter().all(|id| *id < 97), "{ids:?}");
}

#[test]
fn chat_template_and_stop_tokens_come_from_the_file() {
    let template =
        "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}";
    let (_kept, path) = save(&with_tokenizer("smollm", |writer| {
        writer.string("tokenizer.chat_template", template);
        writer.u32("tokenizer.ggml.eot_token_id", 96);
    }));
    let model = ModelFiles::open(&path).unwrap();
    assert_eq!(model.chat_template().unwrap().as_deref(), Some(template));
    assert_eq!(
        model
            .stop_token_ids(&model.chat(chrono::Local::now()).unwrap())
            .unwrap(),
        [96, 98]
    );
}

#[test]
fn tokenizers_that_cannot_be_expressed_are_refused_by_name() {
    let problem = |writer: &GgufWriter| {
        let (_kept, path) = save(writer);
        ModelFiles::open(&path)
            .unwrap()
            .tokenizer()
            .expect_err("refused")
            .to_string()
    };
    assert!(problem(&with_tokenizer("poro-chat", |_| {})).contains("poro-chat"));
    let mut sentencepiece = golden_as_gguf("tied", BlockType::F32);
    assert!(problem(&sentencepiece).contains("tokenizer.ggml.model"));
    sentencepiece.strings("tokenizer.ggml.tokens", &["a"]);
    sentencepiece.string("tokenizer.ggml.model", "bert");
    assert!(problem(&sentencepiece).contains("\"bert\""));
    let twice = |writer: &mut GgufWriter| {
        writer.string("tokenizer.ggml.model", "gpt2");
        writer.string("tokenizer.ggml.pre", "gpt-2");
        writer.strings("tokenizer.ggml.tokens", &["a", "a"]);
        writer.strings("tokenizer.ggml.merges", &[]);
    };
    let mut writer = golden_as_gguf("tied", BlockType::F32);
    twice(&mut writer);
    assert!(problem(&writer).contains("stands twice"));
}

#[test]
fn g050_a_count_of_layers_beyond_all_models_is_refused_before_anything_is_made_for_them() {
    let mut writer = GgufWriter::default();
    writer.string("general.architecture", "llama");
    for (key, value) in [
        ("embedding_length", 64),
        ("attention.head_count", 4),
        ("block_count", 2_000_000_000),
        ("attention.sliding_window", 16),
    ] {
        writer.u32(&format!("llama.{key}"), value);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, writer.finish()).unwrap();
    let error = GgufModel::open(&path).unwrap_err().to_string();
    assert!(error.contains("llama.block_count"), "{error}");
}
