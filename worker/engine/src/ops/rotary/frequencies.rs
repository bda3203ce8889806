//! The frequencies of a rotary embedding: a power of the base for each pair of features, stretched for longer contexts.
//!
//! Rounded to `f32` where the reference rounds: at far positions the last bit of a frequency turns the angle visibly.

use std::f64::consts::TAU;

use crate::model::{ModelConfig, RopeScaling};

/// Radians per position for each pair of features of a head.
pub(super) fn frequencies(config: &ModelConfig) -> Vec<f32> {
    let (dim, base) = (config.head_dim, config.rope_theta);
    let wavelength = |i: usize| base.powf(f64::from(2.0 * i as f32 / dim as f32)) as f32;
    let plain = (0..dim / 2).map(|i| 1.0 / wavelength(i));
    match &config.rope_scaling {
        RopeScaling::Default => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
        RopeScaling::Divisors(divisors) => plain.zip(divisors).map(|(f, d)| f / d).collect(),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let original = *original_max_position_embeddings as f64;
            let stretched = |frequency: f32| {
                let turns = original * f64::from(frequency) / TAU;
                // 0 at wavelengths to be stretched in full, 1 at those to be kept.
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                between(
                    frequency / *factor as f32,
                    frequency,
                    kept.clamp(0.0, 1.0) as f32,
                )
            };
            plain.map(stretched).collect()
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } => {
            let original = *original_max_position_embeddings as f64;
            // The pair of features that turns so often in the first context.
            let pair_of =
                |turns: f64| dim as f64 * (original / (turns * TAU)).ln() / (2.0 * base.ln());
            let (mut low, mut high) = (pair_of(*beta_fast), pair_of(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
            if low == high {
                high += 0.001;
            }
            let stretched = |(i, frequency): (usize, f32)| {
                let ramp = (i as f32 - low as f32) / (high - low) as f32;
                let kept = 1.0 - ramp.clamp(0.0, 1.0);
                between(1.0 / (*factor as f32 * wavelength(i)), frequency, kept)
            };
            plain.enumerate().map(stretched).collect()
        }
    }
}

/// `low` at 0, `high` at 1, a mixture between.
fn between(low: f32, high: f32, part: f32) -> f32 {
    low * (1.0 - part) + high * part
}
