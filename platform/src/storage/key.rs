//! Owns which keys exist: one allow-list, applied to the form in which a key is used.

use std::fmt;

use super::StorageError;

/// Longest key, and longest part of one (the name of the file that is written aside must fit too).
const MAX_KEY_BYTES: usize = 1024;
const MAX_PART_BYTES: usize = 200;

/// The name of an object: parts of ASCII letters, digits, `_`, `-` and `.`, joined by `/`. No part is empty or
/// begins with a dot, so that a key can neither leave the root nor name a file that is still being written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageKey(String);

impl StorageKey {
    /// Checks a key that came from outside. It is taken as it stands: nothing is decoded, trimmed or resolved.
    ///
    /// # Errors
    /// [`StorageError::InvalidKey`] with the reason.
    pub fn parse(text: &str) -> Result<Self, StorageError> {
        let refuse = |reason| Err(StorageError::InvalidKey(reason));
        if text.is_empty() {
            return refuse("a key must not be empty");
        }
        if text.len() > MAX_KEY_BYTES {
            return refuse("a key must not be longer than 1,024 bytes");
        }
        for part in text.split('/') {
            if part.is_empty() {
                return refuse("a key must not begin or end with a slash, nor hold two in a row");
            }
            if part.starts_with('.') {
                return refuse("no part of a key may begin with a dot");
            }
            if part.len() > MAX_PART_BYTES {
                return refuse("no part of a key may be longer than 200 bytes");
            }
            if !part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            {
                return refuse("a key may hold ASCII letters, digits, '.', '_', '-' and '/' only");
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part behind the last slash.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for StorageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_we_write_are_taken() {
        for key in [
            "datasets/42/data.jsonl",
            "checkpoints/job-1/step-100/adapter_model.safetensors",
            "models/job-1/final/adapter_config.json",
        ] {
            assert_eq!(StorageKey::parse(key).unwrap().as_str(), key);
        }
    }

    /// G044: nothing that could leave the root, or hide from a check by its spelling, is a key.
    #[test]
    fn g044_keys_that_could_leave_the_root_are_refused() {
        let long = "a/".repeat(600) + "a";
        let wide = "a".repeat(201);
        for key in [
            "",
            "/",
            "/etc/passwd",
            "..",
            "../x",
            "../../../../etc/passwd",
            "a/../b",
            "a/../../b",
            "a/./b",
            "a//b",
            "a/",
            "./a",
            "%2e%2e%2fa",
            "a%2f..",
            "..%5c",
            "..\\x",
            "a\\b",
            "C:\\x",
            "a\0b",
            "a\nb",
            "a\u{7f}b",
            "a b",
            "ä",
            ".hidden",
            "a/.partial",
            "~",
            "a:b",
            "a?b",
            "a#b",
            &long,
            &wide,
        ] {
            assert!(StorageKey::parse(key).is_err(), "{key:?} was taken");
        }
    }
}
