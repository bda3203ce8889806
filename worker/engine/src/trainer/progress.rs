//! Figures about a run that are worked out from its steps: smoothed loss, speed, time left.

use std::time::Duration;

/// Share of the newest step in smoothed figures.
const NEWEST: f64 = 0.1;

/// A moving average that begins with its first value.
pub(super) fn smoothed(before: Option<f64>, newest: f64) -> f64 {
    before.map_or(newest, |before| before + NEWEST * (newest - before))
}

/// How fast steps go.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Speed {
    seconds_per_step: Option<f64>,
}

impl Speed {
    /// Takes a step's duration into account.
    pub(super) fn record(&mut self, step: Duration) {
        self.seconds_per_step = Some(smoothed(self.seconds_per_step, step.as_secs_f64()));
    }

    /// Seconds that `steps` more steps will take.
    pub(super) fn seconds_for(&self, steps: u64) -> Option<f64> {
        self.seconds_per_step.map(|seconds| seconds * steps as f64)
    }
}

/// A count a second; none where no time has passed.
pub(super) fn per_second(count: u64, time: Duration) -> Option<f64> {
    finite(count as f64 / time.as_secs_f64())
}

/// A figure as it is reported: none unless it is finite.
pub(super) fn finite(figure: f64) -> Option<f64> {
    Some(figure).filter(|figure| figure.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_begins_with_the_first_value_and_follows_slowly() {
        assert_eq!(smoothed(None, 4.0), 4.0);
        assert!((smoothed(Some(4.0), 3.0) - 3.9).abs() < 1e-12);
    }

    #[test]
    fn time_left_follows_the_steps_so_far() {
        let mut speed = Speed::default();
        assert_eq!(speed.seconds_for(10), None);
        speed.record(Duration::from_secs(2));
        assert_eq!(speed.seconds_for(10), Some(20.0));
        assert_eq!(speed.seconds_for(0), Some(0.0));
    }

    #[test]
    fn figures_that_are_not_finite_are_none() {
        assert_eq!(per_second(5, Duration::ZERO), None);
        assert_eq!(per_second(0, Duration::from_secs(1)), Some(0.0));
        assert_eq!(finite(f64::NAN), None);
    }
}
