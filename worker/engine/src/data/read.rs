//! Reads a file of rows into tokens, a block at a time, and counts what became of every row.

use std::fs;
use std::io;
use std::path::PathBuf;

use rayon::prelude::*;
use trainyard_datasets::{LineProblem, MAX_KEPT_PROBLEMS, Record};
use trainyard_shared::dataset::{DatasetFormat, Row};

use super::blocks::Blocks;
use super::token_file::RowSink;
use super::{DatasetReport, Example, Examples, RowEncoder, TokenCache};
use crate::{EngineError, device, files};

/// To be raised whenever the same row and settings give other tokens than before: cached tokens are then made anew.
const ENCODING_VERSION: u32 = 3;

/// So many records are encoded before their tokens are written, and bad ones are counted.
const RECORDS_AT_ONCE: usize = 64;

/// A data set on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFile {
    /// The file.
    pub path: PathBuf,
    /// What it holds.
    pub format: DatasetFormat,
    /// SHA-256 of the file in hexadecimal, where it is known; else the file is read once more for it.
    pub sha256: Option<String>,
}

impl DataFile {
    /// A file whose format is told by the end of its name, JSON lines where that says nothing.
    pub fn by_name(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self {
            format: DatasetFormat::of_file_name(&name).unwrap_or_default(),
            path,
            sha256: None,
        }
    }

    /// SHA-256 of the file in hexadecimal.
    ///
    /// # Errors
    /// [`EngineError::Io`] where it is not known and the file cannot be read.
    pub(super) fn digest(&self) -> Result<String, EngineError> {
        if let Some(digest) = &self.sha256 {
            return Ok(digest.to_ascii_lowercase());
        }
        let failed = |error| EngineError::io("read", &self.path, error);
        Ok(files::digest(&self.path).map_err(failed)?.1)
    }
}

