//! Owns how JSON is kept in text columns.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::DatabaseError;

/// A value as the text to store.
///
/// # Errors
/// When the value is none that JSON can hold.
pub fn to_json_text<T: Serialize>(value: &T) -> Result<String, DatabaseError> {
    serde_json::to_string(value).map_err(unreadable)
}

/// A value from the text that is stored.
///
/// # Errors
/// When the text is not what was stored.
pub fn from_json_text<T: DeserializeOwned>(text: &str) -> Result<T, DatabaseError> {
    serde_json::from_str(text).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> DatabaseError {
    DatabaseError::Query(diesel::result::Error::SerializationError(Box::new(error)))
}
