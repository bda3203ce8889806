//! Rotary position embedding: pairs of features of each head turned by an angle that grows with the position.
//!
//! ```text
//! angle = position * frequency[i]        for i < head_dim / 2, features i and i + head_dim / 2
//! cos, sin     = factor * cos(angle), factor * sin(angle)      factor is 1 but for YaRN
//! y[i]         = x[i] * cos - x[i + half] * sin
//! y[i + half]  = x[i + half] * cos + x[i] * sin
//! ```
//! The gradient is the same turned back.

mod cpu;
mod frequencies;

use frequencies::frequencies;

use crate::{
    device::{ActivationsMut, LANES, padded_tokens},
    model::{ModelConfig, RopeScaling},
    profile::{Operation, Timed},
};

/// The frequencies of a model's rotary embedding.
#[derive(Debug, Clone)]
pub struct Rotary {
    frequencies: Vec<f32>,
    /// What cosines and sines are multiplied with.
    factor: f32,
}

/// Cosines and sines for the tokens of one batch, `[tokens, head_dim / 2]` in the layout of activations.
#[derive(Debug, Clone, Copy)]
pub struct Angles<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Rotary {
    /// Frequencies by a model's configuration.
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            frequencies: frequencies(config),
            factor: match config.rope_scaling {
                RopeScaling::Yarn {
                    attention_factor, ..
                } => attention_factor as f32,
                _ => 1.0,
            },
        }
    }

    /// Radians per position, one for each pair of features.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Values of storage that [`Rotary::angles`] needs.
    pub fn storage(&self, tokens: usize) -> usize {
        2 * padded_tokens(tokens) * self.frequencies.len()
    }

    /// Fills `storage` with the cosines and sines of `positions`.
    pub fn angles<'a>(&self, storage: &'a mut [f32], positions: &[u32]) -> Angles<'a> {
        let _timed = Timed::begin(Operation::Rotary, 0);
        let (cos, sin) = storage[..self.storage(positions.len())]
            .split_at_mut(self.storage(positions.len()) / 2);
        cpu::angles(cos, sin, positions, self);
        Angles { cos, sin }
    }

    /// Sines and cosines of a position, for each pair of a head's features.
    pub fn turns(&self, position: u32) -> impl Iterator<Item = (f32, f32)> + '_ {
        let frequencies = self.frequencies.iter();
        frequencies.map(move |frequency| self.turn_of(position, *frequency))
    }

    /// Sine and cosine; the angle is rounded to f32 as in the reference, its sine and cosine are not.
    fn turn_of(&self, position: u32, frequency: f32) -> (f32, f32) {
        let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
        (sin as f32 * self.factor, cos as f32 * self.factor)
    }
}

/// Turns `x` `[tokens, heads * head_dim]` in place.
pub fn rotary_forward(x: &mut ActivationsMut<'_>, angles: Angles<'_>) {
    let _timed = Timed::begin(Operation::Rotary, 0);
    cpu::turn(x, angles, 1.0);
}

/// Turns `x` `[heads * head_dim]` of one token in place, by the [sines and cosines](Rotary::turns) of its position.
pub fn rotary_one(x: &mut [f32], turns: &[(f32, f32)]) {
    let half = turns.len();
    for head in x.chunks_exact_mut(2 * half) {
        let (first, second) = head.split_at_mut(half);
        for ((a, b), (sin, cos)) in first.iter_mut().zip(second).zip(turns) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Turns the gradient `dx` back in place.
pub fn rotary_backward(dx: &mut ActivationsMut<'_>, angles: Angles<'_>) {
    let _timed = Timed::begin(Operation::Rotary, 0);
    cpu::turn(dx, angles, -1.0);
}

impl Angles<'_> {
    /// Cosines and sines of one block, `[head_dim / 2][lane]`.
    fn block(&self, block: usize, half: usize) -> (&[f32], &[f32]) {
        let range = block * half * LANES..(block + 1) * half * LANES;
        (&self.cos[range.clone()], &self.sin[range])
    }

    fn half(&self, blocks: usize) -> usize {
        self.cos.len() / (blocks * LANES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::Architecture,
        ops::test_values::{Checked, blocks, values},
    };

    fn config(rope_scaling: RopeScaling) -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Llama,
            vocab_size: 8,
            hidden_size: 8,
            intermediate_size: 8,
            num_hidden_layers: 1,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: 8,
            max_position_embeddings: 64,
            rms_norm_eps: 1e-5,
            rope_theta: 100.0,
            rope_scaling,
            tie_word_embeddings: true,
            biased: Vec::new(),
            qk_norm: false,
            sliding_window: None,
        }
    }

    #[test]
    fn forward_and_gradient_agree_with_finite_differences() {
        let (tokens, heads, head_dim) = (34, 2, 8);
        let rotary = Rotary::new(&config(RopeScaling::Default));
        let positions: Vec<u32> = (0..tokens as u32).map(|t| t % 20).collect();
        let width = heads * head_dim;
        let (x, dy) = (values(1, tokens * width), values(2, tokens * width));
        let reference = |inputs: &[Vec<f64>]| -> Vec<f64> {
            let mut y = inputs[0].clone();
            for (token, position) in positions.iter().enumerate() {
                for head in 0..heads {
                    for i in 0..head_dim / 2 {
                        let angle =
                            f64::from(*position) * 100f64.powf(-2.0 * i as f64 / head_dim as f64);
                        let a = token * width + head * head_dim + i;
                        let b = a + head_dim / 2;
                        (y[a], y[b]) = (
                            y[a] * angle.cos() - y[b] * angle.sin(),
                            y[b] * angle.cos() + y[a] * angle.sin(),
                        );
                    }
                }
            }
            y
        };
        let mut storage = vec![f32::NAN; rotary.storage(tokens)];
        let angles = rotary.angles(&mut storage, &positions);
        let (mut y, mut dx) = (blocks(&x, tokens), blocks(&dy, tokens));
        let (mut y, mut dx) = (
            ActivationsMut::new(&mut y, width),
            ActivationsMut::new(&mut dx, width),
        );
        rotary_forward(&mut y, angles);
        rotary_backward(&mut dx, angles);
        Checked::new(&y.view().to_rows(tokens), 3e-6)
            .forward(reference, &[&x])
            .gradients(&dy, &[&dx.view().to_rows(tokens)], 3e-6);
    }

    #[test]
    fn g061_llama_3_stretches_the_frequencies_as_transformers_does() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        let rotary = Rotary::new(&ModelConfig {
            head_dim: 16,
            rope_theta: 500_000.0,
            ..config(llama3)
        });
        let expected = [
            1.0,
            0.1939227,
            0.03760603,
            0.007292665,
            5.248462e-4,
            3.428102e-5,
            6.647_87e-6,
            1.289173e-6,
        ];
        assert_eq!(rotary.frequencies().len(), expected.len());
        for (found, expected) in rotary.frequencies().iter().zip(expected) {
            let error = (found - expected).abs();
            assert!(error < 1e-5 * expected, "{found}, not {expected}");
        }
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let plain = Rotary::new(&config(RopeScaling::Default));
        let linear = Rotary::new(&config(RopeScaling::Linear { factor: 4.0 }));
        for (plain, linear) in plain.frequencies().iter().zip(linear.frequencies()) {
            assert_eq!(plain / 4.0, *linear);
        }
    }
}
