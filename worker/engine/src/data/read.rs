//! Reads a file of rows into tokens, a block at a time, and counts what became of every row.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use trainyard_shared::dataset::{
    LineOverLimit, LineProblem, LineSplitter, MAX_KEPT_PROBLEMS, parse_row,
};

use super::{Example, Examples, RowEncoder};
use crate::{EngineError, device};

/// Bytes that are read at once, and about as many that are tokenised at once.
const BLOCK_BYTES: usize = 4 * 1024 * 1024;

/// What became of a file's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatasetReport {
    /// Rows that are trained on.
    pub examples: u64,
    /// Bad rows that were skipped.
    pub skipped_rows: u64,
    /// Good rows without anything to learn.
    pub dropped_rows: u64,
    /// Rows that were cut to the longest length.
    pub truncated_rows: u64,
    /// Tokens that run through the model in one epoch.
    pub tokens: u64,
    /// Tokens that the loss falls on in one epoch.
    pub trained_tokens: u64,
    /// SHA-256 of the file in hexadecimal.
    pub sha256: String,
    /// What was wrong with the first bad rows.
    pub problems: Vec<LineProblem>,
}

/// Reads a JSON lines file. Up to `max_bad_rows` bad rows are skipped; `is_stopped` is asked between blocks.
///
/// # Errors
/// [`EngineError::InvalidData`] naming the bad lines when there are more, or when no row has anything
/// to learn; [`EngineError::Io`] where the file cannot be read.
pub fn read_jsonl(
    path: &Path,
    encoder: &RowEncoder<'_>,
    max_bad_rows: u64,
    is_stopped: &dyn Fn() -> bool,
) -> Result<(Examples, DatasetReport), EngineError> {
    let failed = |error| EngineError::io("read", path, error);
    let mut file = File::open(path).map_err(failed)?;
    let mut reader = BlockReader {
        encoder,
        max_bad_rows,
        examples: Examples::new(),
        report: DatasetReport::default(),
    };
    let mut splitter = LineSplitter::new();
    let mut chunk = vec![0; BLOCK_BYTES];
    let mut lines = Vec::new();
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    loop {
        let count = file.read(&mut chunk).map_err(failed)?;
        if count == 0 || is_stopped() {
            break;
        }
        hasher.update(&chunk[..count]);
        splitter.feed(&chunk[..count], |number, line| {
            lines.push((number, line.map(<[u8]>::to_vec)))
        });
        bytes += count;
        if bytes >= BLOCK_BYTES {
            reader.take(std::mem::take(&mut lines))?;
            bytes = 0;
        }
    }
    splitter.finish(|number, line| lines.push((number, line.map(<[u8]>::to_vec))));
    reader.take(lines)?;
    reader.report.sha256 = hex::encode(hasher.finalize());
    reader.finish()
}

/// A line by its number.
type Line = (u64, Result<Vec<u8>, LineOverLimit>);

/// What a line came to.
enum Outcome {
    Encoded(Example),
    Dropped,
    Bad(String),
}

struct BlockReader<'a, 'b> {
    encoder: &'a RowEncoder<'b>,
    max_bad_rows: u64,
    examples: Examples,
    report: DatasetReport,
}

