//! How long workers took for rounds, and the deadline that follows from it.

use std::collections::VecDeque;
use std::time::Duration;

/// Times that the deadline follows: the newest ones.
const MOST: usize = 64;
/// With fewer times the deadline is the round timeout.
const FEWEST: usize = 3;
/// The deadline lies at least this much of the median beyond it: equal times must not make it merciless.
const LEAST_SLACK: f64 = 0.5;
/// And at least this long.
const SHORTEST_SLACK: Duration = Duration::from_secs(1);

/// The times, the newest last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times(VecDeque<Duration>);

impl Times {
    /// Those that are known, the newest last.
    pub fn new(known: Vec<Duration>) -> Self {
        let mut times = Self::default();
        known.into_iter().for_each(|time| times.record(time));
        times
    }

    /// All of them, the newest last.
    pub fn all(&self) -> impl Iterator<Item = Duration> {
        self.0.iter().copied()
    }

    /// One more.
    pub fn record(&mut self, time: Duration) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(time);
    }

    /// From a round's beginning to its deadline: the median and so many median absolute deviations (or some slack, where
    /// those are small), never more than `longest`, which it also is while too little is known and where `deviations` is 0.
    pub fn for_a_round(&self, deviations: f64, longest: Duration) -> Duration {
        if self.0.len() < FEWEST || deviations <= 0.0 {
            return longest;
        }
        let times: Vec<f64> = self.0.iter().map(Duration::as_secs_f64).collect();
        let middle = median(times.clone());
        let deviation = median(times.iter().map(|time| (time - middle).abs()).collect());
        let slack = (deviations * deviation)
            .max(LEAST_SLACK * middle)
            .max(SHORTEST_SLACK.as_secs_f64());
        Duration::try_from_secs_f64(middle + slack).map_or(longest, |time| time.min(longest))
    }
}

/// The middle value; of an even number the mean of the two in the middle. There must be one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(times: &[u64]) -> Times {
        Times::new(
            times
                .iter()
                .map(|time| Duration::from_secs(*time))
                .collect(),
        )
    }

    fn deadline(times: &[u64], deviations: f64, longest: u64) -> u64 {
        let time = seconds(times).for_a_round(deviations, Duration::from_secs(longest));
        time.as_secs()
    }

    #[test]
    fn the_deadline_is_the_median_and_some_deviations_once_enough_is_known() {
        assert_eq!(deadline(&[10, 12], 4.0, 600), 600);
        // Median 12, deviations 2, 0, 8, their median 2.
        assert_eq!(deadline(&[10, 12, 20], 4.0, 600), 20);
        assert_eq!(deadline(&[10, 12, 20], 0.0, 600), 600);
    }

    #[test]
    fn the_deadline_is_never_beyond_the_round_timeout_and_equal_times_leave_some_slack() {
        assert_eq!(deadline(&[100, 100, 100], 4.0, 600), 150);
        assert_eq!(deadline(&[100, 100, 100], 4.0, 120), 120);
    }

    #[test]
    fn only_the_newest_times_count() {
        let mut times = seconds(&[1_000; MOST]);
        for _ in 0..MOST {
            times.record(Duration::from_secs(10));
        }
        assert_eq!(times.all().count(), MOST);
        let time = times.for_a_round(4.0, Duration::from_secs(600));
        assert_eq!(time, Duration::from_secs(15));
    }
}
