//! How the next token is picked from its logits.

use std::collections::BTreeSet;

use crate::{EngineError, random::Random};

/// How a continuation is sampled, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Most new tokens; 0 for none.
    pub max_tokens: usize,
    /// What logits are divided by; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Only the likeliest tokens that together have this probability are picked from; above 0, 1 for all.
    pub top_p: f32,
    /// Only so many of the likeliest tokens are picked from; 0 for all.
    pub top_k: usize,
    /// What logits of tokens that stand already are divided by (or multiplied with, below zero); 1 for nothing.
    pub repetition_penalty: f32,
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
            repetition_penalty: 1.0,
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
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return problem(
                "repetition_penalty",
                format!("{} is not a number above 0", self.repetition_penalty),
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
    repetition_penalty: f32,
    /// The tokens that stand already.
    seen: BTreeSet<u32>,
    random: Random,
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// A sampler at the start of its random numbers, for what follows `prompt`.
    pub(super) fn new(options: &SamplingOptions, prompt: &[u32]) -> Result<Self, EngineError> {
        options.validate()?;
        let seen = match options.repetition_penalty {
            1.0 => BTreeSet::new(),
            _ => prompt.iter().copied().collect(),
        };
        Ok(Self {
            repetition_penalty: options.repetition_penalty,
            seen,
            temperature: options.temperature,
            top_p: f64::from(options.top_p),
            top_k: options.top_k,
            random: Random::new(options.seed, "sampling"),
            candidates: Vec::new(),
        })
    }

    /// The next token, or none where the logits are no numbers. They are changed by the penalty.
    pub(super) fn pick(&mut self, logits: &mut [f32]) -> Option<u32> {
        self.penalise(logits);
        let best = likeliest(logits);
        if !logits[best as usize].is_finite() {
            return None;
        }
        let picked = match self.temperature {
            0.0 => best,
            _ => self.sample(logits, best),
        };
        if self.repetition_penalty != 1.0 {
            self.seen.insert(picked);
        }
        Some(picked)
    }

    fn penalise(&self, logits: &mut [f32]) {
        for token in &self.seen {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = if *logit > 0.0 {
                    *logit / self.repetition_penalty
                } else {
                    *logit * self.repetition_penalty
                };
            }
        }
    }

    fn sample(&mut self, logits: &[f32], best: u32) -> u32 {
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

/// The token with the largest logit, the first of equal ones; one that is no number loses to any other.
fn likeliest(logits: &[f32]) -> u32 {
    /// Logits that are compared before their places are looked at: the compiler makes vectors of them.
    const RUN: usize = 64;
    let (mut best, mut largest) = (0, f32::NEG_INFINITY);
    for (run, logits) in logits.chunks(RUN).enumerate() {
        let mut maxima = [f32::NEG_INFINITY; 8];
        for logits in logits.chunks(maxima.len()) {
            for (maximum, logit) in maxima.iter_mut().zip(logits) {
                *maximum = if *logit > *maximum { *logit } else { *maximum };
            }
        }
        if maxima.iter().any(|maximum| *maximum > largest) {
            for (i, logit) in logits.iter().enumerate() {
                if *logit > largest {
                    (best, largest) = (run * RUN + i, *logit);
                }
            }
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    fn sampler(temperature: f32, top_p: f32, top_k: usize) -> Sampler {
        let options = SamplingOptions {
            temperature,
            top_p,
            top_k,
            seed: 3,
            ..SamplingOptions::default()
        };
        Sampler::new(&options, &[]).unwrap()
    }

    /// How often each token comes in many picks.
    fn shares(mut sampler: Sampler) -> [f64; 5] {
        const PICKS: usize = 20_000;
        let mut counts = [0.0; 5];
        for _ in 0..PICKS {
            counts[sampler.pick(&mut { LOGITS }).unwrap() as usize] += 1.0 / PICKS as f64;
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
        assert_eq!(sampler(0.0, 1.0, 0).pick(&mut { LOGITS }), Some(1));
    }

    #[test]
    fn g091_no_temperature_however_small_or_large_divides_by_zero() {
        for temperature in [1e-45, f32::MIN_POSITIVE, f32::MAX] {
            let picked = sampler(temperature, 0.9, 2).pick(&mut { LOGITS });
            assert!(matches!(picked, Some(1 | 3)), "{temperature}: {picked:?}");
        }
    }

    #[test]
    fn tokens_that_stand_already_are_penalised_whatever_the_sign_of_their_logit() {
        let options = SamplingOptions {
            temperature: 0.0,
            repetition_penalty: 1.5,
            ..SamplingOptions::default()
        };
        let mut sampler = Sampler::new(&options, &[1, 900]).unwrap();
        assert_eq!(sampler.pick(&mut { LOGITS }), Some(3));
        assert_eq!(sampler.pick(&mut { LOGITS }), Some(1), "both are penalised");
        let mut below = [-1.0, -1.2];
        let mut sampler = Sampler::new(&options, &[0]).unwrap();
        assert_eq!(sampler.pick(&mut below), Some(1));
        assert_eq!(below, [-1.5, -1.2]);
    }

    #[test]
    fn logits_that_are_no_numbers_give_no_token_and_some_of_them_do_no_harm() {
        let mut sampler = sampler(1.0, 0.9, 3);
        assert_eq!(sampler.pick(&mut [f32::NAN; 4]), None);
        assert_eq!(sampler.pick(&mut [0.0, f32::INFINITY]), None);
        assert_eq!(sampler.pick(&mut [f32::NEG_INFINITY; 2]), None);
        assert_eq!(
            sampler.pick(&mut [f32::NAN, 5.0, f32::NEG_INFINITY]),
            Some(1)
        );
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
        assert_eq!(refused(&|o| o.temperature = -0.1), "temperature");
        assert_eq!(refused(&|o| o.temperature = f32::NAN), "temperature");
        assert_eq!(refused(&|o| o.temperature = f32::INFINITY), "temperature");
        assert_eq!(refused(&|o| o.top_p = 0.0), "top_p");
        assert_eq!(refused(&|o| o.top_p = 1.01), "top_p");
        assert_eq!(refused(&|o| o.top_p = f32::NAN), "top_p");
        for penalty in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let field = refused(&|o| o.repetition_penalty = penalty);
            assert_eq!(field, "repetition_penalty");
        }
    }
}
