//! The arithmetic on rows of values. Every loop runs with the widest vectors of the machine, and gives the same on all:
//! no sum depends on how wide they are.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pulp::{Arch, Simd, WithSimd};
use trainyard_engine::export::FloatType;

/// Sums that are taken side by side, and added up at the end.
const LANES: usize = 16;

/// `sums += weight * row`, `[values]`.
pub(crate) fn add_scaled(sums: &mut [f64], weight: f64, row: &[f32]) {
    Arch::new().dispatch(AddScaled { sums, weight, row });
}

struct AddScaled<'a> {
    sums: &'a mut [f64],
    weight: f64,
    row: &'a [f32],
}

impl WithSimd for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (sum, x) in self.sums.iter_mut().zip(self.row) {
            *sum += self.weight * f64::from(*x);
        }
    }
}

/// `values = sums / divisor`, rounded once to the type, `[values]`.
pub(crate) fn divide(values: &mut [f32], sums: &[f64], divisor: f64, float_type: FloatType) {
    Arch::new().dispatch(Divide {
        values,
        sums,
        divisor,
        float_type,
    });
}

struct Divide<'a> {
    values: &'a mut [f32],
    sums: &'a [f64],
    divisor: f64,
    float_type: FloatType,
}

impl WithSimd for Divide<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let pairs = self.values.iter_mut().zip(self.sums);
        let quotients = pairs.map(|(value, sum)| (value, sum / self.divisor));
        match self.float_type {
            FloatType::F32 => quotients.for_each(|(value, x)| *value = x as f32),
            FloatType::F16 => {
                quotients.for_each(|(value, x)| *value = f16::from_f32(to_odd(x)).to_f32());
            }
            FloatType::Bf16 => {
                quotients.for_each(|(value, x)| *value = bf16::from_f32(to_odd(x)).to_f32());
            }
        }
    }
}

/// Rounds to f32 such that rounding that to 16 bits is as good as rounding `x` itself: what is between two numbers goes
/// to the one whose last bit is 1, which is no tie of a shorter type.
#[inline(always)]
fn to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let bits = nearest.to_bits();
    if f64::from(nearest) == x || bits & 1 == 1 {
        nearest
    } else if f64::from(nearest).abs() > x.abs() {
        f32::from_bits(bits - 1)
    } else {
        f32::from_bits(bits + 1)
    }
}

/// Rounds values to the type. `halves` holds them afterwards where a value takes two bytes.
pub(crate) fn round(values: &mut [f32], halves: &mut [u16], float_type: FloatType) {
    match float_type {
        FloatType::F32 => {}
        FloatType::F16 => {
            let rounded: &mut [f16] = bytemuck::cast_slice_mut(halves);
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
        }
        FloatType::Bf16 => {
            let rounded: &mut [bf16] = bytemuck::cast_slice_mut(halves);
            rounded.convert_from_f32_slice(values);
            rounded.convert_to_f32_slice(values);
        }
    }
}

/// Whether no value is NaN or infinite.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    Arch::new().dispatch(AreFinite(values))
}

struct AreFinite<'a>(&'a [f32]);

impl WithSimd for AreFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let wrong = |any: bool, x: &f32| any | !x.is_finite();
        !self.0.iter().fold(false, wrong)
    }
}

/// The sum of (x - y)^2. It is not finite just where a value is not.
pub(crate) fn squared_distance(x: &[f32], y: &[f32]) -> f64 {
    Arch::new().dispatch(SquaredDistance { x, y })
}

struct SquaredDistance<'a> {
    x: &'a [f32],
    y: &'a [f32],
}

impl WithSimd for SquaredDistance<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let mut sums = [0.0_f64; LANES];
        let (x, x_rest) = self.x.as_chunks::<LANES>();
        let (y, y_rest) = self.y.as_chunks::<LANES>();
        let square = |x: f32, y: f32| (f64::from(x) - f64::from(y)).powi(2);
        for (x, y) in x.iter().zip(y) {
            for lane in 0..LANES {
                sums[lane] += square(x[lane], y[lane]);
            }
        }
        for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
            sums[lane] += square(*x, *y);
        }
        sums.iter().sum()
    }
}

