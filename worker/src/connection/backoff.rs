//! How long to wait before the next try to connect: a pure sequence, doubling to a cap, with jitter that spreads at the cap too.

use std::time::Duration;

/// The longest delay between two tries, before jitter.
pub const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Half of the width of the jitter, as a part of the delay: delays lie within ±10 %.
const JITTER: f64 = 0.1;

/// When to connect again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTry {
    /// By the source's rule.
    ByBackoff,
    /// Another process has this identity: at least the longest delay, so that the two do not push each
    /// other out for ever.
    AfterLongestDelay,
    /// There were too many failures: not before this, nor before the rule allows it.
    NotBefore(Duration),
    /// The platform has given this worker its turn among many that come back at once: then, though not
    /// before the first delay.
    InTurn(Duration),
    /// Nothing is wrong.
    AtOnce,
}

/// The delays of one connection that is tried again and again.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Starts with `first` (`RECONNECT_DELAY`) and doubles up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// The delay before the next try; each call counts as one more failure.
    ///
    /// `uniform` is a random number in 0..1. It scales the delay after the cap was applied, so that
    /// workers that have waited long do not all come back in the same instant.
    pub fn next_delay(&mut self, uniform: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        jittered(doubled.min(self.longest), uniform)
    }

    /// At least the longest delay, for a worker that was replaced by another process with its identity.
    pub fn longest_delay(&mut self, uniform: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.longest.mul_f64(1.0 + JITTER * uniform)
    }

    /// The delay before the next try of that kind. `uniform` is a random number in 0..1.
    pub fn delay(&mut self, next_try: NextTry, uniform: f64) -> Duration {
        match next_try {
            NextTry::ByBackoff => self.next_delay(uniform),
            NextTry::AfterLongestDelay => self.longest_delay(uniform),
            NextTry::NotBefore(wait) => wait.max(self.next_delay(uniform)),
            NextTry::InTurn(turn) => {
                self.failures = self.failures.saturating_add(1);
                turn.max(self.first).mul_f64(1.0 + JITTER * uniform)
            }
            NextTry::AtOnce => Duration::ZERO,
        }
    }

    /// To be called once the platform has answered `authenticated`, and only then.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `delay`, spread over ±10 % by `uniform` in 0..1.
pub fn jittered(delay: Duration, uniform: f64) -> Duration {
    delay.mul_f64(1.0 - JITTER + 2.0 * JITTER * uniform)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(5);

    #[test]
    fn g004_delays_double_from_the_first_to_the_cap() {
        let mut backoff = Backoff::new(FIRST, LONGEST_DELAY);
        let seconds: Vec<f64> = (0..6)
            .map(|_| backoff.next_delay(0.5).as_secs_f64())
            .collect();
        assert_eq!(seconds, [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]);
    }

    #[test]
    fn g004_delays_at_the_cap_are_spread_by_the_jitter() {
        let mut backoff = Backoff::new(FIRST, LONGEST_DELAY);
        for _ in 0..10 {
            backoff.next_delay(rand::random());
        }
        let delays: Vec<f64> = (0..1000)
            .map(|_| backoff.next_delay(rand::random()).as_secs_f64())
            .collect();
        let mean = delays.iter().sum::<f64>() / 1000.0;
        let deviation = (delays.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / 1000.0).sqrt();
        assert!(
            delays.iter().all(|d| (54.0..=66.0).contains(d)),
            "{delays:?}"
        );
        assert!(deviation > 1.0, "standard deviation {deviation}");
    }

    #[test]
    fn after_a_reset_the_first_delay_comes_again() {
        let mut backoff = Backoff::new(FIRST, LONGEST_DELAY);
        for _ in 0..100 {
            backoff.next_delay(0.0);
        }
        backoff.reset();
        assert_eq!(backoff.next_delay(0.5), FIRST);
    }

    #[test]
    fn a_replaced_worker_waits_no_less_than_the_longest_delay() {
        let mut backoff = Backoff::new(FIRST, LONGEST_DELAY);
        assert!(backoff.longest_delay(0.0) >= LONGEST_DELAY);
        assert!(backoff.longest_delay(1.0) > LONGEST_DELAY);
    }

    #[test]
    fn a_turn_that_the_platform_gives_is_kept_but_not_before_the_first_delay() {
        let mut backoff = Backoff::new(FIRST, LONGEST_DELAY);
        for _ in 0..10 {
            backoff.next_delay(0.5);
        }
        let turn = Duration::from_secs(12);
        assert_eq!(backoff.delay(NextTry::InTurn(turn), 0.0), turn);
        let early = NextTry::InTurn(Duration::from_secs(1));
        assert_eq!(backoff.delay(early, 0.0), FIRST);
        assert!(backoff.delay(early, 1.0) > FIRST, "turns are spread too");
    }

    #[test]
    fn patience_that_the_platform_asks_for_never_shortens_the_rule() {
        let mut backoff = Backoff::new(FIRST, LONGEST_DELAY);
        let short = NextTry::NotBefore(Duration::from_secs(1));
        assert_eq!(backoff.delay(short, 0.5), FIRST);
        let long = NextTry::NotBefore(Duration::from_secs(70));
        assert_eq!(backoff.delay(long, 0.5), Duration::from_secs(70));
    }
}
