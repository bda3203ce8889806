//! Owns the counters of failed tries, for logins and for workers alike: ten in a minute for one address and one
//! subject, or a hundred for one address, are answered with a minute's wait.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(60);
const MAX_PER_SUBJECT: usize = 10;
const MAX_PER_ADDRESS: usize = 100;
/// Above so many counters those that no longer count are removed.
const PRUNE_ABOVE: usize = 4096;

/// Counts failed tries. The time is an argument.
#[derive(Default)]
pub struct FailureLimiter {
    counters: Mutex<Counters>,
}

#[derive(Default)]
struct Counters {
    by_subject: HashMap<(IpAddr, String), Counter>,
    by_address: HashMap<IpAddr, Counter>,
}

#[derive(Default)]
struct Counter {
    failures: VecDeque<Instant>,
    blocked_until: Option<Instant>,
}

impl FailureLimiter {
    /// Whether another try may be made now.
    ///
    /// # Errors
    /// How long to wait.
    pub fn check(&self, address: IpAddr, subject: &str, now: Instant) -> Result<(), Duration> {
        let address = network_of(address);
        let counters = self.lock();
        let waits = [
            counters
                .by_subject
                .get(&(address, subject.to_owned()))
                .and_then(|counter| counter.wait(now)),
            counters
                .by_address
                .get(&address)
                .and_then(|counter| counter.wait(now)),
        ];
        waits.into_iter().flatten().max().map_or(Ok(()), Err)
    }

    /// Counts a failed try.
    pub fn record_failure(&self, address: IpAddr, subject: &str, now: Instant) {
        let address = network_of(address);
        let mut counters = self.lock();
        prune(&mut counters.by_subject, now);
        prune(&mut counters.by_address, now);
        let own = counters
            .by_subject
            .entry((address, subject.to_owned()))
            .or_default();
        own.record(now, MAX_PER_SUBJECT);
        counters
            .by_address
            .entry(address)
            .or_default()
            .record(now, MAX_PER_ADDRESS);
    }

    /// Takes back one failure: the try that was counted beforehand has succeeded.
    pub fn forgive(&self, address: IpAddr, subject: &str) {
        let address = network_of(address);
        let mut counters = self.lock();
        if let Some(counter) = counters.by_subject.get_mut(&(address, subject.to_owned())) {
            counter.forgive();
        }
        if let Some(counter) = counters.by_address.get_mut(&address) {
            counter.forgive();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counters> {
        self.counters
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Counter {
    fn wait(&self, now: Instant) -> Option<Duration> {
        self.blocked_until
            .filter(|until| *until > now)
            .map(|until| until - now)
    }

    fn record(&mut self, now: Instant, most: usize) {
        while self
            .failures
            .front()
            .is_some_and(|first| now.duration_since(*first) >= WINDOW)
        {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        if self.failures.len() >= most {
            self.failures.clear();
            self.blocked_until = Some(now + WINDOW);
        }
    }

    fn forgive(&mut self) {
        if self.failures.pop_back().is_none() {
            self.blocked_until = None;
        }
    }

    fn counts(&self, now: Instant) -> bool {
        self.wait(now).is_some()
            || self
                .failures
                .back()
                .is_some_and(|last| now.duration_since(*last) < WINDOW)
    }
}

fn prune<K: Hash + Eq>(counters: &mut HashMap<K, Counter>, now: Instant) {
    if counters.len() > PRUNE_ABOVE {
        counters.retain(|_, counter| counter.counts(now));
    }
}

/// One IPv6 customer usually has a whole /64.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & (u128::MAX << 64)).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ten_failures_block_one_subject_for_a_minute_and_no_other() {
        let (limiter, here, start) = (
            FailureLimiter::default(),
            address("10.0.0.1"),
            Instant::now(),
        );
        for second in 0..10 {
            assert!(limiter.check(here, "a", start).is_ok(), "try {second}");
            limiter.record_failure(here, "a", start + Duration::from_secs(second));
        }
        let end = start + Duration::from_secs(9);
        assert_eq!(limiter.check(here, "a", end), Err(Duration::from_secs(60)));
        assert!(limiter.check(here, "b", end).is_ok());
        assert!(limiter.check(address("10.0.0.2"), "a", end).is_ok());
        assert!(
            limiter
                .check(here, "a", end + Duration::from_secs(60))
                .is_ok()
        );
    }

    #[test]
    fn a_hundred_failures_block_the_address() {
        let (limiter, now) = (FailureLimiter::default(), Instant::now());
        for subject in 0..100 {
            limiter.record_failure(address("2001:db8::1"), &subject.to_string(), now);
        }
        assert!(
            limiter.check(address("2001:db8::2"), "new", now).is_err(),
            "same /64"
        );
        assert!(
            limiter
                .check(address("2001:db8:0:1::1"), "new", now)
                .is_ok()
        );
    }

    #[test]
    fn failures_that_are_spread_out_or_forgiven_do_not_block() {
        let (limiter, here, start) = (
            FailureLimiter::default(),
            address("10.0.0.1"),
            Instant::now(),
        );
        for nth in 0..50 {
            let now = start + Duration::from_secs(nth * 7);
            assert!(limiter.check(here, "a", now).is_ok());
            limiter.record_failure(here, "a", now);
            limiter.record_failure(here, "b", start);
            limiter.forgive(here, "b");
        }
        assert!(limiter.check(here, "b", start).is_ok());
    }

    #[test]
    fn counters_that_no_longer_count_are_removed() {
        let (limiter, now) = (FailureLimiter::default(), Instant::now());
        for subject in 0..=PRUNE_ABOVE {
            limiter.record_failure(address("10.0.0.1"), &subject.to_string(), now);
        }
        limiter.record_failure(address("10.0.0.1"), "later", now + WINDOW);
        assert_eq!(limiter.lock().by_subject.len(), 1);
    }
}
