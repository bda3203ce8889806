//! What is known of all rows of a data set.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::lines::{LineOverLimit, LineSplitter};
use super::row::{Row, RowShape, parse_row};

/// So many problems are kept word for word; the others are only counted.
pub const MAX_KEPT_PROBLEMS: usize = 100;

/// What is wrong with one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct LineProblem {
    /// The line's number, from 1.
    pub line: u64,
    /// What is wrong.
    pub message: String,
}

/// Figures on the rows of a data set, and what is wrong with its bad ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RowReport {
    /// Good rows.
    pub rows: u64,
    /// Good rows by their shape.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub row_shapes: BTreeMap<RowShape, u64>,
    /// Good rows with nothing to train on: they are dropped in training.
    pub untrainable_rows: u64,
    /// Bad rows.
    pub bad_rows: u64,
    /// The first [`MAX_KEPT_PROBLEMS`] bad rows and, behind them, the first rows with nothing to train on.
    pub problems: Vec<LineProblem>,
}

impl RowReport {
    /// Reads a line, counts it, and gives the row if it is one.
    pub fn record(&mut self, number: u64, line: Result<&[u8], LineOverLimit>) -> Option<Row> {
        let read = match line {
            Ok(bytes) => parse_row(bytes).map_err(|problem| problem.to_string()),
            Err(over) => Err(over.to_string()),
        };
        match read {
            Ok(row) => {
                self.rows += 1;
                *self.row_shapes.entry(row.shape()).or_default() += 1;
                self.untrainable_rows += u64::from(!row.is_trainable());
                Some(row)
            }
            Err(message) => {
                self.bad_rows += 1;
                if self.problems.len() < MAX_KEPT_PROBLEMS {
                    self.problems.push(LineProblem {
                        line: number,
                        message,
                    });
                }
                None
            }
        }
    }

    /// Good rows that have something to train on.
    pub const fn trainable_rows(&self) -> u64 {
        self.rows - self.untrainable_rows
    }
}

/// What is told of a good row that training would drop.
const NOTHING_TO_TRAIN_ON: &str = "nothing to train on: no answer, completion or text that is more than white space; dropped in training";

/// Checks a file's rows as its bytes come, in bounded memory.
#[derive(Debug, Default)]
pub struct RowChecker {
    lines: LineSplitter,
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    report: RowReport,
    /// The first rows with nothing to train on, by line.
    untrainable: Vec<u64>,
}

impl Found {
    fn record(&mut self, number: u64, line: Result<&[u8], LineOverLimit>) {
        let row = self.report.record(number, line);
        let is_untrainable = row.is_some_and(|row| !row.is_trainable());
        if is_untrainable && self.untrainable.len() < MAX_KEPT_PROBLEMS {
            self.untrainable.push(number);
        }
    }

    fn report(self) -> RowReport {
        let mut report = self.report;
        let room = MAX_KEPT_PROBLEMS.saturating_sub(report.problems.len());
        let untrainable = self.untrainable.into_iter().take(room);
        report.problems.extend(untrainable.map(|line| LineProblem {
            line,
            message: NOTHING_TO_TRAIN_ON.to_owned(),
        }));
        report
    }
}

impl RowChecker {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the file's next bytes.
    pub fn feed(&mut self, chunk: &[u8]) {
        let found = &mut self.found;
        self.lines
            .feed(chunk, |number, line| found.record(number, line));
    }

    /// The report on the whole file.
    pub fn finish(self) -> RowReport {
        let mut found = self.found;
        self.lines.finish(|number, line| found.record(number, line));
        found.report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &[u8]) -> RowReport {
        let mut checker = RowChecker::new();
        for chunk in file.chunks(7) {
            checker.feed(chunk);
        }
        checker.finish()
    }

    #[test]
    fn g062_g063_mark_blank_lines_and_crlf_make_no_difference() {
        let report = check(b"\xef\xbb\xbf{\"text\":\"a\"}\r\n\r\n \t\r\n{\"text\":\"b\"}");
        assert_eq!((report.rows, report.bad_rows), (2, 0));
    }

    #[test]
    fn g064_a_bad_line_is_reported_by_number_and_the_others_count() {
        let report = check(
            b"{\"text\":\"1\"}\n{\"text\":\"2\"}\n{\"text\":\"\xc3\x28\"}\n{\"text\":\"4\"}\n{\"text\":\"5\"}\n",
        );
        assert_eq!((report.rows, report.bad_rows), (4, 1));
        assert_eq!(
            report.problems,
            [LineProblem {
                line: 3,
                message: "invalid UTF-8 at byte 10".to_owned()
            }]
        );
    }

    #[test]
    fn g065_a_line_of_ten_megabytes_is_a_row() {
        let long = format!("{{\"text\":\"{}\"}}\n", "x".repeat(10_000_000));
        let file = format!("{{\"text\":\"a\"}}\n{long}{{\"text\":\"b\"}}\n{{\"text\":\"c\"}}\n");
        let mut checker = RowChecker::new();
        for chunk in file.as_bytes().chunks(65_536) {
            checker.feed(chunk);
        }
        assert_eq!(checker.finish().rows, 4);
    }

    #[test]
    fn g066_a_mixed_file_is_counted_by_shape() {
        let report = check(
            br#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}
{"instruction":"a","input":"b","output":"c"}
{"prompt":"a","completion":"b"}
{"text":"a"}
{"foo":1}
"#,
        );
        let expected = [
            RowShape::Messages,
            RowShape::Instruction,
            RowShape::PromptCompletion,
            RowShape::Text,
        ];
        assert_eq!(report.row_shapes, expected.map(|shape| (shape, 1)).into());
        assert_eq!(report.problems.len(), 1);
        assert_eq!(report.problems[0].line, 5);
        assert!(report.problems[0].message.contains("`foo`"));
    }

    #[test]
    fn g069_rows_without_an_answer_are_counted_and_named_by_line() {
        let report = check(
            b"{\"text\":\" \"}\n{\"text\":\"a\"}\nno\n{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n",
        );
        assert_eq!(
            (
                report.rows,
                report.untrainable_rows,
                report.trainable_rows()
            ),
            (3, 2, 1)
        );
        let lines: Vec<u64> = report.problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [3, 1, 4], "bad rows first");
        assert_eq!(report.problems[1].message, NOTHING_TO_TRAIN_ON);
    }

    #[test]
    fn problems_beyond_the_first_hundred_are_only_counted() {
        let report = check("no\n".repeat(1000).as_bytes());
        assert_eq!(
            (report.bad_rows, report.problems.len()),
            (1000, MAX_KEPT_PROBLEMS)
        );
    }
}
