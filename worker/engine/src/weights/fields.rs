//! Fields of a JSON object, with errors that name them.

use serde_json::{Map, Value};

/// Typed look-ups that name the field when they fail.
pub(super) struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// A field's value, if it is there and not null.
    pub fn given(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub fn count(&self, name: &str) -> Result<usize, String> {
        self.optional_count(name)?
            .ok_or_else(|| format!("{name} is missing"))
    }

    pub fn optional_count(&self, name: &str) -> Result<Option<usize>, String> {
        match self.given(name) {
            None => Ok(None),
            // A bound that no model reaches keeps products of counts far from overflow.
            Some(value) => match value.as_u64().filter(|&n| n > 0 && n < 1 << 31) {
                Some(n) => Ok(Some(n as usize)),
                None => Err(format!("{name} is no count above 0 but {value}")),
            },
        }
    }

    pub fn number(&self, name: &str) -> Result<f64, String> {
        self.optional_number(name)?
            .ok_or_else(|| format!("{name} is missing"))
    }

    pub fn optional_number(&self, name: &str) -> Result<Option<f64>, String> {
        match self.given(name) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(Some(x)),
                None => Err(format!("{name} is no number but {value}")),
            },
        }
    }

    pub fn optional_bool(&self, name: &str) -> Result<Option<bool>, String> {
        match self.given(name) {
            None => Ok(None),
            Some(Value::Bool(yes)) => Ok(Some(*yes)),
            Some(value) => Err(format!("{name} is no boolean but {value}")),
        }
    }

    /// Refuses a field whose value, `is_used` says, would have to be done.
    pub fn refuse(&self, name: &str, is_used: impl Fn(&Value) -> bool) -> Result<(), String> {
        match self.given(name) {
            Some(value) if is_used(value) => Err(match value {
                Value::Object(_) => format!("{name} is not supported"),
                plain => format!("{name} {plain} is not supported"),
            }),
            _ => Ok(()),
        }
    }
}
