//! How results are printed: for people as text and tables, for programs as JSON lines.

use serde_json::Value;
use std::io::{self, Write};
use std::time::Duration;

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
    pub fn result(
        &self,
        value: &Value,
        in_words: impl FnOnce(&Value) -> String,
    ) -> Result<(), CliError> {
        if self.json {
            self.line(&value.to_string())
        } else {
            self.line(&in_words(value))
        }
    }

    /// Prints a line, or several, to standard output.
    pub fn line(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{}", text.trim_end_matches('\n'))
            .and_then(|()| stdout.flush())
            .map_err(|source| CliError::io("standard output", source))
    }

    /// Prints why the command failed to standard error.
    pub fn error(&self, error: &CliError) {
        if error.is_broken_pipe() {
            return;
        }
        let text = if self.json {
            error.to_json().to_string()
        } else {
            format!("error: {error}")
        };
        // Where standard error is closed there is nobody left to tell.
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Prints a remark for a person to standard error.
pub fn remark(text: &str) {
    // Where standard error is closed there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A field of an answer in words: `-` where there is none. `pointer` is a JSON pointer, as `/progress/step`.
pub fn cell(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(other) => other.to_string(),
    }
}

/// A figure of an answer to about four digits: `-` where there is none.
pub fn figure(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer).and_then(Value::as_f64) {
        Some(figure) if figure != 0.0 && (figure.abs() < 0.001 || figure.abs() >= 1e6) => {
            format!("{figure:.3e}")
        }
        Some(figure) => format!("{figure:.4}"),
        None => cell(value, pointer),
    }
}

/// A time of an answer to the second, in UTC as it came: `-` where there is none.
pub fn time(value: &Value, pointer: &str) -> String {
    let text = cell(value, pointer);
    match text.split_once('.') {
        Some((seconds, _)) if text.ends_with('Z') => format!("{seconds}Z"),
        _ => text,
    }
}

/// The fields of an object of an answer, as they are given to `--set`: `-` where there are none.
pub fn given_fields(value: &Value, pointer: &str) -> String {
    let fields = value.pointer(pointer).and_then(Value::as_object);
    let fields: Vec<_> = fields
        .into_iter()
        .flatten()
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}={}", printable(text)),
            None => format!("{name}={value}"),
        })
        .collect();
    match fields.as_slice() {
        [] => "-".to_owned(),
        fields => fields.join(" "),
    }
}

/// Text without control characters: names that others chose must not steer the terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

/// Columns under their headings, two spaces apart.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells.chain([headings[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<_> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(headings.to_vec())];
    lines.extend(
        rows.iter()
            .map(|row| line(row.iter().map(String::as_str).collect())),
    );
    lines.join("\n")
}

/// Names and values, one pair a line, values aligned.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<_> = pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}"))
        .collect();
    lines.join("\n")
}

/// Items of a list's answer.
pub fn items(list: &Value) -> &[Value] {
    list["items"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// A number of bytes, as `18.6 MiB`.
pub fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}

/// A time span to the second, as `1h 02m 03s`.
pub fn time_span(span: Duration) -> String {
    let seconds = span.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m {seconds:02}s"),
        _ => format!("{hours}h {minutes:02}m {seconds:02}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_is_aligned_and_has_no_trailing_spaces() {
        let rows = [
            vec!["1".to_owned(), "é".to_owned()],
            vec!["10".to_owned(), "long name".to_owned()],
        ];
        assert_eq!(
            table(&["ID", "NAME"], &rows),
            "ID  NAME\n1   é\n10  long name"
        );
    }

    #[test]
    fn figures_and_times_are_as_exact_as_a_person_wants_them() {
        let job = json!({
            "loss": 1.2345678901234567, "rate": 0.0000123456, "none": null,
            "seen": "2026-01-02T03:04:05.123456789Z", "made": "2026-01-02T03:04:05Z"
        });
        assert_eq!(figure(&job, "/loss"), "1.2346");
        assert_eq!(figure(&job, "/rate"), "1.235e-5");
        assert_eq!(figure(&job, "/none"), "-");
        assert_eq!(time(&job, "/seen"), "2026-01-02T03:04:05Z");
        assert_eq!(time(&job, "/made"), "2026-01-02T03:04:05Z");
        assert_eq!(time(&job, "/none"), "-");
    }

    #[test]
    fn what_is_missing_is_a_dash() {
        let job = json!({"name": null, "progress": {"step": 7}, "awaiting_worker": false});
        assert_eq!(cell(&job, "/name"), "-");
        assert_eq!(cell(&job, "/progress/step"), "7");
        assert_eq!(cell(&job, "/progress/loss"), "-");
        assert_eq!(cell(&job, "/awaiting_worker"), "no");
    }

    #[test]
    fn names_of_others_do_not_steer_the_terminal() {
        assert_eq!(
            cell(&json!({"name": "a\u{1b}[2Jb"}), "/name"),
            "a\u{fffd}[2Jb"
        );
    }

    #[test]
    fn time_spans_are_short() {
        assert_eq!(time_span(Duration::from_secs_f64(9.9)), "9s");
        assert_eq!(time_span(Duration::from_secs(125)), "2m 05s");
        assert_eq!(time_span(Duration::from_secs(3723)), "1h 02m 03s");
    }
}
