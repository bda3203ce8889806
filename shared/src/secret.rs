//! Text that must never reach a log: keys, tokens and signed URLs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A key, token or signed URL. It travels on the wire as plain text, but `Debug` shows only `***`,
/// so that a message can be logged whole without giving anything away.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text itself, by value.
    pub fn into_exposed(self) -> String {
        self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g022_a_secret_is_not_shown_by_debug() {
        let shown = format!("{:?}", Secret::from("wkr_abc123"));
        assert_eq!(shown, "***");
    }
}
