//! How results are printed: for people as text, for programs as JSON lines.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::error::CliError;

/// Where results go and in which form.
pub struct Output {
    json: bool,
}

impl Output {
    /// JSON lines, or text.
    pub const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether the reader is a program.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a result: as it is for a program, in words for a person.
    pub fn result(&self, value: &Value, in_words: &str) -> Result<(), CliError> {
        if self.json {
            self.line(&value.to_string())
        } else {
            self.line(in_words)
        }
    }

    /// Prints a line, or several, to standard output.
    pub fn line(&self, text: &str) -> Result<(), CliError> {
        self.text(&format!("{}\n", text.trim_end_matches('\n')))
    }

    /// Prints text as it is, at once.
    pub fn text(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|source| CliError::io("standard output", source))
    }

    /// Prints why the command failed to standard error.
    pub fn error(&self, error: &CliError) {
        if error.is_broken_pipe() {
            return;
        }
        let text = if self.json {
            json!({"error": {"message": error.to_string()}}).to_string()
        } else {
            format!("error: {error}")
        };
        remark(&text);
    }
}

/// Prints a remark for a person to standard error.
pub fn remark(text: &str) {
    // Where standard error is closed there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{text}");
}
