//! The random numbers that training depends on: the same on every machine and in every version.
//!
//! Published generators of crates may change between versions; a resumed run must not.

/// SplitMix64: a counter put through a mixing function, so its whole state is one number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A stream for one purpose of one run. Different `purpose` words give unrelated streams.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut random = Self { state: seed };
        for byte in purpose.bytes() {
            random.state ^= u64::from(byte);
            random.state = random.next_u64();
        }
        random
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly spread over `0..bound`, without bias. `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let zone = u64::MAX - u64::MAX % bound;
        loop {
            let bits = self.next_u64();
            if bits < zone {
                return bits % bound;
            }
        }
    }

    /// Evenly spread over `[-1, 1)`, in steps of 2^-23.
    pub fn symmetric_f32(&mut self) -> f32 {
        let bits = (self.next_u64() >> 40) as f32;
        bits / (1u32 << 23) as f32 - 1.0
    }

    /// Puts `items` into a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u64 + 1) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_fixed_for_ever() {
        // Reference values of SplitMix64 from seed 0.
        let mut random = Random { state: 0 };
        assert_eq!(random.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn streams_of_different_purpose_differ() {
        let a: Vec<u64> = (0..4)
            .scan(Random::new(7, "order"), |r, _| Some(r.next_u64()))
            .collect();
        let b: Vec<u64> = (0..4)
            .scan(Random::new(7, "adapter"), |r, _| Some(r.next_u64()))
            .collect();
        assert_ne!(a, b);
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_symmetric_numbers_stay_in_range() {
        let mut random = Random::new(1, "test");
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        let sum: f64 = (0..10_000)
            .map(|_| {
                let x = random.symmetric_f32();
                assert!((-1.0..1.0).contains(&x));
                f64::from(x)
            })
            .sum();
        assert!(sum.abs() < 200.0, "far from even: {sum}");
    }
}
