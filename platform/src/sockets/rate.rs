//! How many frames one connection may send. Pure.

use std::time::Duration;

use crate::clock::Moment;

/// A worker that trains very fast steps, or delivers what it has kept for days, stays far below this.
pub const OF_WORKER: FrameRate = FrameRate {
    burst: 60_000,
    per_second: 2_000,
};
/// A dashboard only subscribes and unsubscribes.
pub const OF_DASHBOARD: FrameRate = FrameRate {
    burst: 2_500,
    per_second: 100,
};

/// The most that is taken.
#[derive(Debug, Clone, Copy)]
pub struct FrameRate {
    /// So many frames at once.
    pub burst: u32,
    /// After those, so many a second.
    pub per_second: u32,
}

/// Counts the frames of one connection.
#[derive(Debug)]
pub struct FrameMeter {
    rate: FrameRate,
    left: f64,
    at: Option<Moment>,
}

impl FrameMeter {
    /// A meter that has counted nothing.
    pub fn new(rate: FrameRate) -> Self {
        Self {
            rate,
            left: f64::from(rate.burst),
            at: None,
        }
    }

    /// Counts a frame. False when it is one too many.
    pub fn take(&mut self, now: Moment) -> bool {
        let passed = self.at.map_or(Duration::ZERO, |at| now.since(at));
        self.at = Some(now);
        let refilled = self.left + passed.as_secs_f64() * f64::from(self.rate.per_second);
        self.left = refilled.min(f64::from(self.rate.burst));
        let is_allowed = self.left >= 1.0;
        if is_allowed {
            self.left -= 1.0;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_so_many_a_second_are_allowed() {
        let rate = FrameRate {
            burst: 10,
            per_second: 4,
        };
        let mut meter = FrameMeter::new(rate);
        let at = |millis: u64| Moment::from_millis(millis);
        let mut taken = |millis: u64| (0..20).filter(|_| meter.take(at(millis))).count();
        assert_eq!(taken(0), 10);
        assert_eq!(taken(250), 1);
        assert_eq!(taken(1250), 4);
        assert_eq!(taken(1_000_000), 10);
    }
}
