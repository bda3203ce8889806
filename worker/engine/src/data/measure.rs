//! What a data set comes to as tokens: how long its rows are, what is cut away, how well it packs.

use std::collections::BTreeMap;

use rayon::prelude::*;
use serde::Serialize;
use trainyard_datasets::{LineProblem, Record};
use trainyard_shared::dataset::{DatasetFormat, Row};
use trainyard_shared::training::{TrainOn, TrainingConfig};

use super::blocks::Blocks;
use super::token_file::{Header, RowSink, TokenFile, TokenWriter};
use super::{DataFile, DatasetReport, Example, Examples, Order, RowEncoder};
use crate::chat_template::Chat;
use crate::{EngineError, device};

/// Lengths are measured up to here; longer rows count as so long, and so do those of which a template renders no more.
const LONGEST_MEASURED: usize = 128 * 1024;

/// Figures on a data set as tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenFigures {
    /// Longest row, by the config.
    pub max_length: u32,
    /// Rows that are trained on. A plain text's long documents become several.
    pub examples: u64,
    /// Good rows in which nothing is to be learned, or nothing that lies within `max_length`.
    pub dropped_rows: u64,
    /// Rows that cannot be rendered or tokenised, beside those that are no rows at all.
    pub unrenderable_rows: u64,
    /// Why, for the first of them.
    pub problems: Vec<LineProblem>,
    /// Rows that are longer than `max_length` and cut.
    pub truncated_rows: u64,
    /// Tokens that are cut away with that.
    pub truncated_tokens: u64,
    /// Lengths of rows in tokens, before anything is cut; none without rows.
    pub lengths: Option<Lengths>,
    /// Tokens that run through the model in one epoch.
    pub tokens: u64,
    /// Tokens that the loss falls on in one epoch.
    pub trained_tokens: u64,
    /// Share of the tokens that the loss does not fall on, 0 to 1.
    pub masked_share: f64,
    /// Whether rows are packed, by the config.
    pub packing: bool,
    /// Sequences in an epoch.
    pub sequences: u64,
    /// Share of `max_length` that is filled, over all sequences, 0 to 1.
    pub packing_efficiency: f64,
    /// Optimizer steps in an epoch, by the config.
    pub steps_per_epoch: u64,
}

/// How long rows are, in tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lengths {
    /// The shortest.
    pub min: u32,
    /// Half are not longer.
    pub median: u32,
    /// Nine tenths are not longer.
    pub p90: u32,
    /// 99 in a hundred are not longer.
    pub p99: u32,
    /// The longest.
    pub max: u32,
    /// Rows by length, in classes that double.
    pub histogram: Vec<LengthClass>,
}

/// Rows of about one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LengthClass {
    /// Least length in tokens.
    pub from: u32,
    /// Greatest length in tokens.
    pub to: u32,
    /// Rows of these lengths.
    pub rows: u64,
}

/// Reads a data set and works out its figures for a tokenizer and a config. Bad rows are left out.
///
/// Rows are encoded as a run does it, so examples, dropped and bad rows are those of a run; only how long cut rows are is
/// found out besides. `vocab_size` is the number of tokens that the model knows, where there is a model. `is_stopped` is
/// asked before every row.
///
/// # Errors
/// [`EngineError::Stopped`]; [`EngineError::InvalidData`] where the file is not of its format or damaged, [`EngineError::Io`] where it cannot be
/// read, or the temporary file for the tokens not be written.
pub fn measure(
    data: &DataFile,
    chat: &Chat,
    vocab_size: Option<usize>,
    config: &TrainingConfig,
    is_stopped: &(dyn Fn() -> bool + Sync),
) -> Result<TokenFigures, EngineError> {
    let failed = |error| EngineError::io("write", std::env::temp_dir(), error);
    let tokens = tempfile::NamedTempFile::new().map_err(failed)?;
    let ends = tempfile::tempfile().map_err(failed)?;
    let mut writer = TokenWriter::new(tokens.reopen().map_err(failed)?, ends);
    let mut counts = Counts::default();
    let encoder = RowEncoder {
        chat,
        train_on: config.train_on,
        max_length: config.max_length as usize,
        vocab_size: vocab_size.unwrap_or(usize::MAX),
    };
    for block in Blocks::open(data)? {
        let measured = |record: &Record| match is_stopped() {
            true => Err(EngineError::Stopped),
            false => Ok(measured(record, data.format, &encoder)),
        };
        let block = block?;
        let rows: Vec<_> =
            device::run(|| block.par_iter().map(measured).collect::<Result<_, _>>())?;
        for (record, row) in block.iter().zip(rows) {
            counts.take(record, row, &mut writer).map_err(failed)?;
        }
    }
    let written = writer.written();
    let header = Header {
        key: String::new(),
        report: DatasetReport::default(),
    };
    writer.finish(&header).map_err(failed)?;
    let file = tokens.reopen().map_err(failed)?;
    let examples = Examples::from(TokenFile::open(file).map_err(failed)?.0);
    let (sequences, steps_per_epoch) = steps(&examples, config);
    let share = |part: u64, whole: u64| {
        if whole == 0 {
            0.0
        } else {
            part as f64 / whole as f64
        }
    };
    Ok(TokenFigures {
        max_length: config.max_length,
        examples: written.rows,
        dropped_rows: counts.dropped_rows,
        unrenderable_rows: counts.unrenderable_rows,
        problems: counts.problems,
        truncated_rows: counts.truncated_rows,
        truncated_tokens: counts.truncated_tokens,
        lengths: lengths(&counts.lengths),
        tokens: written.input_tokens,
        trained_tokens: written.trained_tokens,
        masked_share: share(
            written.input_tokens - written.trained_tokens,
            written.input_tokens,
        ),
        packing: config.packing,
        sequences,
        packing_efficiency: share(
            written.input_tokens,
            sequences * u64::from(config.max_length),
        ),
        steps_per_epoch,
    })
}

