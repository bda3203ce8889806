//! A model folder's tokenizer as GGUF metadata.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::Value;
use super::sentencepiece::SPACE;
use super::tokenizer::{BYTE, CONTROL, PreTokenizer, UNKNOWN, USER_DEFINED};
use crate::tokenizer::Tokenizer;

/// An ordinary token, in `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
/// A number that stands for no token, in `tokenizer.ggml.token_type`.
const UNUSED: i64 = 5;

/// The score of tokens that nothing is merged to: below every other.
const LOWEST_SCORE: f64 = -1e9;

/// The metadata of a tokenizer: `json` is its `tokenizer.json`, `vocabulary` the number of tokens that the model
/// knows, `end_ids` what ends an answer.
///
/// # Errors
/// What of the tokenizer has no name in the format.
pub(crate) fn tokenizer_metadata(
    json: &Json,
    tokenizer: &Tokenizer,
    vocabulary: usize,
    end_ids: &[u32],
) -> Result<Vec<(String, Value)>, String> {
    let model = &json["model"];
    let mut metadata = match (model["type"].as_str(), model["byte_fallback"].as_bool()) {
        (Some("BPE"), Some(true)) => sentencepiece(json, vocabulary)?,
        (Some("BPE"), _) => byte_level(json, vocabulary)?,
        (kind, _) => {
            return Err(format!(
                "a tokenizer of type {kind:?} cannot be written to GGUF"
            ));
        }
    };
    let special = tokenizer.special();
    let id = |token: &Option<String>| tokenizer.id_of(token.as_deref()?);
    let eos = id(&special.eos);
    for (key, id) in [
        ("bos_token_id", id(&special.bos)),
        ("eos_token_id", eos),
        (
            "eot_token_id",
            end_ids.iter().copied().find(|id| Some(*id) != eos),
        ),
        ("unknown_token_id", id(&special.unk)),
        ("padding_token_id", id(&special.pad)),
    ] {
        metadata.extend(id.map(|id| (key, Value::Integer(id.into()))));
    }
    let adds_bos = !tokenizer.prefix().is_empty();
    metadata.push(("add_bos_token", Value::Bool(adds_bos)));
    Ok(metadata
        .into_iter()
        .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
        .collect())
}

/// BPE over bytes: text is cut by a pattern, then pairs are merged in the order of a list.
fn byte_level(json: &Json, vocabulary: usize) -> Result<Vec<(&'static str, Value)>, String> {
    let (tokens, types) = tokens(json, vocabulary, |_| NORMAL)?;
    Ok(vec![
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String(pre_name(json)?.into())),
        ("tokens", Value::Strings(tokens)),
        ("token_type", Value::Integers(types)),
        ("merges", Value::Strings(merges(&json["model"])?)),
    ])
}

/// BPE over characters as SentencePiece has it: what is merged first has the highest score, and characters that are no
/// tokens become bytes.
fn sentencepiece(json: &Json, vocabulary: usize) -> Result<Vec<(&'static str, Value)>, String> {
    let unknown = json["model"]["unk_token"].as_str();
    let (tokens, types) = tokens(json, vocabulary, |token| match token {
        token if Some(token) == unknown => UNKNOWN,
        token if token.len() == 6 && token.starts_with("<0x") && token.ends_with('>') => BYTE,
        _ => NORMAL,
    })?;
    let mut scores = HashMap::new();
    for (rank, merge) in merges(&json["model"])?.iter().enumerate() {
        // A token that several pairs make has the score of the first.
        scores
            .entry(merge.replacen(' ', "", 1))
            .or_insert(-(rank as f64));
    }
    let scores = tokens
        .iter()
        .map(|token| scores.get(token).copied().unwrap_or(LOWEST_SCORE));
    let scores = Value::Floats(scores.collect());
    Ok(vec![
        ("model", Value::String("llama".into())),
        ("pre", Value::String("default".into())),
        ("add_space_prefix", Value::Bool(puts_space_first(json)?)),
        ("scores", scores),
        ("tokens", Value::Strings(tokens)),
        ("token_type", Value::Integers(types)),
    ])
}

