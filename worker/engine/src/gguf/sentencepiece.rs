//! Tokenizers of the SentencePiece kind that Llama 2 and Mistral files hold, as BPE with single bytes to fall back on.
//!
//! The file has pieces with scores and no merges: SentencePiece joins whichever neighbours make the piece of the
//! highest score. Every way to make a piece of two others becomes a merge, those of the highest score first.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use super::config::Metadata;
use super::tokenizer::{BYTE, CONTROL, Parts, UNKNOWN};

/// What stands for a space within pieces.
pub(super) const SPACE: &str = "\u{2581}";

/// The parts of the tokenizer; `tokens` are the pieces by id.
pub(super) fn parts(metadata: &Metadata<'_>, tokens: &[String]) -> Result<Parts, String> {
    let types = metadata
        .optional_integers("tokenizer.ggml.token_type")?
        .unwrap_or(&[]);
    let merges = match metadata.get("tokenizer.ggml.merges") {
        Some(_) => json!(metadata.strings("tokenizer.ggml.merges")?),
        None => json!(merges(
            tokens,
            metadata.floats("tokenizer.ggml.scores")?,
            types
        )?),
    };
    let unknown = types.iter().position(|kind| *kind == UNKNOWN);
    let prefix = metadata
        .optional_bool("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Parts {
        normalizer: match prefix {
            true => json!({"type": "Sequence", "normalizers": [prepend, spaces]}),
            false => spaces,
        },
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: json!({
            "type": "BPE",
            "merges": merges,
            "unk_token": unknown.and_then(|id| tokens.get(id)),
            "fuse_unk": true,
            "byte_fallback": true,
        }),
        adds_bos: true,
    })
}

/// Every way to make a piece of two others, in the order in which SentencePiece prefers them.
fn merges<'t>(
    tokens: &'t [String],
    scores: &[f64],
    types: &[i64],
) -> Result<Vec<(&'t str, &'t str)>, String> {
    if scores.len() != tokens.len() {
        return Err(format!(
            "{} scores for {} tokens",
            scores.len(),
            tokens.len()
        ));
    }
    // Text never becomes one of these piece by piece.
    let is_text = |id: usize| !matches!(types.get(id), Some(&(CONTROL | UNKNOWN | BYTE)));
    let ids: HashMap<&str, usize> = tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| is_text(*id))
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let mut merges = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|(id, _)| is_text(*id)) {
        let splits = token
            .char_indices()
            .skip(1)
            .map(|(at, _)| token.split_at(at));
        let mut ways: Vec<_> = splits
            .filter_map(|(left, right)| Some(((ids.get(left)?, ids.get(right)?), (left, right))))
            .collect();
        ways.sort_unstable_by_key(|(ids, _)| *ids);
        merges.extend(ways.into_iter().map(|(_, way)| (scores[id], way)));
    }
    // As in transformers: by score, then the longer left part, then the longer right part first.
    let lengths = |(left, right): (&str, &str)| (left.chars().count(), right.chars().count());
    merges.sort_by(|(a, way_a), (b, way_b)| {
        b.total_cmp(a)
            .then_with(|| lengths(*way_b).cmp(&lengths(*way_a)))
    });
    Ok(merges.into_iter().map(|(_, way)| way).collect())
}