/// Sequences and optimizer steps of an epoch.
fn steps(examples: &Examples, config: &TrainingConfig) -> (u64, u64) {
    if examples.is_empty() {
        return (0, 0);
    }
    let rows = (0..examples.len() as u32).collect();
    let order = Order::new(examples, rows, config);
    (order.epoch(0).count() as u64, order.steps_per_epoch())
}

#[derive(Debug, Default)]
struct Counts {
    dropped_rows: u64,
    unrenderable_rows: u64,
    problems: Vec<LineProblem>,
    truncated_rows: u64,
    truncated_tokens: u64,
    /// Rows by their length.
    lengths: BTreeMap<u32, u64>,
}

/// What a record comes to in a run, with the length of each example before it is cut; none where it is no row.
type MeasuredRow = Option<Result<Vec<(Example, usize)>, EngineError>>;

fn measured(record: &Record, format: DatasetFormat, encoder: &RowEncoder<'_>) -> MeasuredRow {
    let row = record.row().ok()?;
    if !row.is_trainable(encoder.train_on) {
        return Some(Ok(Vec::new()));
    }
    if let Row::Text(text) = &row
        && format == DatasetFormat::Text
    {
        let with_length = |example: Example| {
            let length = example.ids.len();
            (example, length)
        };
        let examples = encoder.encode_document(text);
        return Some(examples.map(|examples| examples.into_iter().map(with_length).collect()));
    }
    Some(encoder.encode(&row).map(|example| {
        let length = match example.truncated {
            true => whole_length(&row, encoder),
            false => example.ids.len(),
        };
        vec![(example, length)]
    }))
}

/// How long a row is that a run cuts: as far as lengths are measured, or half or a quarter as far and so on, where the
/// template does not render so much.
fn whole_length(row: &Row, encoder: &RowEncoder<'_>) -> usize {
    let mut reach = LONGEST_MEASURED;
    while reach > encoder.max_length {
        let longer = RowEncoder {
            max_length: reach,
            // Where the answers are has no part in the length.
            train_on: TrainOn::All,
            ..*encoder
        };
        match longer.encode(row) {
            Ok(example) => return example.ids.len(),
            Err(_) => reach /= 2,
        }
    }
    encoder.max_length + 1
}

impl Counts {
    fn take(
        &mut self,
        record: &Record,
        row: MeasuredRow,
        writer: &mut TokenWriter,
    ) -> std::io::Result<()> {
        const KEPT_PROBLEMS: usize = 20;
        match row {
            None => {}
            Some(Ok(examples)) => {
                let mut is_kept = false;
                for (example, length) in examples {
                    *self.lengths.entry(length as u32).or_default() += 1;
                    if example.truncated {
                        self.truncated_rows += 1;
                        self.truncated_tokens += (length - example.ids.len()) as u64;
                    }
                    is_kept |= writer.push(&example)?;
                }
                self.dropped_rows += u64::from(!is_kept);
            }
            Some(Err(error)) => {
                self.unrenderable_rows += 1;
                if self.problems.len() < KEPT_PROBLEMS {
                    self.problems.push(LineProblem::new(record.place, error));
                }
            }
        }
        Ok(())
    }
}

