//! Chance that can be repeated: a test that picks its moments by it prints the seed that it used.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A stream of random numbers (SplitMix64).
#[derive(Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// The stream of the seed in the environment variable `name`, or of one that the clock gives. Prints it.
    ///
    /// # Panics
    ///
    /// Where the variable holds no number.
    pub fn from_environment(name: &str) -> Self {
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.expect("it is after 1970").as_micros() as u64
        };
        let seed = number(name).unwrap_or_else(clock);
        println!("{name}={seed}");
        Self(seed)
    }

    /// A number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A time from zero up to `longest`.
    pub fn moment(&mut self, longest: Duration) -> Duration {
        longest.mul_f64((self.draw() % 10_000) as f64 / 10_000.0)
    }
}

/// The number in the environment variable `name`, if it is set.
///
/// # Panics
///
/// Where it holds no number.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}
