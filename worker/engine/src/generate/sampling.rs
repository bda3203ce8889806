//! How the next token is picked from its logits.

use crate::{EngineError, random::Random};

/// How a continuation is sampled, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Most new tokens; at least 1.
    pub max_tokens: usize,
    /// What logits are divided by; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Only the likeliest tokens that together have this probability are picked from; above 0, 1 for all.
    pub top_p: f32,
    /// Only so many of the likeliest tokens are picked from; 0 for all.
    pub top_k: usize,
    /// Selects the random numbers.
    pub seed: u64,
    /// Tokens that end the continuation.
    pub stop_ids: Vec<u32>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            seed: 0,
            stop_ids: Vec::new(),
        }
    }
}

impl SamplingOptions {
    /// Checks ranges.
    ///
    /// # Errors
    /// [`EngineError::InvalidSetting`] naming the first option out of range.
    pub fn validate(&self) -> Result<(), EngineError> {
        let problem = |field, message: String| Err(EngineError::InvalidSetting { field, message });
        if self.max_tokens == 0 {
            return problem("max_tokens", "must be at least 1".to_owned());
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return problem(
                "temperature",
                format!("{} is not a number from 0 up", self.temperature),
            );
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return problem(
                "top_p",
                format!("{} is not above 0 and at most 1", self.top_p),
            );
        }
        Ok(())
    }
}

/// Picks tokens one after the other.
#[derive(Debug)]
pub(super) struct Sampler {
    temperature: f32,
    top_p: f64,
    top_k: usize,
    random: Random,
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// A sampler at the start of its random numbers.
    pub(super) fn new(options: &SamplingOptions) -> Result<Self, EngineError> {
        options.validate()?;
        Ok(Self {
            temperature: options.temperature,
            top_p: f64::from(options.top_p),
            top_k: options.top_k,
            random: Random::new(options.seed, "sampling"),
            candidates: Vec::new(),
        })
    }

    /// The next token.
    pub(super) fn pick(&mut self, logits: &[f32]) -> u32 {
        let best = likeliest(logits);
        if self.temperature == 0.0 {
            return best;
        }
        self.weigh(logits, logits[best as usize]);
        self.keep_top_k();
        self.keep_top_p();
        let total: f64 = self.candidates.iter().map(|(_, weight)| weight).sum();
        // 53 random bits: a number in 0..1.
        let mut left = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        for (id, weight) in &self.candidates {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        best
    }

    /// Unnormalised probabilities of all tokens.
    fn weigh(&mut self, logits: &[f32], best: f32) {
        let weight = |logit: f32| f64::from((logit - best) / self.temperature).exp();
        let weights = logits
            .iter()
            .enumerate()
            .map(|(id, &logit)| (id as u32, weight(logit)));
        self.candidates.clear();
        self.candidates
            .extend(weights.filter(|(_, weight)| *weight > 0.0));
    }

    fn keep_top_k(&mut self) {
        if self.top_k > 0 && self.top_k < self.candidates.len() {
            self.candidates
                .select_nth_unstable_by(self.top_k - 1, by_weight);
            self.candidates.truncate(self.top_k);
            // The order by which `select_nth` leaves them is its own affair; tokens are picked by id.
            self.candidates.sort_unstable_by_key(|(id, _)| *id);
        }
    }

    fn keep_top_p(&mut self) {
        if self.top_p >= 1.0 {
            return;
        }
        let total: f64 = self.candidates.iter().map(|(_, weight)| weight).sum();
        // All tokens below this weight together have less than what may be left out: they need no sorting.
        let negligible = (1.0 - self.top_p) * total / self.candidates.len() as f64;
        self.candidates.retain(|(_, weight)| *weight >= negligible);
        self.candidates.sort_unstable_by(by_weight);
        let mut sum = 0.0;
        let reached = self.candidates.iter().position(|(_, weight)| {
            sum += weight;
            sum >= self.top_p * total
        });
        if let Some(last) = reached {
            self.candidates.truncate(last + 1);
        }
    }
}

/// Likeliest first; ties by id, so that the order never depends on the sorting.
fn by_weight(a: &(u32, f64), b: &(u32, f64)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// The token with the largest logit, the first of equal ones.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    fn sampler(temperature: f32, top_p: f32, top_k: usize) -> Sampler {
        Sampler::new(&SamplingOptions {
            temperature,
            top_p,
            top_k,
            seed: 3,
            ..SamplingOptions::default()
        })
        .unwrap()
    }

    /// How often each token comes in many picks.
    fn shares(mut sampler: Sampler) -> [f64; 5] {
        const PICKS: usize = 20_000;
        let mut counts = [0.0; 5];
        for _ in 0..PICKS {
            counts[sampler.pick(&LOGITS) as usize] += 1.0 / PICKS as f64;
        }
        counts
    }

    fn assert_shares(found: [f64; 5], expected: [f64; 5]) {
        let total: f64 = expected.iter().sum();
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected / total).abs() < 0.015,
                "{found}, not {}",
                expected / total
            );
        }
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_likeliest() {
        assert_eq!(sampler(0.0, 1.0, 0).pick(&LOGITS), 1);
    }

    #[test]
    fn samples_follow_the_softmax() {
        assert_shares(
            shares(sampler(1.0, 1.0, 0)),
            LOGITS.map(|l| f64::from(l).exp()),
        );
        assert_shares(
            shares(sampler(2.0, 1.0, 0)),
            LOGITS.map(|l| f64::from(l / 2.0).exp()),
        );
    }

    #[test]
    fn top_k_and_top_p_leave_only_the_likeliest() {
        let e = LOGITS.map(|l| f64::from(l).exp());
        assert_shares(shares(sampler(1.0, 1.0, 3)), [0.0, e[1], e[2], e[3], 0.0]);
        assert_shares(shares(sampler(1.0, 1.0, 1)), [0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_shares(shares(sampler(1.0, 0.5, 0)), [0.0, e[1], 0.0, e[3], 0.0]);
        assert_shares(shares(sampler(1.0, 0.9, 0)), [0.0, e[1], e[2], e[3], 0.0]);
        assert_shares(shares(sampler(1.0, 1e-6, 0)), [0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn options_out_of_range_are_named() {
        let refused = |change: &dyn Fn(&mut SamplingOptions)| {
            let mut options = SamplingOptions::default();
            change(&mut options);
            match options.validate() {
                Err(EngineError::InvalidSetting { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(&|o| o.max_tokens = 0), "max_tokens");
        assert_eq!(refused(&|o| o.temperature = -0.1), "temperature");
        assert_eq!(refused(&|o| o.temperature = f32::NAN), "temperature");
        assert_eq!(refused(&|o| o.temperature = f32::INFINITY), "temperature");
        assert_eq!(refused(&|o| o.top_p = 0.0), "top_p");
        assert_eq!(refused(&|o| o.top_p = 1.01), "top_p");
        assert_eq!(refused(&|o| o.top_p = f32::NAN), "top_p");
    }
}
