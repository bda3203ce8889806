//! Changes as integers modulo 2^64, whose sums are exact in whatever order they are taken.

/// Binary places after the point.
const PLACES: i32 = 32;
/// Changes beyond this are taken as this. The sum of the most participants there can be still fits.
pub const LARGEST: f64 = (1_u64 << 20) as f64;

/// A change as an integer: rounded to a multiple of 2^-32. What is not a number is 0.
pub fn encode(delta: f64) -> u64 {
    let scaled = delta.clamp(-LARGEST, LARGEST) * 2_f64.powi(PLACES);
    (scaled.round() as i64).cast_unsigned()
}

/// The change that a sum stands for.
pub fn decode(sum: u64) -> f64 {
    sum.cast_signed() as f64 / 2_f64.powi(PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_to_a_multiple_of_the_last_place() {
        for delta in [0.0, 1.5, -3.25, 1e-9, -1e-9, 12_345.678_9] {
            assert!(
                (decode(encode(delta)) - delta).abs() <= 2_f64.powi(-33),
                "{delta}"
            );
        }
        assert_eq!(decode(encode(f64::NAN)), 0.0);
        assert_eq!(decode(encode(f64::INFINITY)), LARGEST);
        assert_eq!(decode(encode(-1e300)), -LARGEST);
    }

    #[test]
    fn the_sum_of_the_most_and_largest_changes_fits() {
        let sum = (0..super::super::MOST_PARTICIPANTS)
            .fold(0_u64, |sum, _| sum.wrapping_add(encode(-f64::MAX)));
        assert_eq!(decode(sum), -255.0 * LARGEST);
    }
}
