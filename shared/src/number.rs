//! How numbers are read and written, for use in `#[serde(with = …)]` and its like.
//!
//! JSON knows neither NaN nor infinity, so a metric that is not finite is `null` on the wire
//! (PROTOCOL 1). In our types a metric is an `Option<f64>`: `None` was not reported, `Some(NaN)` was
//! reported as `null`. Counts are integers from 0 to 2^53 - 1.

use serde::{Deserialize, Deserializer, Serializer};

/// Largest count that is taken: 2^53 - 1.
pub const MAX_COUNT: u64 = (1 << 53) - 1;

/// Reads a count: a JSON integer from 0 to [`MAX_COUNT`].
pub fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    within(u64::deserialize(deserializer)?)
}

/// Reads a count that may be `null`. Use with `#[serde(default)]`.
pub fn optional_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Option::<u64>::deserialize(deserializer)?
        .map(within)
        .transpose()
}

/// Reads a metric: a number, or `null` for one that is not finite. Use with `#[serde(default)]`.
pub fn metric<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Some(
        Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN),
    ))
}

/// Writes a whole number without a fraction (`98`, not `98.0`), as the source documents write those
/// metrics that most workers know only as integers. What is not finite is written as `null`.
pub fn shortest<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match *value {
        Some(number) if number.is_finite() => {
            if number.fract() == 0.0 && number.abs() <= MAX_COUNT as f64 {
                serializer.serialize_i64(number as i64)
            } else {
                serializer.serialize_f64(number)
            }
        }
        _ => serializer.serialize_none(),
    }
}

/// The number if it is finite: for code that wants to calculate with a metric.
pub fn finite(metric: Option<f64>) -> Option<f64> {
    metric.filter(|value| value.is_finite())
}

fn within<E: serde::de::Error>(count: u64) -> Result<u64, E> {
    if count > MAX_COUNT {
        return Err(E::custom(format_args!("{count} is over 2^53 - 1")));
    }
    Ok(count)
}
