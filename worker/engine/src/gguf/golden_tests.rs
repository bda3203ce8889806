//! GGUF files made by the format's own Python package: logits of transformers, tokens of llama.cpp and transformers.

use std::path::PathBuf;
use std::sync::Arc;

use crate::golden;
use crate::model::{Adapter, Batch, IGNORE, Llama, RopeScaling, TrainModel};
use crate::tokenizer::Tokenizer;
use crate::weights::ModelFiles;

fn file(name: &str) -> PathBuf {
    golden::path("gguf").join(format!("{name}.gguf"))
}

#[test]
fn a_file_of_each_architecture_gives_the_logits_of_transformers() {
    let golden = golden::json("gguf/models.json");
    let ids: Vec<u32> = golden::numbers(&golden["input_ids"])
        .iter()
        .map(|&id| id as u32)
        .collect();
    let mut batch = Batch::default();
    batch.push_sequence(&ids, &vec![IGNORE; ids.len()]);
    for (name, expected) in golden["logits"].as_object().unwrap() {
        let files = ModelFiles::open(&file(name)).unwrap();
        assert_eq!(files.config.architecture.model_type(), name);
        let model = Llama::load(&files).unwrap();
        let empty = Adapter::empty(model.config());
        let vocabulary = model.config().vocab_size;
        let found = TrainModel::new(Arc::new(model), &empty)
            .unwrap()
            .logits(&batch)
            .unwrap();
        for (row, at) in golden::numbers(&golden["logits_at"]).iter().enumerate() {
            let found = &found[*at as usize * vocabulary..][..vocabulary];
            let expected = golden::numbers(&expected[row]);
            let largest = expected.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                // Roundings of f32 through two layers; GGUF holds some constants in f32 that the folder has in f64.
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error < 5e-6 * largest,
                    "{name} at {at}: {found}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn divisors_of_a_llama_3_model_are_recognised_and_others_kept_as_they_are() {
    let files = ModelFiles::open(&file("llama")).unwrap();
    assert!(matches!(&files.config.rope_scaling, RopeScaling::Divisors(d) if d.len() == 5));
    for (factor, theta, head_dim) in [(8.0, 5e5, 128), (32.0, 5e5, 64)] {
        let llama3 = RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let config = crate::model::ModelConfig {
            rope_theta: theta,
            head_dim,
            rope_scaling: llama3.clone(),
            ..files.config.clone()
        };
        let divisors = super::rope_divisors(&config).unwrap();
        assert_eq!(super::config::llama3_of(&divisors, theta), Some(llama3));
    }
}

fn assert_tokens(tokenizer: &Tokenizer, name: &str) {
    for case in golden::json("gguf/tokenizers.json")[name]
        .as_array()
        .unwrap()
    {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = golden::numbers(&case["ids"])
            .iter()
            .map(|&id| id as u32)
            .collect();
        let tokens = tokenizer.encode_text(text).unwrap();
        let found: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let prefix = tokenizer.prefix();
        assert_eq!(found.strip_prefix(prefix), Some(&expected[..]), "{text:?}");
    }
}

#[test]
fn a_sentencepiece_tokenizer_gives_the_tokens_of_llama_cpp_and_their_text_back() {
    let tokenizer = ModelFiles::open(&file("sentencepiece"))
        .unwrap()
        .tokenizer()
        .unwrap();
    assert_tokens(&tokenizer, "sentencepiece");
    assert_eq!(tokenizer.prefix(), [1], "a BOS token begins texts");
    for text in ["The night train, \u{1F60A}!", "  two spaces\nand a line"] {
        let ids: Vec<u32> = tokenizer
            .encode_text(text)
            .unwrap()
            .iter()
            .map(|t| t.id)
            .collect();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }
}

#[test]
fn a_byte_level_tokenizer_gives_the_tokens_of_transformers() {
    let tokenizer = ModelFiles::open(&file("byte_level"))
        .unwrap()
        .tokenizer()
        .unwrap();
    assert_tokens(&tokenizer, "qwen2");
    assert!(tokenizer.prefix().is_empty());
}

#[test]
fn g088_control_tokens_of_a_sentencepiece_tokenizer_are_none_that_text_can_write() {
    let tokenizer = ModelFiles::open(&file("sentencepiece"))
        .unwrap()
        .tokenizer()
        .unwrap();
    let tokens = tokenizer.encode_text("a</s>b<unk>").unwrap();
    assert!(tokens[1..].iter().all(|token| token.id > 2), "{tokens:?}");
}