/// Whether a tokenizer in SentencePiece's manner puts a space in front of a text; any other preparation of the text
/// than writing spaces as `▁` is an error.
fn puts_space_first(json: &Json) -> Result<bool, String> {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let steps = match &json["normalizer"] {
        Json::Null => Vec::new(),
        Json::Object(sequence) if sequence["type"] == "Sequence" => sequence["normalizers"]
            .as_array()
            .cloned()
            .unwrap_or_default(),
        one => vec![one.clone()],
    };
    let cut = &json["pre_tokenizer"];
    match steps.as_slice() {
        [first, second] if *first == prepend && *second == replace && cut.is_null() => Ok(true),
        [only] if *only == replace && cut.is_null() => Ok(false),
        [] if cut["type"] == "Metaspace"
            && cut["replacement"] == SPACE
            && cut["split"] == false =>
        {
            Ok(cut["prepend_scheme"] != "never")
        }
        _ => Err(format!(
            "the tokenizer's normalizer {} with pre_tokenizer {cut} cannot be written to GGUF",
            json["normalizer"]
        )),
    }
}

/// The name of the way in which text is cut before merging.
fn pre_name(json: &Json) -> Result<&'static str, String> {
    let comparable = |pre_tokenizer: &Json| {
        let mut pre_tokenizer = pre_tokenizer.clone();
        forget_offsets(&mut pre_tokenizer);
        pre_tokenizer
    };
    let ignore_merges = json["model"]["ignore_merges"].as_bool().unwrap_or(false);
    for name in PreTokenizer::NAMES {
        let known = PreTokenizer::named(name)?;
        if known.normalizer == json["normalizer"]
            && known.ignore_merges == ignore_merges
            && comparable(&known.pre_tokenizer) == comparable(&json["pre_tokenizer"])
        {
            return Ok(name);
        }
    }
    Err(format!(
        "the tokenizer's pre_tokenizer {} (normalizer {}) has no name in GGUF that is known here",
        json["pre_tokenizer"], json["normalizer"]
    ))
}

/// Takes away what changes only the places of tokens in the text.
fn forget_offsets(value: &mut Json) {
    match value {
        Json::Object(fields) => {
            fields.remove("trim_offsets");
            fields.values_mut().for_each(forget_offsets);
        }
        Json::Array(items) => items.iter_mut().for_each(forget_offsets),
        _ => {}
    }
}

/// All tokens by their numbers, with their types (those that are not added by `type_of`); numbers of the model that
/// stand for none are filled up.
fn tokens(
    json: &Json,
    vocabulary: usize,
    type_of: impl Fn(&str) -> i64,
) -> Result<(Vec<String>, Vec<i64>), String> {
    let mut tokens = vec![None; vocabulary];
    let place = |id: u64| usize::try_from(id).ok().filter(|id| *id < vocabulary);
    let vocab = json["model"]["vocab"].as_object();
    for (token, id) in vocab.into_iter().flatten() {
        let id = id.as_u64().and_then(place);
        let id = id.ok_or_else(|| format!("token {token:?} is outside the model's vocabulary"))?;
        tokens[id] = Some((token.clone(), type_of(token)));
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let content = added["content"].as_str().unwrap_or_default();
        let id = added["id"].as_u64().and_then(place);
        let id =
            id.ok_or_else(|| format!("token {content:?} is outside the model's vocabulary"))?;
        let kind = match type_of(content) {
            NORMAL if added["special"] == true || looks_like_control(content) => CONTROL,
            NORMAL => USER_DEFINED,
            other => other,
        };
        tokens[id] = Some((content.to_owned(), kind));
    }
    let filled = tokens.into_iter().enumerate();
    Ok(filled
        .map(|(id, token)| token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED)))
        .unzip())
}

/// Whether llama.cpp's converter takes an added token for a control token although its file does not call it one.
fn looks_like_control(token: &str) -> bool {
    token.starts_with("<|") && token.ends_with("|>")
}

/// Pairs to be merged, first those that are merged first; written as pairs or with a space between.
fn merges(model: &Json) -> Result<Vec<String>, String> {
    let merges = model["merges"].as_array().into_iter().flatten();
    merges
        .map(|merge| match merge {
            Json::String(pair) => Ok(pair.clone()),
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(a), Json::String(b)] if !a.contains(' ') && !b.contains(' ') => {
                    Ok(format!("{a} {b}"))
                }
                _ => Err(format!("merge {merge} is no pair")),
            },
            _ => Err(format!("merge {merge} is no pair")),
        })
        .collect()
}
