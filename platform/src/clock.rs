//! The monotonic clock by which every timing decision is made.
//!
//! Decisions are pure functions that get a [`Moment`]; only actors ask the [`Clock`]. It reads
//! `tokio::time`, so tests may pause it, and a simulation can make moments up.

use std::ops::{Add, Sub};
use std::time::Duration;

use tokio::time::Instant;

/// A point in time, counted from the platform's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(Duration);

impl Moment {
    /// The platform's start.
    pub const START: Self = Self(Duration::ZERO);

    /// So many milliseconds after the start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Whole milliseconds since the start.
    pub const fn as_millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

/// Tells the present [`Moment`]. Cheap to copy; all copies agree.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// The present moment.
    pub fn now(self) -> Moment {
        Moment(self.start.elapsed())
    }

    /// The same moment as the runtime's timers count it.
    pub fn instant(self, moment: Moment) -> Instant {
        self.start + moment.0
    }
}
