//! Why a command failed, as it is told to the person at the terminal.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The platform refused the request.
    #[error("{message}{}", details_in_words(.message, .details))]
    Refused {
        /// HTTP status.
        status: u16,
        /// `error.code`
        code: String,
        /// `error.message`
        message: String,
        /// `error.details`
        details: Value,
    },
    /// The platform could not be reached, or broke off.
    #[error("{platform}: {reason}")]
    Unreachable {
        /// The platform's address.
        platform: String,
        /// What the network said.
        reason: String,
    },
    /// The platform answered something that is not understood.
    #[error("unexpected answer of the platform: {0}")]
    UnexpectedAnswer(String),
    /// There is no token.
    #[error("you are not logged in at {platform}: run `trainyard login`, or set TRAINYARD_TOKEN")]
    NotLoggedIn {
        /// The platform's address.
        platform: String,
    },
    /// A file or stream could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The input does not make sense.
    #[error("{0}")]
    Input(String),
}

impl CliError {
    /// An error of the system, with what was tried.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    /// Whether a later try may go better.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    /// The same in the words of a command: its options stand for the fields of the request that they fill.
    pub fn with_options(self, options: &[(&str, &str)]) -> Self {
        let Self::Refused {
            status,
            code,
            mut message,
            mut details,
        } = self
        else {
            return self;
        };
        for problem in details.as_array_mut().into_iter().flatten() {
            let named = options.iter().find(|(field, _)| problem["field"] == *field);
            let Some((field, option)) = named else {
                continue;
            };
            if let Some(rest) = message.strip_prefix(&format!("{field}: ")) {
                message = format!("{option}: {rest}");
            }
            problem["field"] = json!(option);
        }
        Self::Refused {
            status,
            code,
            message,
            details,
        }
    }

    /// Whether the reader of our output has gone away: nobody is left to tell.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The error as a JSON object.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Refused {
                code,
                message,
                details,
                ..
            } => {
                let mut error = json!({ "code": code, "message": message });
                if !details.is_null() {
                    error["details"] = details.clone();
                }
                json!({ "error": error })
            }
            Self::Unreachable { .. } => {
                json!({ "error": { "code": "unreachable", "message": self.to_string() } })
            }
            Self::NotLoggedIn { .. } => {
                json!({ "error": { "code": "not_logged_in", "message": self.to_string() } })
            }
            Self::UnexpectedAnswer(_) | Self::Io { .. } | Self::Input(_) => {
                json!({ "error": { "code": "failed", "message": self.to_string() } })
            }
        }
    }
}

/// The fields or rows that are to blame, one a line.
fn details_in_words(told: &str, details: &Value) -> String {
    let mut lines = String::new();
    let fields = details.as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = details
        .get("problems")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    for field in fields {
        let name = field["field"].as_str().unwrap_or_default();
        let message = field["message"].as_str().unwrap_or_default();
        let separator = if name.is_empty() { "" } else { ": " };
        let problem = format!("{name}{separator}{message}");
        match field["hint"].as_str() {
            Some(hint) if told == problem => {
                let _ = write!(lines, "\n  hint: {hint}");
            }
            Some(hint) => {
                let _ = write!(lines, "\n  {problem} (hint: {hint})");
            }
            None if told == problem => {}
            None => {
                let _ = write!(lines, "\n  {problem}");
            }
        }
    }
    for row in rows {
        let problem = format!(
            "line {}: {}",
            row["line"],
            row["message"].as_str().unwrap_or_default()
        );
        if !told.ends_with(&problem) {
            let _ = write!(lines, "\n  {problem}");
        }
    }
    let count = |of: &str| details[of].as_u64().unwrap_or(0);
    let all = count("bad_rows") + count("untrainable_rows");
    let unshown = all.saturating_sub(rows.len() as u64);
    if unshown > 0 {
        let _ = write!(lines, "\n  and {unshown} more");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(details: Value) -> CliError {
        let message = "2 fields are not valid".to_owned();
        CliError::Refused {
            status: 400,
            code: "invalid_request".to_owned(),
            message,
            details,
        }
    }

    #[test]
    fn a_refusal_is_told_with_each_field_and_its_hint() {
        let error = refused(json!([
            {"field": "config.lerning_rate", "message": "there is no such field", "hint": "learning_rate"},
            {"field": "", "message": "something else"},
        ]));
        assert_eq!(
            error.to_string(),
            "2 fields are not valid\n  config.lerning_rate: there is no such field (hint: learning_rate)\n  \
             something else"
        );
        assert_eq!(
            error.to_json()["error"]["details"][0]["hint"],
            "learning_rate"
        );
    }

    #[test]
    fn a_refusal_names_the_options_that_were_typed() {
        let error = CliError::Refused {
            status: 400,
            code: "invalid_request".to_owned(),
            message: "en_az: must lie between 1 and 1000".to_owned(),
            details: json!([{"field": "en_az", "message": "must lie between 1 and 1000"}]),
        };
        let told = error.with_options(&[("bs", "--batch-size"), ("en_az", "--enough")]);
        assert_eq!(told.to_string(), "--enough: must lie between 1 and 1000");
    }

    #[test]
    fn what_the_message_says_already_is_not_said_twice() {
        let message = "lr: there is no such field".to_owned();
        let details =
            json!([{"field": "lr", "message": "there is no such field", "hint": "learning_rate"}]);
        let error = CliError::Refused {
            status: 400,
            code: "invalid_request".to_owned(),
            message,
            details,
        };
        assert_eq!(
            error.to_string(),
            "lr: there is no such field\n  hint: learning_rate"
        );
    }

    #[test]
    fn bad_rows_are_told_with_their_line_numbers() {
        let report =
            json!({"bad_rows": 3, "problems": [{"line": 7, "message": "invalid UTF-8 at byte 3"}]});
        let told = refused(report).to_string();
        assert!(
            told.ends_with("\n  line 7: invalid UTF-8 at byte 3\n  and 2 more"),
            "{told}"
        );
    }
}
