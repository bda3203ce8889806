//! The tokenizer that a GGUF file holds, expressed as a `tokenizer.json`.

use serde_json::{Value as Json, json};

use super::config::Metadata;
use super::reader::Structure;
use super::sentencepiece;
use crate::tokenizer::SpecialTokens;

/// What stands for the unknown, in `tokenizer.ggml.token_type`.
pub(super) const UNKNOWN: i64 = 2;
/// A control token, in `tokenizer.ggml.token_type`.
pub(super) const CONTROL: i64 = 3;
/// A token added by hand, in `tokenizer.ggml.token_type`.
pub(super) const USER_DEFINED: i64 = 4;
/// A single byte, in `tokenizer.ggml.token_type`.
pub(super) const BYTE: i64 = 6;

/// What sets kinds of tokenizers apart, as parts of a `tokenizer.json`.
pub(super) struct Parts {
    pub normalizer: Json,
    pub pre_tokenizer: Json,
    pub decoder: Json,
    /// All of the model but its vocabulary.
    pub model: Json,
    /// Whether a BOS token begins texts where the file does not say.
    pub adds_bos: bool,
}

/// The pattern by which Llama 3 cuts text before merging, with `digits` digits to a piece.
fn llama3_pattern(digits: &str) -> String {
    format!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

/// The pattern by which Mistral's later models cut text before merging.
const TEKKEN_PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Builds the content of a `tokenizer.json`, or says what of it cannot be expressed.
pub(super) fn tokenizer_json(
    structure: &Structure,
    vocabulary: usize,
) -> Result<(Json, SpecialTokens), String> {
    let metadata = Metadata(structure);
    let model = metadata.string("tokenizer.ggml.model")?;
    let tokens = metadata.strings("tokenizer.ggml.tokens")?;
    if tokens.len() > vocabulary {
        return Err(format!(
            "{} tokens for a model of {vocabulary}",
            tokens.len()
        ));
    }
    let special = |name: &str| -> Result<Option<String>, String> {
        let Some(id) = metadata.optional_count(&format!("tokenizer.ggml.{name}_token_id"))? else {
            return Ok(None);
        };
        let token = tokens
            .get(id)
            .ok_or_else(|| format!("{name} token {id} is outside the vocabulary"))?;
        Ok(Some(token.clone()))
    };
    let named = SpecialTokens {
        bos: special("bos")?,
        eos: special("eos")?,
        unk: special("unknown")?,
        pad: special("padding")?,
    };
    let mut parts = match model {
        "gpt2" => byte_level_parts(&metadata)?,
        "llama" => sentencepiece::parts(&metadata, tokens)?,
        other => {
            return Err(format!(
                "tokenizer model {other:?} is not supported (only \"gpt2\" and \"llama\" are)"
            ));
        }
    };
    let vocab: serde_json::Map<_, _> = tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), json!(id)))
        .collect();
    if vocab.len() != tokens.len() {
        return Err("a token stands twice in tokenizer.ggml.tokens".into());
    }
    let adds_bos = metadata
        .optional_bool("tokenizer.ggml.add_bos_token")?
        .unwrap_or(parts.adds_bos);
    let post_processor = named
        .bos
        .as_ref()
        .filter(|_| adds_bos)
        .map(|bos| bos_first(bos, &vocab[bos]));
    parts.model["vocab"] = Json::Object(vocab);
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&metadata, tokens)?,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    Ok((json, named))
}

/// A tokenizer of bytes, cut and merged by its own list of merges.
fn byte_level_parts(metadata: &Metadata<'_>) -> Result<Parts, String> {
    let pre = PreTokenizer::named(metadata.string("tokenizer.ggml.pre")?)?;
    Ok(Parts {
        normalizer: pre.normalizer,
        pre_tokenizer: pre.pre_tokenizer,
        decoder: byte_level(true),
        model: json!({
            "type": "BPE",
            "merges": metadata.strings("tokenizer.ggml.merges")?,
            "ignore_merges": pre.ignore_merges,
        }),
        adds_bos: pre.adds_bos,
    })
}

fn added_tokens(metadata: &Metadata<'_>, tokens: &[String]) -> Result<Vec<Json>, String> {
    let types = metadata
        .optional_integers("tokenizer.ggml.token_type")?
        .unwrap_or(&[]);
    let added = types
        .iter()
        .zip(tokens)
        .enumerate()
        .filter(|(_, (kind, _))| matches!(**kind, CONTROL | USER_DEFINED));
    Ok(added
        .map(|(id, (kind, content))| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL,
            })
        })
        .collect())
}

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn bos_first(bos: &str, id: &Json) -> Json {
    json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
    })
}

/// How text is cut before merging, by the names that `tokenizer.ggml.pre` uses.
pub(super) struct PreTokenizer {
    pub normalizer: Json,
    pub pre_tokenizer: Json,
    pub ignore_merges: bool,
    adds_bos: bool,
}

impl PreTokenizer {
    /// One name for each way.
    pub const NAMES: [&str; 5] = ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"];

    pub fn named(name: &str) -> Result<Self, String> {
        let plain = |pre_tokenizer| Self {
            normalizer: Json::Null,
            pre_tokenizer,
            ignore_merges: false,
            adds_bos: false,
        };
        let by_pattern = |pattern: String| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                byte_level(false),
            ]})
        };
        Ok(match name {
            "gpt-2" => plain(byte_level(true)),
            "smollm" => plain(json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true}, byte_level(true),
            ]})),
            "llama-bpe" | "llama3" | "llama-v3" => Self {
                ignore_merges: true,
                adds_bos: true,
                ..plain(by_pattern(llama3_pattern(r"\p{N}{1,3}")))
            },
            "tekken" => Self {
                ignore_merges: true,
                adds_bos: true,
                ..plain(by_pattern(TEKKEN_PATTERN.to_owned()))
            },
            "qwen2" | "deepseek-r1-qwen" => Self {
                normalizer: json!({"type": "NFC"}),
                adds_bos: name != "qwen2",
                ..plain(by_pattern(llama3_pattern(r"\p{N}")))
            },
            other => return Err(format!("tokenizer pre {other:?} is not supported")),
        })
    }
}
