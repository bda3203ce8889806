//! The names that GGUF gives to the weights of this family.

use crate::model::Projection;

/// The name of a weight by its Hugging Face name, if it is one.
pub(crate) fn gguf_name(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.norm.weight" => return Some("output_norm.weight".into()),
        "lm_head.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, module) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, kind) = module.rsplit_once('.')?;
    let part = match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        _ => part_of(
            Projection::ALL
                .into_iter()
                .find(|p| p.module_name() == module)?,
        ),
    };
    matches!(kind, "weight" | "bias").then(|| format!("blk.{layer}.{part}.{kind}"))
}

/// What the format calls a projection within its layer.
pub(super) fn part_of(projection: Projection) -> &'static str {
    match projection {
        Projection::Q => "attn_q",
        Projection::K => "attn_k",
        Projection::V => "attn_v",
        Projection::O => "attn_output",
        Projection::Gate => "ffn_gate",
        Projection::Up => "ffn_up",
        Projection::Down => "ffn_down",
    }
}
