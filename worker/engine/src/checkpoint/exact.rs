//! Figures in JSON that come back bit for bit: as text, since JSON numbers are read with a rounding error.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exact(f64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    /// As checkpoints of earlier versions have it.
    Number(f64),
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_string())
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
            Written::Number(number) => Ok(Self(number)),
        }
    }
}

/// For `#[serde(with)]` on a figure that may be missing.
pub(super) mod optional {
    use super::*;

    pub fn serialize<S: Serializer>(figure: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        figure.map(Exact).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Exact>::deserialize(from)?.map(|figure| figure.0))
    }
}

/// For `#[serde(with)]` on a figure.
pub(super) mod figure {
    use super::*;

    pub fn serialize<S: Serializer>(figure: &f64, to: S) -> Result<S::Ok, S::Error> {
        Exact(*figure).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Ok(Exact::deserialize(from)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_back_bit_for_bit() {
        for figure in [11.605_032_772_948_217, 0.1 + 0.2, 1e-310, f64::MAX] {
            let text = serde_json::to_string(&Exact(figure)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), figure.to_bits());
        }
        let earlier: Exact = serde_json::from_str("2.5").unwrap();
        assert_eq!(earlier.0, 2.5);
    }
}
