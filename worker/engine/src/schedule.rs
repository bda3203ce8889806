//! The learning rate of every optimizer step: warm-up, then constant, linear or cosine decay.

use std::f64::consts::PI;

use trainyard_shared::training::{ScheduleKind, TrainingConfig};

/// The learning rate as a function of the step, fixed at the start of a run.
///
/// With `w` warm-up steps of `T`, step `k` (from 1) uses `lr * k / w` while `k <= w`, and then a
/// share of `lr` that falls with the fraction `(T - k + 1) / (T - w)` of what is left: in a straight
/// line, or along half a cosine. It is never 0, also for one step in all or a warm-up as long as the
/// run. `constant` knows no warm-up, as in transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    learning_rate: f64,
    kind: ScheduleKind,
    warmup_steps: u64,
    total_steps: u64,
}

impl Schedule {
    /// The schedule that a config asks for over `total_steps` optimizer steps.
    ///
    /// `warmup_steps` above 0 wins over `warmup_ratio`, which is rounded up to whole steps.
    pub fn new(config: &TrainingConfig, total_steps: u64) -> Self {
        let warmup_steps = match (config.lr_scheduler_type, config.warmup_steps) {
            (ScheduleKind::Constant, _) => 0,
            (_, 0) => (total_steps as f64 * config.warmup_ratio).ceil() as u64,
            (_, steps) => steps,
        };
        Self {
            learning_rate: config.learning_rate,
            kind: config.lr_scheduler_type,
            warmup_steps,
            total_steps,
        }
    }

    /// The learning rate that step `step` (from 1) uses.
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        if step <= self.warmup_steps {
            return self.learning_rate * step as f64 / self.warmup_steps as f64;
        }
        let decaying = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let left = (self.total_steps + 1)
            .saturating_sub(step)
            .clamp(1, decaying);
        let fraction = left as f64 / decaying as f64;
        self.learning_rate
            * match self.kind {
                ScheduleKind::Linear => fraction,
                ScheduleKind::Cosine => 0.5 * (1.0 - (PI * fraction).cos()),
                ScheduleKind::Constant | ScheduleKind::ConstantWithWarmup => 1.0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(kind: ScheduleKind, warmup_steps: u64, total_steps: u64) -> Vec<f64> {
        let schedule = Schedule {
            learning_rate: 1e-3,
            kind,
            warmup_steps,
            total_steps,
        };
        (1..=total_steps)
            .map(|step| schedule.learning_rate_at(step) / 1e-3)
            .collect()
    }

    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() < 1e-12,
                "{found} is not {expected}"
            );
        }
    }

    #[test]
    fn g074_linear_without_warmup_starts_at_the_full_rate_and_never_reaches_zero() {
        assert_close(&rates(ScheduleKind::Linear, 0, 4), &[1.0, 0.75, 0.5, 0.25]);
        assert_close(&rates(ScheduleKind::Linear, 0, 1), &[1.0]);
    }

    #[test]
    fn g074_warmup_rises_to_the_full_rate_and_decay_starts_there() {
        assert_close(&rates(ScheduleKind::Linear, 2, 4), &[0.5, 1.0, 1.0, 0.5]);
    }

    #[test]
    fn g074_a_warmup_as_long_as_the_run_or_longer_gives_finite_rates_above_zero() {
        for kind in [
            ScheduleKind::Linear,
            ScheduleKind::Cosine,
            ScheduleKind::ConstantWithWarmup,
        ] {
            assert_close(&rates(kind, 4, 4), &[0.25, 0.5, 0.75, 1.0]);
            assert_close(&rates(kind, 8, 4), &[0.125, 0.25, 0.375, 0.5]);
        }
    }

    #[test]
    fn cosine_falls_over_the_same_fraction() {
        let half = 0.5 * (1.0 - (PI * 0.75).cos());
        assert_close(
            &rates(ScheduleKind::Cosine, 0, 4),
            &[1.0, half, 0.5, 0.5 * (1.0 - (PI * 0.25).cos())],
        );
    }

    #[test]
    fn constant_ignores_warmup_and_steps_win_over_the_ratio() {
        let config = TrainingConfig {
            lr_scheduler_type: ScheduleKind::Constant,
            warmup_steps: 5,
            ..TrainingConfig::default()
        };
        assert_eq!(
            Schedule::new(&config, 10).learning_rate_at(1),
            config.learning_rate
        );
        let with = |warmup_steps| TrainingConfig {
            warmup_steps,
            warmup_ratio: 0.11,
            ..TrainingConfig::default()
        };
        assert_eq!(Schedule::new(&with(5), 100).warmup_steps, 5);
        assert_eq!(Schedule::new(&with(0), 100).warmup_steps, 11);
        assert_eq!(Schedule::new(&with(0), 10).warmup_steps, 2, "rounded up");
    }
}
