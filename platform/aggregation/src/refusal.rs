//! What is wrong with an upload, in words that name the tensor, for whoever sent it.

use std::fmt;

/// Why an upload is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    /// It is no sound safetensors file.
    Damaged {
        /// What is wrong with it.
        message: String,
    },
    /// A tensor of the global adapter is not in it.
    Missing {
        /// The tensor.
        key: String,
    },
    /// It holds a tensor that the global adapter has not.
    Unknown {
        /// The tensor.
        key: String,
    },
    /// A tensor has another shape than in the global adapter.
    Shape {
        /// The tensor.
        key: String,
        /// The shape in the global adapter.
        expected: Vec<usize>,
        /// The shape in the upload.
        found: Vec<usize>,
    },
    /// A tensor's values have another type than in the global adapter.
    Type {
        /// The tensor.
        key: String,
        /// The type in the global adapter.
        expected: &'static str,
        /// The type in the upload.
        found: String,
    },
    /// A tensor holds NaN or an infinity.
    NotFinite {
        /// The tensor.
        key: String,
        /// The value's place in it, counted row by row from 0.
        place: usize,
    },
    /// It went further from the global adapter than the session allows.
    TooFar {
        /// How far: the L2 norm of the difference.
        delta_norm: f64,
        /// How far it may be.
        max_delta_norm: f64,
    },
}

/// Characters of a name that are repeated to whoever wrote it.
const LONGEST_NAME: usize = 200;

/// A stranger's name for a tensor: without control characters, and cut where it is long.
struct Key<'a>(&'a str);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut characters = self.0.chars();
        for character in characters.by_ref().take(LONGEST_NAME) {
            match character.is_control() {
                true => write!(f, "{}", character.escape_default())?,
                false => write!(f, "{character}")?,
            }
        }
        match characters.next() {
            Some(_) => f.write_str("…"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { message } => Key(message).fmt(f),
            Self::Missing { key } => write!(f, "tensor {} is missing", Key(key)),
            Self::Unknown { key } => {
                write!(f, "tensor {} is not in the global adapter", Key(key))
            }
            Self::Shape {
                key,
                expected,
                found,
            } => write!(
                f,
                "tensor {} has shape {found:?}, expected {expected:?}",
                Key(key)
            ),
            Self::Type {
                key,
                expected,
                found,
            } => write!(f, "tensor {} is {found}, expected {expected}", Key(key)),
            Self::NotFinite { key, place } => write!(
                f,
                "tensor {} holds a value that is not finite, at place {place}",
                Key(key)
            ),
            Self::TooFar {
                delta_norm,
                max_delta_norm,
            } => write!(
                f,
                "the change is too large: its norm is {delta_norm:.6e}, at most {max_delta_norm} is allowed"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
