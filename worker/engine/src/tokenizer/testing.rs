//! A tokenizer for tests: one token a byte, and some control tokens.

use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::{SpecialTokens, Tokenizer};

/// The control tokens, with ids from 256 in this order.
pub(crate) const CONTROL: [&str; 9] = [
    "<unk>",
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
];

/// The content of a `tokenizer.json` of one token a byte and the control tokens that are given.
pub(crate) fn bytes_json(control: &[&str], post_processor: Value) -> Value {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let vocab = alphabet
        .iter()
        .enumerate()
        .map(|(id, byte)| (byte.to_string(), json!(id)));
    let added = control.iter().enumerate().map(|(id, content)| {
        json!({"id": 256 + id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added.collect::<Vec<_>>(), "pre_tokenizer": byte_level, "decoder": byte_level,
        "post_processor": post_processor,
        "model": {"type": "BPE", "vocab": vocab.collect::<serde_json::Map<_, _>>(), "merges": []},
    })
}

/// The token of [`bytes`] that stands for one byte.
pub(crate) fn byte_token(byte: u8) -> u32 {
    // The alphabet's letters: printable bytes as they are, the others from U+0100 in order.
    let is_printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let printable = (0..=255).filter(is_printable).count() as u32;
    let others = |end: u8| (0..end).filter(|byte| !is_printable(byte)).count() as u32;
    if is_printable(&byte) {
        u32::from(byte) - others(byte)
    } else {
        printable + others(byte)
    }
}

/// A post-processor that puts `bos` in front of every text.
pub(crate) fn bos_first(bos: &str) -> Value {
    let id = 256
        + CONTROL
            .iter()
            .position(|token| *token == bos)
            .expect("a control token");
    json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
    })
}

/// One token a byte, `<s>` and `</s>` around texts by name; none is put there by the tokenizer.
pub(crate) fn bytes() -> Tokenizer {
    build(&bytes_json(&CONTROL, Value::Null), "<s>", "</s>")
}

/// The same, with a tokenizer that puts its BOS token in front of texts.
pub(crate) fn bytes_with_bos(bos: &str, eos: &str) -> Tokenizer {
    build(&bytes_json(&CONTROL, bos_first(bos)), bos, eos)
}

/// The tokenizer of such a file.
pub(crate) fn build(json: &Value, bos: &str, eos: &str) -> Tokenizer {
    let special = SpecialTokens {
        bos: Some(bos.to_owned()),
        eos: Some(eos.to_owned()),
        ..SpecialTokens::default()
    };
    Tokenizer::from_json(json.to_string().as_bytes(), special).expect("the tokenizer is sound")
}
