//! A thousand workers that come back at once after a restart of the platform: the worker's own backoff and the
//! platform's own turns, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use trainyard_platform::clock::Moment;
use trainyard_platform::workers::returning::{Returning, turn_at_stop};
use trainyard_worker::connection::backoff::{Backoff, LONGEST_DELAY, NextTry};

use crate::random::Random;

const WORKERS: usize = 1_000;
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(90);

/// How the platform went away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    Crashed,
    Stopped,
}

/// When each worker got in, in order, in milliseconds since the platform went away.
fn come_back(away: Away, down_ms: u64, random: &mut Random) -> Vec<u64> {
    let mut returning = Returning::new(WORKERS, HEARTBEAT_TIMEOUT, Moment::START);
    let mut workers = vec![Backoff::new(Duration::from_secs(5), LONGEST_DELAY); WORKERS];
    let mut tries = BinaryHeap::new();
    let whole_seconds = |wait: Duration| Duration::from_secs_f64(wait.as_secs_f64().ceil());
    for (index, worker) in workers.iter_mut().enumerate() {
        let next_try = match (away, turn_at_stop(index, WORKERS, HEARTBEAT_TIMEOUT)) {
            (Away::Stopped, Some(turn)) => NextTry::InTurn(whole_seconds(turn)),
            _ => NextTry::ByBackoff,
        };
        let noticed_ms = random.below(300);
        let delay = worker.delay(next_try, random.uniform());
        tries.push(Reverse((noticed_ms + delay.as_millis() as u64, index)));
    }
    let mut entries = Vec::new();
    while let Some(Reverse((at, index))) = tries.pop() {
        let next_try = match at.checked_sub(down_ms) {
            None => NextTry::ByBackoff,
            Some(up_ms) => match returning.enter(Moment::from_millis(up_ms)) {
                None => {
                    entries.push(at);
                    continue;
                }
                Some(turn) => NextTry::InTurn(whole_seconds(turn)),
            },
        };
        let delay = workers[index].delay(next_try, random.uniform());
        tries.push(Reverse((at + delay.as_millis() as u64, index)));
    }
    entries
}

/// The most that got in within one second, over the mean of a second.
fn peak_over_mean(entries: &[u64]) -> f64 {
    let within_a_second = |(index, start): (usize, &u64)| {
        entries[index..]
            .iter()
            .take_while(|at| **at < start + 1_000)
            .count()
    };
    let peak = entries
        .iter()
        .enumerate()
        .map(within_a_second)
        .max()
        .unwrap_or(0);
    let span_ms = entries[entries.len() - 1] - entries[0];
    peak as f64 / (entries.len() as f64 / span_ms as f64 * 1e3)
}

#[test]
fn a_thousand_workers_come_back_spread_out_whenever_the_platform_is_there_again() {
    let mut random = Random::new(1);
    for away in [Away::Crashed, Away::Stopped] {
        for down_ms in [
            0, 500, 2_000, 4_900, 5_000, 5_300, 9_000, 15_000, 30_000, 75_000, 300_000,
        ] {
            for _ in 0..5 {
                let entries = come_back(away, down_ms, &mut random);
                let ratio = peak_over_mean(&entries);
                let last_s = (entries[WORKERS - 1] - down_ms) as f64 / 1e3;
                assert!(
                    ratio < 4.0,
                    "{away:?}, down for {down_ms} ms: peak is {ratio:.1} times the mean"
                );
                assert!(
                    last_s < 110.0,
                    "{away:?}, down for {down_ms} ms: the last is back after {last_s} s"
                );
            }
        }
    }
}
