//! The rotary embedding of a `config.json`: `rope_parameters` since transformers 5, `rope_theta` and `rope_scaling`
//! before.

use serde_json::Value;

use super::fields::Fields;
use crate::model::RopeScaling;

/// Base of the frequencies where a config names none; the same for every architecture that is read.
const DEFAULT_THETA: f64 = 10_000.0;

/// Base and scaling of the frequencies. Where both forms are given, the older one counts, as in transformers.
pub(super) fn rope(
    config: &Fields<'_>,
    max_position_embeddings: usize,
) -> Result<(f64, RopeScaling), String> {
    let outer_theta = config.optional_number("rope_theta")?;
    config.refuse("partial_rotary_factor", |value| value.as_f64() != Some(1.0))?;
    let found = ["rope_scaling", "rope_parameters"]
        .into_iter()
        .filter_map(|name| Some((name, config.given(name)?)))
        .find(|(_, value)| value.as_object().is_none_or(|fields| !fields.is_empty()));
    let Some((name, value)) = found else {
        return Ok((outer_theta.unwrap_or(DEFAULT_THETA), RopeScaling::Default));
    };
    let Value::Object(inner) = value else {
        return Err(format!("{name} is no object"));
    };
    let inner = Fields(inner);
    inner.refuse("partial_rotary_factor", |value| value.as_f64() != Some(1.0))?;
    let theta = inner.optional_number("rope_theta")?.or(outer_theta);
    let original = config
        .optional_count("original_max_position_embeddings")?
        .or(inner.optional_count("original_max_position_embeddings")?)
        .unwrap_or(max_position_embeddings);
    let kind = inner.given("rope_type").or_else(|| inner.given("type"));
    let scaling = match kind.map(|kind| kind.as_str().ok_or(kind)) {
        None if inner.0.values().any(Value::is_object) => {
            return Err(format!("{name} differing by layer is not supported"));
        }
        None | Some(Ok("default")) => RopeScaling::Default,
        Some(Ok("linear")) => RopeScaling::Linear {
            factor: inner.number("factor")?,
        },
        Some(Ok("llama3")) => RopeScaling::Llama3 {
            factor: inner.number("factor")?,
            low_freq_factor: inner.number("low_freq_factor")?,
            high_freq_factor: inner.number("high_freq_factor")?,
            original_max_position_embeddings: original,
        },
        Some(Ok("yarn")) => yarn(&inner, original, max_position_embeddings)?,
        Some(Ok(other)) => return Err(format!("{name} of type {other:?} is not supported")),
        Some(Err(other)) => return Err(format!("{name} of type {other} is not supported")),
    };
    check(&scaling).map_err(|problem| format!("{name}: {problem}"))?;
    Ok((theta.unwrap_or(DEFAULT_THETA), scaling))
}

fn yarn(inner: &Fields<'_>, original: usize, longest: usize) -> Result<RopeScaling, String> {
    let factor = match inner.optional_number("factor")? {
        Some(factor) => factor,
        None => longest as f64 / original as f64,
    };
    // Zero counts as not given, as in the reference.
    let given = |name| Ok::<_, String>(inner.optional_number(name)?.filter(|x| *x != 0.0));
    let attention_factor = match (
        inner.optional_number("attention_factor")?,
        given("mscale")?,
        given("mscale_all_dim")?,
    ) {
        (Some(attention_factor), ..) => attention_factor,
        (None, Some(mscale), Some(all)) => {
            RopeScaling::yarn_attention(factor, mscale) / RopeScaling::yarn_attention(factor, all)
        }
        _ => RopeScaling::yarn_attention(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original,
        beta_fast: given("beta_fast")?.unwrap_or(RopeScaling::BETA_FAST),
        beta_slow: given("beta_slow")?.unwrap_or(RopeScaling::BETA_SLOW),
        truncate: inner.optional_bool("truncate")?.unwrap_or(true),
        attention_factor,
    })
}

fn check(scaling: &RopeScaling) -> Result<(), String> {
    match *scaling {
        RopeScaling::Linear { factor }
        | RopeScaling::Llama3 { factor, .. }
        | RopeScaling::Yarn { factor, .. }
            if factor < 1.0 =>
        {
            Err(format!("factor {factor} is below 1"))
        }
        RopeScaling::Llama3 {
            low_freq_factor: low,
            high_freq_factor: high,
            ..
        } if !(low > 0.0 && high > low) => Err(format!(
            "low_freq_factor {low} and high_freq_factor {high} are no range"
        )),
        RopeScaling::Yarn {
            beta_fast,
            beta_slow,
            ..
        } if !(beta_slow > 0.0 && beta_fast >= beta_slow) => Err(format!(
            "beta_slow {beta_slow} and beta_fast {beta_fast} are no range"
        )),
        RopeScaling::Yarn {
            attention_factor, ..
        } if attention_factor <= 0.0 => Err(format!(
            "attention_factor {attention_factor} is not above 0"
        )),
        _ => Ok(()),
    }
}
