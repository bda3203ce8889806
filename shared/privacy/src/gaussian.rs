//! The Gaussian mechanism on a participant's change of the adapter: clipped, then noise added.

use std::f64::consts::TAU;

use chacha20::ChaCha20Rng;
use rand::rngs::SysRng;
use rand::{Rng, SeedableRng};

/// How much of a change is let through, and how much noise is added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GaussianMechanism {
    clip_norm: f64,
    noise_multiplier: f64,
}

/// Settings that are no mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMechanism {
    /// The norm must be a number above 0.
    #[error("clip_norm must be a finite number above 0")]
    ClipNorm,
    /// The multiplier must be a number above 0.
    #[error("noise_multiplier must be a finite number above 0")]
    NoiseMultiplier,
}

impl GaussianMechanism {
    /// Changes are clipped to an L2 norm of `clip_norm`, and every value gets noise of standard deviation
    /// `noise_multiplier` times that.
    ///
    /// # Errors
    /// [`InvalidMechanism`] naming the one that is out of range.
    pub fn new(clip_norm: f64, noise_multiplier: f64) -> Result<Self, InvalidMechanism> {
        let is_usable = |x: f64| x.is_finite() && x > 0.0;
        if !is_usable(clip_norm) {
            Err(InvalidMechanism::ClipNorm)
        } else if !is_usable(noise_multiplier) {
            Err(InvalidMechanism::NoiseMultiplier)
        } else {
            Ok(Self {
                clip_norm,
                noise_multiplier,
            })
        }
    }

    /// The noise's standard deviation in multiples of the norm that is clipped to.
    pub fn noise_multiplier(&self) -> f64 {
        self.noise_multiplier
    }

    /// Standard deviation of the noise on every value.
    pub fn standard_deviation(&self) -> f64 {
        self.noise_multiplier * self.clip_norm
    }

    /// What a change of this L2 norm, taken over all tensors, is multiplied by.
    pub fn clip_factor(&self, delta_norm: f64) -> f64 {
        match delta_norm > self.clip_norm {
            true => self.clip_norm / delta_norm,
            false => 1.0,
        }
    }

    /// `update = global + clip_factor (update - global) + noise`, for one tensor or a part of it; both `[values]`.
    /// `delta_norm` is the norm of the whole change.
    pub fn apply(
        &self,
        update: &mut [f32],
        global: &[f32],
        delta_norm: f64,
        noise: &mut GaussianNoise,
    ) {
        let factor = self.clip_factor(delta_norm);
        let deviation = self.standard_deviation();
        for (x, before) in update.iter_mut().zip(global) {
            let before = f64::from(*before);
            let delta = factor * (f64::from(*x) - before);
            *x = (before + delta + deviation * noise.sample()) as f32;
        }
    }
}

/// Standard normal numbers from a cryptographic generator (ChaCha20), seeded by the operating system.
pub struct GaussianNoise {
    generator: ChaCha20Rng,
    second: Option<f64>,
}

/// Normal numbers that are added up for one: with several, the low bits of a sum no longer tell which one it was
/// (Holohan and Braghin 2021, <https://arxiv.org/abs/2107.10138>; as Opacus does in its secure mode).
const SUMMED: usize = 4;

impl GaussianNoise {
    /// Noise that nobody can foresee.
    ///
    /// # Errors
    /// The operating system's, where it gives no random numbers.
    pub fn from_system() -> Result<Self, rand::rngs::SysError> {
        Ok(Self {
            generator: ChaCha20Rng::try_from_rng(&mut SysRng)?,
            second: None,
        })
    }

    /// A normal number with mean 0 and variance 1.
    pub fn sample(&mut self) -> f64 {
        let sum: f64 = (0..SUMMED).map(|_| self.one()).sum();
        sum / (SUMMED as f64).sqrt()
    }

    /// Box and Muller's: two uniform numbers make two normal ones.
    fn one(&mut self) -> f64 {
        if let Some(second) = self.second.take() {
            return second;
        }
        // In (0, 1], so that the logarithm is finite.
        let u = 1.0 - self.uniform();
        let v = self.uniform();
        let radius = (-2.0 * u.ln()).sqrt();
        let (sine, cosine) = (TAU * v).sin_cos();
        self.second = Some(radius * sine);
        radius * cosine
    }

    /// In [0, 1), a multiple of 2^-53.
    fn uniform(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl std::fmt::Debug for GaussianNoise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GaussianNoise")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeded() -> GaussianNoise {
        GaussianNoise {
            generator: ChaCha20Rng::seed_from_u64(7),
            second: None,
        }
    }

    #[test]
    fn noise_is_normal() {
        let mut noise = seeded();
        let count = 200_000;
        let mut samples: Vec<f64> = (0..count).map(|_| noise.sample()).collect();
        let mean = samples.iter().sum::<f64>() / f64::from(count);
        let moment =
            |power: i32| samples.iter().map(|x| x.powi(power)).sum::<f64>() / f64::from(count);
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.1, "{}", moment(4));
        samples.sort_by(f64::total_cmp);
        // Quantiles of the normal distribution.
        for (part, expected) in [(0.5, 0.0), (0.158_655, -1.0), (0.977_25, 2.0)] {
            let found = samples[(part * f64::from(count)) as usize];
            assert!((found - expected).abs() < 0.03, "{part}: {found}");
        }
    }

    #[test]
    fn two_generators_of_the_system_differ() {
        let mut one = GaussianNoise::from_system().unwrap();
        let mut other = GaussianNoise::from_system().unwrap();
        assert_ne!(one.sample(), other.sample());
    }

    #[test]
    fn a_change_is_clipped_as_a_whole_and_then_blurred() {
        let mechanism = GaussianMechanism::new(2.0, 0.5).unwrap();
        assert_eq!(mechanism.standard_deviation(), 1.0);
        assert_eq!(mechanism.clip_factor(8.0), 0.25);
        assert_eq!(mechanism.clip_factor(1.5), 1.0);

        let global = vec![10.0_f32; 100_000];
        let mut update = vec![14.0_f32; 100_000];
        let norm = 4.0 * 100_000_f64.sqrt();
        mechanism.apply(&mut update, &global, norm, &mut seeded());
        let clipped = 2.0 / 100_000_f64.sqrt();
        let mean = update.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e5;
        assert!((mean - 10.0 - clipped).abs() < 0.02, "{mean}");
        let spread = update
            .iter()
            .map(|x| (f64::from(*x) - mean).powi(2))
            .sum::<f64>()
            / 1e5;
        assert!((spread - 1.0).abs() < 0.03, "{spread}");
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let clip = GaussianMechanism::new(wrong, 1.0).unwrap_err();
            assert!(clip.to_string().contains("clip_norm"));
            let noise = GaussianMechanism::new(1.0, wrong).unwrap_err();
            assert!(noise.to_string().contains("noise_multiplier"));
        }
    }
}