/// The rows of a data set as tokens: from `cache` where the same have been made before, else read and put there.
///
/// Up to `max_bad_rows` bad rows are skipped; `is_stopped` is asked before every record.
///
/// # Errors
/// [`EngineError::Stopped`]; [`EngineError::InvalidData`] naming the bad rows when there are more, when the file is not of its format, or when no
/// row has anything to learn; [`EngineError::Io`] where a file cannot be read or written.
pub fn read_examples(
    data: &DataFile,
    encoder: &RowEncoder<'_>,
    max_bad_rows: u64,
    cache: &TokenCache,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<(Examples, DatasetReport), EngineError> {
    let sha256 = data.digest()?;
    let key = key(data.format, &sha256, encoder)?;
    let (examples, report) = cache.get(&key, |writer| {
        read_rows(data, sha256, encoder, max_bad_rows, writer, is_stopped)
    })?;
    // The run that made them may have put up with more.
    report.check_bad_rows(max_bad_rows)?;
    Ok((examples, report))
}

/// Reads the rows of a data set whose digest is `sha256` into `rows`.
///
/// # Errors
/// As [`read_examples`].
pub(super) fn read_rows(
    data: &DataFile,
    sha256: String,
    encoder: &RowEncoder<'_>,
    max_bad_rows: u64,
    rows: &mut dyn RowSink,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<DatasetReport, EngineError> {
    let reader = BlockReader {
        encoder,
        format: data.format,
        max_bad_rows,
        rows,
        report: DatasetReport {
            sha256,
            ..DatasetReport::default()
        },
    };
    reader.read(data, is_stopped)
}

/// Everything that the tokens depend on, as one text.
fn key(
    format: DatasetFormat,
    sha256: &str,
    encoder: &RowEncoder<'_>,
) -> Result<String, EngineError> {
    let RowEncoder {
        chat,
        train_on,
        max_length,
        vocab_size,
    } = encoder;
    let chat = chat.digest()?;
    Ok(format!(
        "encoding {ENCODING_VERSION}, {format} {sha256}, chat {chat}, {train_on:?}, {max_length}, {vocab_size}"
    ))
}

/// What a record came to.
enum Outcome {
    Encoded(Vec<Example>),
    Dropped,
    Bad(String),
}

struct BlockReader<'a, 'b> {
    encoder: &'a RowEncoder<'b>,
    format: DatasetFormat,
    max_bad_rows: u64,
    rows: &'a mut dyn RowSink,
    report: DatasetReport,
}

impl BlockReader<'_, '_> {
    fn read(
        mut self,
        data: &DataFile,
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<DatasetReport, EngineError> {
        let before = identity(data)?;
        for block in Blocks::open(data)? {
            for records in block?.chunks(RECORDS_AT_ONCE) {
                self.take(records, is_stopped)?;
            }
        }
        if identity(data)? != before {
            let message = "the file was changed while it was read";
            return Err(EngineError::InvalidData(message.to_owned()));
        }
        self.finish()
    }

    fn take(
        &mut self,
        records: &[Record],
        is_stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), EngineError> {
        let (encoder, format) = (self.encoder, self.format);
        let encode = |record| match is_stopped() {
            true => Err(EngineError::Stopped),
            false => Ok(outcome(encoder, format, record)),
        };
        let outcomes: Vec<_> =
            device::run(|| records.par_iter().map(encode).collect::<Result<_, _>>())?;
        for (record, outcome) in records.iter().zip(outcomes) {
            match outcome {
                Outcome::Encoded(examples) => {
                    let mut is_kept = false;
                    for example in &examples {
                        if self.push(example)? {
                            is_kept = true;
                            self.report.truncated_rows += u64::from(example.truncated);
                        }
                    }
                    self.report.dropped_rows += u64::from(!is_kept);
                }
                Outcome::Dropped => self.report.dropped_rows += 1,
                Outcome::Bad(message) => {
                    self.report.skipped_rows += 1;
                    if self.report.problems.len() < MAX_KEPT_PROBLEMS {
                        let problem = LineProblem::new(record.place, message);
                        self.report.problems.push(problem);
                    }
                }
            }
        }
        self.report.check_bad_rows(self.max_bad_rows)
    }

    fn push(&mut self, example: &Example) -> Result<bool, EngineError> {
        self.rows
            .push(example)
            .map_err(|error| EngineError::io("write", "the tokenised data set", error))
    }

    fn finish(mut self) -> Result<DatasetReport, EngineError> {
        let written = self.rows.written();
        if written.rows == 0 {
            let DatasetReport {
                dropped_rows,
                skipped_rows,
                ..
            } = self.report;
            return Err(EngineError::InvalidData(format!(
                "no trainable tokens: of the rows, {dropped_rows} have nothing to learn and {skipped_rows} are bad"
            )));
        }
        self.report.examples = written.rows;
        self.report.tokens = written.input_tokens;
        self.report.trained_tokens = written.trained_tokens;
        Ok(self.report)
    }
}

fn outcome(encoder: &RowEncoder<'_>, format: DatasetFormat, record: &Record) -> Outcome {
    let encoded = match record.row() {
        Err(problem) => return Outcome::Bad(problem.to_string()),
        Ok(row) if !row.is_trainable(encoder.train_on) => return Outcome::Dropped,
        Ok(Row::Text(text)) if format == DatasetFormat::Text => encoder.encode_document(&text),
        Ok(row) => encoder.encode(&row).map(|example| vec![example]),
    };
    match encoded {
        Ok(examples) => Outcome::Encoded(examples),
        Err(error) => Outcome::Bad(error.to_string()),
    }
}

/// What changes with a file's content.
fn identity(data: &DataFile) -> Result<(u64, std::time::SystemTime), EngineError> {
    let identity = || {
        let metadata = fs::metadata(&data.path)?;
        Ok((metadata.len(), metadata.modified()?))
    };
    identity().map_err(|error: io::Error| EngineError::io("read", &data.path, error))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use chrono::Local;
    use trainyard_shared::training::TrainOn;

    use super::*;
    use crate::chat_template::Chat;
    use crate::tokenizer::testing::bytes;

    fn read_in(
        file: &[u8],
        max_bad_rows: u64,
        format: DatasetFormat,
    ) -> Result<(Examples, DatasetReport), String> {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFile {
            path: folder.path().join("data"),
            format,
            sha256: None,
        };
        fs::write(&data.path, file).unwrap();
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::Auto,
            max_length: 64,
            vocab_size: 265,
        };
        let cache = TokenCache::new(folder.path().join("tokens"));
        let read = || read_examples(&data, &encoder, max_bad_rows, &cache, &|| false);
        let first = read().map_err(|error| error.to_string());
        let again = read().map_err(|error| error.to_string());
        match (&first, &again) {
            (Ok((examples, report)), Ok((cached, cached_report))) => {
                assert_eq!(report, cached_report);
                let rows: Vec<u32> = (0..examples.len() as u32).collect();
                assert_eq!(examples.batch(&rows), cached.batch(&rows));
            }
            (first, again) => assert_eq!(
                first.as_ref().err(),
                again.as_ref().err(),
                "the same from the cache"
            ),
        }
        first
    }

    fn read(file: &[u8], max_bad_rows: u64) -> Result<(Examples, DatasetReport), String> {
        read_in(file, max_bad_rows, DatasetFormat::Jsonl)
    }

    #[test]
    fn every_format_gives_the_same_examples() {
        use DatasetFormat::{Csv, Json, Jsonl, Text};
        let (expected, _) = read(b"{\"text\":\"a\"}\n{\"text\":\"bc\"}\n", 0).unwrap();
        for (format, file) in [
            (Jsonl, "{\"text\":\"a\"}\n{\"text\":\"bc\"}\n"),
            (Json, "[{\"text\":\"a\"}, {\"text\":\"bc\"}]"),
            (Csv, "id,text\n1,a\n2,bc\n"),
            (Text, "a\n\nbc\n"),
        ] {
            let (examples, _) = read_in(file.as_bytes(), 0, format).unwrap();
            assert_eq!(examples.batch(&[0, 1]), expected.batch(&[0, 1]), "{format}");
        }
    }

    #[test]
    fn a_long_document_is_trained_on_wholly() {
        let text = "0123456789".repeat(30);
        let (examples, report) = read_in(text.as_bytes(), 0, DatasetFormat::Text).unwrap();
        // 300 bytes and EOS, of which all but the first are learned.
        assert_eq!((report.trained_tokens, report.truncated_rows), (300, 0));
        assert_eq!((examples.len(), report.dropped_rows), (5, 0));
    }

    #[test]
    fn damage_ends_the_reading_with_its_place() {
        let error = read_in(b"[{\"text\":\"a\"},\n]", 9, DatasetFormat::Json).unwrap_err();
        assert!(
            error.contains("line 2: after element 1: a comma"),
            "{error}"
        );
        let error = read_in(b"[1]", 9, DatasetFormat::Jsonl).unwrap_err();
        assert!(error.contains("file: this is not jsonl"), "{error}");
    }

    #[test]
    fn other_settings_are_other_tokens() {
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let key = |train_on, max_length, sha256| {
            let encoder = RowEncoder {
                chat: &chat,
                train_on,
                max_length,
                vocab_size: 265,
            };
            key(DatasetFormat::Jsonl, sha256, &encoder).unwrap()
        };
        let keys = [
            key(TrainOn::Auto, 64, "a"),
            key(TrainOn::All, 64, "a"),
            key(TrainOn::Auto, 65, "a"),
            key(TrainOn::Auto, 64, "b"),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(keys[0], key(TrainOn::Auto, 64, "a"));
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
    fn a_stop_is_heeded_before_the_next_record() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFile::by_name(folder.path().join("rows.jsonl"));
        fs::write(&data.path, "{\"text\":\"abc\"}\n".repeat(1000)).unwrap();
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::All,
            max_length: 64,
            vocab_size: 265,
        };
        let asked = AtomicUsize::new(0);
        let is_stopped = || asked.fetch_add(1, Ordering::Relaxed) >= 3;
        let cache = TokenCache::new(folder.path().join("tokens"));
        let read = read_examples(&data, &encoder, 0, &cache, &is_stopped);
        assert!(matches!(read, Err(EngineError::Stopped)));
        // Each thread that was at work asks once more.
        let most = 3 + device::run(rayon::current_num_threads);
        assert!((4..=most).contains(&asked.load(Ordering::Relaxed)));
    }

    #[test]
    fn all_trains_on_rows_without_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFile::by_name(folder.path().join("rows.jsonl"));
        let question = "{\"messages\":[{\"role\":\"user\",\"content\":\"abc\"}]}";
        fs::write(&data.path, question).unwrap();
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let encoder = RowEncoder {
            chat: &chat,
            train_on: TrainOn::All,
            max_length: 64,
            vocab_size: 265,
        };
        let cache = TokenCache::new(folder.path().join("tokens"));
        let (_, report) = read_examples(&data, &encoder, 0, &cache, &|| false).unwrap();
        assert_eq!((report.examples, report.trained_tokens), (1, report.tokens));
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
