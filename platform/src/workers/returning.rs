//! Spreads the workers that all come back at once: after a start of the platform, and at its stop. Pure.
//!
//! 1. Where only a few are enrolled, nobody is ever held up.
//! 2. For a while after the start workers are let in at a steady rate; who comes in between is given a turn of
//!    its own, not before the first delay of the source's rule.
//! 3. A platform that stops tells each worker its turn before it closes, at the same rate.
//!
//! A worker that does not know of turns keeps the source's rule and gets in later.

use std::time::Duration;

use crate::clock::Moment;

/// With so many enrolled workers or fewer, no turns are given.
const FEW: usize = 200;
/// So long after the start turns are given: twice the longest delay of the source's rule.
const PERIOD: Duration = Duration::from_secs(120);
/// `RECONNECT_DELAY` of the source: nobody comes back before.
const FIRST_DELAY: Duration = Duration::from_secs(5);
/// Who comes by so much early is let in.
const TOLERANCE: Duration = Duration::from_millis(250);

/// Who may come in since the platform's start.
#[derive(Debug, Clone)]
pub struct Returning {
    turns: Option<Turns>,
    until: Moment,
    /// When the next worker may come in, were the rate kept exactly.
    next_entry: Moment,
    /// The turn that is given next.
    next_turn: Moment,
}

/// How turns are given where there are many workers.
#[derive(Debug, Clone, Copy)]
struct Turns {
    /// The earliest.
    first: Duration,
    /// Between two workers.
    interval: Duration,
}

impl Returning {
    /// The platform starts at `now` with so many enrolled workers.
    pub fn new(enrolled: usize, heartbeat_timeout: Duration, now: Moment) -> Self {
        Self {
            turns: Turns::of(enrolled, heartbeat_timeout),
            until: now + PERIOD,
            next_entry: now,
            next_turn: now,
        }
    }

    /// A worker wants to come in: none if it may, else how long it is to wait.
    pub fn enter(&mut self, now: Moment) -> Option<Duration> {
        let turns = self.turns.filter(|_| now < self.until)?;
        if self.next_entry <= now + TOLERANCE {
            self.next_entry = self.next_entry.max(now) + turns.interval;
            return None;
        }
        self.next_turn = self.next_turn.max(now + turns.first) + turns.interval;
        Some(self.next_turn.since(now))
    }
}

/// When the worker that is closed as number `index` (from 0) of `connected` is to come back.
pub fn turn_at_stop(
    index: usize,
    connected: usize,
    heartbeat_timeout: Duration,
) -> Option<Duration> {
    let turns = Turns::of(connected, heartbeat_timeout)?;
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    Some(turns.first + turns.interval.saturating_mul(index))
}

impl Turns {
    /// All are back within about a quarter of the time after which the first would be given up.
    fn of(workers: usize, heartbeat_timeout: Duration) -> Option<Self> {
        let count = u32::try_from(workers).unwrap_or(u32::MAX);
        (workers > FEW).then(|| Self {
            first: FIRST_DELAY.min(heartbeat_timeout / 18),
            interval: heartbeat_timeout / 4 / count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(90);
    const SPREAD: Duration = Duration::from_millis(22_500);

    #[test]
    fn a_few_workers_are_never_held_up() {
        let mut returning = Returning::new(FEW, TIMEOUT, Moment::START);
        assert!((0..1_000).all(|_| returning.enter(Moment::START).is_none()));
        assert_eq!(turn_at_stop(3, FEW, TIMEOUT), None);
    }

    #[test]
    fn many_at_once_get_turns_that_are_spread_behind_the_first_delay() {
        let mut returning = Returning::new(1_000, TIMEOUT, Moment::START);
        let turns: Vec<Duration> = (0..1_000)
            .filter_map(|_| returning.enter(Moment::START))
            .collect();
        assert!((980..=990).contains(&turns.len()), "{} turns", turns.len());
        assert!(turns.is_sorted() && turns[0] >= FIRST_DELAY);
        let last = turns.last().unwrap();
        assert!(*last <= FIRST_DELAY + SPREAD, "{last:?}");
        for turn in turns {
            assert_eq!(returning.enter(Moment::START + turn), None, "{turn:?}");
        }
    }

    #[test]
    fn after_a_while_nobody_is_held_up_any_more() {
        let mut returning = Returning::new(100_000, TIMEOUT, Moment::START);
        let later = Moment::START + PERIOD;
        assert!((0..1_000).all(|_| returning.enter(later).is_none()));
    }

    #[test]
    fn at_a_stop_every_worker_gets_a_turn_of_its_own() {
        assert_eq!(turn_at_stop(0, 1_000, TIMEOUT), Some(FIRST_DELAY));
        let last = turn_at_stop(999, 1_000, TIMEOUT).unwrap();
        assert!(last < FIRST_DELAY + SPREAD && last > FIRST_DELAY + SPREAD / 2);
    }

    #[test]
    fn all_are_back_well_before_the_first_is_given_up() {
        for seconds in [2, 30, 90, 3_600] {
            let timeout = Duration::from_secs(seconds);
            assert!(turn_at_stop(9_999, 10_000, timeout).unwrap() < timeout / 3);
        }
    }
}