fn lengths(counted: &BTreeMap<u32, u64>) -> Option<Lengths> {
    let rows: u64 = counted.values().sum();
    let at = |share: f64| {
        let wanted = ((rows as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = counted.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        found.map_or(0, |(length, _)| *length)
    };
    let (min, max) = (*counted.first_key_value()?.0, *counted.last_key_value()?.0);
    let class = |power: u32| {
        let (from, to) = (1 << power, (1 << (power + 1)) - 1);
        let from = if power == 0 { 0 } else { from };
        LengthClass {
            from,
            to,
            rows: counted.range(from..=to).map(|(_, count)| count).sum(),
        }
    };
    let power = |length: u32| length.max(1).ilog2();
    Some(Lengths {
        min,
        median: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max,
        histogram: (power(min)..=power(max)).map(class).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use chrono::Local;

    use super::*;
    use crate::tokenizer::testing::bytes;

    fn figures(file: &str, format: DatasetFormat) -> TokenFigures {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFile {
            path: folder.path().join("data"),
            format,
            sha256: None,
        };
        std::fs::write(&data.path, file).unwrap();
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let config = TrainingConfig {
            max_length: 10,
            batch_size: 2,
            ..TrainingConfig::default()
        };
        measure(&data, &chat, Some(265), &config, &|| false).unwrap()
    }

    #[test]
    fn a_chat_of_very_many_turns_is_cut_as_a_run_does_it() {
        let round = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"}"#;
        let file = format!("{{\"messages\":[{}]}}\n", vec![round; 50_000].join(","));
        let figures = figures(&file, DatasetFormat::Jsonl);
        assert_eq!((figures.unrenderable_rows, figures.problems), (0, vec![]));
        assert_eq!((figures.truncated_rows, figures.dropped_rows), (1, 1));
        let lengths = figures.lengths.unwrap();
        assert!(lengths.max > 30_000, "{}", lengths.max);
    }

    #[test]
    fn a_stop_is_heeded_before_the_next_row() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataFile::by_name(folder.path().join("rows.jsonl"));
        std::fs::write(&data.path, "{\"text\":\"abc\"}\n".repeat(1000)).unwrap();
        let chat = Chat::new(bytes(), None, Local::now()).unwrap();
        let asked = AtomicUsize::new(0);
        let is_stopped = || asked.fetch_add(1, Ordering::Relaxed) >= 3;
        let measured = measure(&data, &chat, None, &TrainingConfig::default(), &is_stopped);
        assert!(matches!(measured, Err(EngineError::Stopped)));
        // Each thread that was at work asks once more.
        let most = 3 + device::run(rayon::current_num_threads);
        assert!((4..=most).contains(&asked.load(Ordering::Relaxed)));
    }

    #[test]
    fn lengths_truncation_masking_packing_and_steps_are_worked_out() {
        // With EOS: 4, 4, 9 and 21 tokens; a pair of 2 + 2 with its prompt masked.
        let file = "{\"text\":\"abc\"}\n{\"prompt\":\"ab\",\"completion\":\"c\"}\n{\"text\":\"12345678\"}\n{\"text\":\"12345678901234567890\"}\nbad\n{\"text\":\"\"}\n";
        let figures = figures(file, DatasetFormat::Jsonl);
        assert_eq!((figures.examples, figures.dropped_rows), (4, 1));
        assert_eq!((figures.truncated_rows, figures.truncated_tokens), (1, 11));
        let lengths = figures.lengths.unwrap();
        assert_eq!((lengths.min, lengths.median, lengths.max), (4, 4, 21));
        assert_eq!((lengths.p90, lengths.p99), (21, 21));
        let classes: Vec<_> = lengths
            .histogram
            .iter()
            .map(|class| (class.from, class.to, class.rows))
            .collect();
        assert_eq!(classes, [(4, 7, 2), (8, 15, 1), (16, 31, 1)]);
        // Inputs: 3 + 3 + 8 + 9; the pair's first target is the second letter of its prompt.
        assert_eq!((figures.tokens, figures.trained_tokens), (23, 22));
        assert!((figures.masked_share - 1.0 / 23.0).abs() < 1e-12);
        // 9, 8 and 3 + 3 of 10 places each.
        assert_eq!((figures.sequences, figures.steps_per_epoch), (3, 2));
        assert!((figures.packing_efficiency - 23.0 / 30.0).abs() < 1e-12);
    }

    #[test]
    fn g069_rows_that_training_drops_are_not_counted_as_examples() {
        let file = concat!(
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":" "}]}"#,
            "\n",
            r#"{"prompt":"a","completion":" "}"#,
            "\n",
            r#"{"text":"abc"}"#,
        );
        let figures = figures(file, DatasetFormat::Jsonl);
        assert_eq!((figures.examples, figures.dropped_rows), (1, 2));
    }

    #[test]
    fn documents_are_not_cut_and_nothing_at_all_gives_no_figures() {
        let text = figures("12345678901234567890", DatasetFormat::Text);
        assert_eq!((text.truncated_rows, text.examples), (0, 3));
        let nothing = figures("", DatasetFormat::Jsonl);
        assert_eq!(
            (nothing.sequences, nothing.steps_per_epoch, nothing.lengths),
            (0, 0, None)
        );
    }
}
