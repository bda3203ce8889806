//! Bytes of a fixed number, on the wire as lower-case hex digits.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `N` bytes. `Debug` does not show them: they may be a secret's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HexBytes<const N: usize>(pub [u8; N]);

impl<const N: usize> Serialize for HexBytes<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for HexBytes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format_args!("must be {} lower-case hex digits", 2 * N));
        let is_lower = !text.bytes().any(|digit| digit.is_ascii_uppercase());
        let mut bytes = [0; N];
        match hex::decode_to_slice(text.as_bytes(), &mut bytes) {
            Ok(()) if is_lower => Ok(Self(bytes)),
            _ => Err(wrong()),
        }
    }
}

impl<const N: usize> fmt::Debug for HexBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{N} bytes]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn just_so_many_lower_case_digits_are_read_and_none_is_shown_by_debug() {
        let bytes: HexBytes<2> = serde_json::from_str(r#""0aff""#).unwrap();
        assert_eq!(bytes, HexBytes([10, 255]));
        assert_eq!(serde_json::to_string(&bytes).unwrap(), r#""0aff""#);
        assert_eq!(format!("{bytes:?}"), "[2 bytes]");
        for wrong in [
            r#""0aF0""#,
            r#""0af""#,
            r#""0aff00""#,
            r#""0ax0""#,
            "7",
            r#""""#,
        ] {
            let read = serde_json::from_str::<HexBytes<2>>(wrong);
            assert!(read.is_err(), "{wrong}");
        }
    }
}
