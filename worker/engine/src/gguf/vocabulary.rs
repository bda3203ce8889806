//! A model folder's tokenizer as GGUF metadata.

use serde_json::Value as Json;

use super::Value;
use super::tokenizer::{CONTROL, PreTokenizer, USER_DEFINED};
use crate::tokenizer::Tokenizer;

/// An ordinary token, in `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
/// A number that stands for no token, in `tokenizer.ggml.token_type`.
const UNUSED: i64 = 5;

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
    if model["type"] != "BPE" || model["byte_fallback"] == true {
        return Err(
            "the tokenizer is no byte-level BPE, which alone can be written to GGUF".into(),
        );
    }
    let pre = pre_name(json)?;
    let (tokens, types) = tokens(json, vocabulary)?;
    let mut metadata = vec![
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String(pre.into())),
        ("tokens", Value::Strings(tokens)),
        ("token_type", Value::Integers(types)),
        ("merges", Value::Strings(merges(model)?)),
    ];
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

/// All tokens by their numbers, with their types; numbers of the model that stand for none are filled up.
fn tokens(json: &Json, vocabulary: usize) -> Result<(Vec<String>, Vec<i64>), String> {
    let mut tokens = vec![None; vocabulary];
    let place = |id: u64| usize::try_from(id).ok().filter(|id| *id < vocabulary);
    let vocab = json["model"]["vocab"].as_object();
    for (token, id) in vocab.into_iter().flatten() {
        let id = id.as_u64().and_then(place);
        let id = id.ok_or_else(|| format!("token {token:?} is outside the model's vocabulary"))?;
        tokens[id] = Some((token.clone(), NORMAL));
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let content = added["content"].as_str().unwrap_or_default();
        let id = added["id"].as_u64().and_then(place);
        let id =
            id.ok_or_else(|| format!("token {content:?} is outside the model's vocabulary"))?;
        let is_control = added["special"] == true || looks_like_control(content);
        let kind = if is_control { CONTROL } else { USER_DEFINED };
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