impl BlockReader<'_, '_> {
    fn take(&mut self, lines: Vec<Line>) -> Result<(), EngineError> {
        let encoder = self.encoder;
        let outcomes: Vec<_> = device::run(|| {
            let lines = lines.into_par_iter();
            lines
                .map(|(number, line)| (number, outcome(encoder, line)))
                .collect()
        });
        for (number, outcome) in outcomes {
            match outcome {
                Outcome::Encoded(example) if self.examples.push(&example) => {
                    self.report.truncated_rows += u64::from(example.truncated);
                }
                Outcome::Encoded(_) | Outcome::Dropped => self.report.dropped_rows += 1,
                Outcome::Bad(message) => {
                    self.report.skipped_rows += 1;
                    if self.report.problems.len() < MAX_KEPT_PROBLEMS {
                        self.report.problems.push(LineProblem {
                            line: number,
                            message,
                        });
                    }
                }
            }
        }
        if self.report.skipped_rows > self.max_bad_rows {
            return Err(EngineError::InvalidData(too_many_bad_rows(
                &self.report,
                self.max_bad_rows,
            )));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(Examples, DatasetReport), EngineError> {
        if self.examples.is_empty() {
            let DatasetReport {
                dropped_rows,
                skipped_rows,
                ..
            } = self.report;
            return Err(EngineError::InvalidData(format!(
                "no trainable tokens: of the rows, {dropped_rows} have nothing to learn and {skipped_rows} are bad"
            )));
        }
        self.report.examples = self.examples.len() as u64;
        self.report.tokens = (0..self.examples.len())
            .map(|row| self.examples.input_length(row) as u64)
            .sum();
        self.report.trained_tokens = self.examples.trained_tokens();
        Ok((self.examples, self.report))
    }
}

fn outcome(encoder: &RowEncoder<'_>, line: Result<Vec<u8>, LineOverLimit>) -> Outcome {
    let row = match line {
        Ok(bytes) => parse_row(&bytes).map_err(|problem| problem.to_string()),
        Err(over) => Err(over.to_string()),
    };
    match row {
        Ok(row) if !row.is_trainable() => Outcome::Dropped,
        Ok(row) => match encoder.encode(&row) {
            Ok(example) => Outcome::Encoded(example),
            Err(error) => Outcome::Bad(error.to_string()),
        },
        Err(message) => Outcome::Bad(message),
    }
}

fn too_many_bad_rows(report: &DatasetReport, allowed: u64) -> String {
    const SHOWN: usize = 5;
    let lines: Vec<String> = report
        .problems
        .iter()
        .take(SHOWN)
        .map(|LineProblem { line, message }| format!("line {line}: {message}"))
        .collect();
    let more = match (report.skipped_rows as usize).saturating_sub(lines.len()) {
        0 => String::new(),
        count => format!("; and {count} more"),
    };
    format!(
        "{}{more} ({allowed} bad rows may be skipped)",
        lines.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use chrono::Local;
    use trainyard_shared::training::TrainOn;

    use super::*;
    use crate::chat_template::Chat;
    use crate::tokenizer::testing::bytes;

    fn read(file: &[u8], max_bad_rows: u64) -> Result<(Examples, DatasetReport), String> {
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), file).unwrap();
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::Auto,
            max_length: 64,
            vocab_size: 265,
        };
        read_jsonl(path.path(), &encoder, max_bad_rows, &|| false)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn g062_g063_marks_blank_lines_and_crlf_change_nothing() {
        let (examples, report) = read(
            b"\xef\xbb\xbf{\"text\":\"a\"}\r\n\r\n \t\r\n{\"text\":\"b\"}",
            0,
        )
        .unwrap();
        assert_eq!((examples.len(), report.examples), (2, 2));
        assert_eq!(
            examples.batch(&[1]).targets,
            [258],
            "the text is one byte, then EOS"
        );
    }

    #[test]
    fn g064_a_bad_line_is_named_and_skipped_only_where_that_is_allowed() {
        let file = b"{\"text\":\"1\"}\n{\"text\":\"2\"}\n{\"text\":\"\xc3\x28\"}\n{\"text\":\"4\"}\n{\"text\":\"5\"}\n";
        let error = read(file, 0).unwrap_err();
        assert!(error.contains("line 3: invalid UTF-8"), "{error}");
        let (examples, report) = read(file, 1).unwrap();
        assert_eq!(
            (examples.len(), report.skipped_rows, report.problems[0].line),
            (4, 1, 3)
        );
    }

    #[test]
    fn g065_a_line_of_ten_megabytes_is_cut_to_the_longest_row() {
        let file = format!(
            "{{\"text\":\"a\"}}\n{{\"text\":\"{}\"}}\n{{\"text\":\"b\"}}\n",
            "x".repeat(10_000_000)
        );
        let (examples, report) = read(file.as_bytes(), 0).unwrap();
        assert_eq!((examples.len(), report.truncated_rows), (3, 1));
        assert_eq!(examples.input_length(1), 63);
    }

    #[test]
    fn g069_rows_with_nothing_to_learn_are_dropped_and_counted_and_none_left_is_a_failure() {
        let user_only = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n";
        let empty = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"  \"}]}\n";
        let (examples, report) = read(
            format!("{user_only}{empty}{{\"text\":\"a\"}}\n").as_bytes(),
            0,
        )
        .unwrap();
        assert_eq!((examples.len(), report.dropped_rows), (1, 2));
        let error = read(format!("{user_only}{empty}").as_bytes(), 0).unwrap_err();
        assert!(error.contains("no trainable tokens"), "{error}");
        assert!(read(b"", 0).unwrap_err().contains("no trainable tokens"));
    }

    #[test]
    fn a_row_whose_answer_is_cut_away_is_dropped() {
        let long = format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}},{{\"role\":\"assistant\",\"content\":\"a\"}}]}}\n",
            "q".repeat(100)
        );
        let (_, report) = read(format!("{long}{{\"text\":\"a\"}}\n").as_bytes(), 0).unwrap();
        assert_eq!(
            (report.examples, report.dropped_rows, report.truncated_rows),
            (1, 1, 0)
        );
    }

    #[test]
    fn figures_count_what_the_model_sees_and_what_it_learns() {
        let (_, report) = read(
            b"{\"prompt\":\"ab\",\"completion\":\"cd\"}\n{\"text\":\"xyz\"}\n",
            0,
        )
        .unwrap();
        assert_eq!((report.tokens, report.trained_tokens), (4 + 3, 3 + 3));
    }
}