/// For each value the mean of the rows that are left when the `each_side` smallest and largest are not counted.
///
/// `rows` is `[rows, values]` and is sorted by columns afterwards; the mean is rounded once to the type.
pub(crate) fn trimmed_mean(
    values: &mut [f32],
    sums: &mut [f64],
    rows: &mut [f32],
    each_side: usize,
    float_type: FloatType,
) {
    sort_columns(rows, values.len());
    let counted = rows.len() / values.len() - 2 * each_side;
    sums.fill(0.0);
    for row in rows.chunks(values.len()).skip(each_side).take(counted) {
        add_scaled(sums, 1.0, row);
    }
    divide(values, sums, counted as f64, float_type);
}

/// Sorts each column of `[rows, columns]` by Batcher's merge exchange (Knuth, volume 3, 5.2.2 M): the same comparisons
/// for every column, so that many columns are sorted at once.
fn sort_columns(values: &mut [f32], columns: usize) {
    let rows = values.len() / columns;
    if rows < 2 {
        return;
    }
    let top = rows.next_power_of_two() / 2;
    let mut p = top;
    while p > 0 {
        let (mut q, mut r, mut d) = (top, 0, p);
        loop {
            for i in (0..rows - d).filter(|i| i & p == r) {
                let (before, from) = values.split_at_mut((i + d) * columns);
                sort_pairs(&mut before[i * columns..][..columns], &mut from[..columns]);
            }
            if q == p {
                break;
            }
            (d, r) = (q - p, p);
            q /= 2;
        }
        p /= 2;
    }
}

/// Puts the smaller of each pair into `low`.
fn sort_pairs(low: &mut [f32], high: &mut [f32]) {
    Arch::new().dispatch(SortPairs { low, high });
}

struct SortPairs<'a> {
    low: &'a mut [f32],
    high: &'a mut [f32],
}

impl WithSimd for SortPairs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (low, high) in self.low.iter_mut().zip(self.high) {
            let (a, b) = (*low, *high);
            *low = if b < a { b } else { a };
            *high = if b < a { a } else { b };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_every_height_are_sorted() {
        for rows in 1..40_usize {
            let columns = 3;
            let value = |i: usize| (i.wrapping_mul(2_654_435_761) % 97) as f32 - 48.0;
            let mut values: Vec<f32> = (0..rows * columns).map(value).collect();
            let mut expected = values.clone();
            sort_columns(&mut values, columns);
            for column in 0..columns {
                let places = (column..rows * columns).step_by(columns);
                let mut sorted: Vec<f32> = places.clone().map(|place| expected[place]).collect();
                sorted.sort_by(f32::total_cmp);
                for (place, x) in places.zip(sorted) {
                    expected[place] = x;
                }
            }
            assert_eq!(values, expected, "{rows} rows");
        }
    }

    #[test]
    fn a_quotient_is_rounded_once_to_sixteen_bits() {
        // Just above the tie between 1 and the next f16: to f32 first it would become the tie, and then 1.
        let above_tie = 1.0 + 2_f64.powi(-11) + 2_f64.powi(-40);
        let mut value = [0.0];
        divide(&mut value, &[above_tie], 1.0, FloatType::F16);
        assert_eq!(value, [1.0 + 2_f32.powi(-10)]);
        let above_tie = -(1.0 + 2_f64.powi(-8) + 2_f64.powi(-40));
        divide(&mut value, &[above_tie], 1.0, FloatType::Bf16);
        assert_eq!(value, [-(1.0 + 2_f32.powi(-7))]);
        divide(&mut value, &[1.0 + 2_f64.powi(-8)], 1.0, FloatType::Bf16);
        assert_eq!(value, [1.0]);
    }

    #[test]
    fn a_squared_distance_is_not_finite_just_where_a_value_is_not() {
        let far = [f32::MAX; 40];
        assert!(squared_distance(&far, &[f32::MIN; 40]).is_finite());
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 17, 39] {
                let mut values = [1.0; 40];
                values[place] = wrong;
                assert!(!squared_distance(&values, &[0.0; 40]).is_finite());
                assert!(!are_finite(&values));
            }
        }
        assert!(are_finite(&far));
    }
}
