//! `trainyard datasets check`: a file's rows checked at home, as the platform and the worker would read them.

mod tokens;

use clap::Args;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trainyard_datasets::{DatasetError, Duplicates, Record, Records, RowReport, RowTally};
use trainyard_shared::dataset::DatasetFormat;

use super::{format_of, shapes_in_words};
use crate::cli::error::CliError;
use crate::cli::output::{Output, cell};

/// A file whose first records are all bad, so many of them, is taken for one of another kind.
const ALL_BAD: u64 = 20;
/// So many of its bytes are looked at to tell what it is.
const LOOKED_AT: u64 = 4096;

/// Options of `datasets check`.
#[derive(Args)]
pub struct Options {
    /// The file.
    file: PathBuf,
    /// The file's format: jsonl, json, csv, tsv, parquet or text; else the end of its name tells it, else it is jsonl.
    #[arg(long)]
    format: Option<DatasetFormat>,
    /// So many bad rows are no failure.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_bad_rows: u64,
    #[command(flatten)]
    tokens: tokens::TokenOptions,
}

/// Prints the report; fails where a job on this data would.
pub fn run(options: &Options, output: &Output) -> Result<ExitCode, CliError> {
    let format = format_of(&options.file, options.format);
    let (report, duplicates) = check(options, format)?;
    let mut is_accepted = report.damage.is_none()
        && report.bad_rows <= options.max_bad_rows
        && report.trainable_rows() > 0;
    let mut shown = json!(report);
    shown["format"] = json!(format);
    shown["duplicate_rows"] = json!(duplicates.count());
    shown["duplicates_estimated"] = json!(duplicates.is_estimate());
    if report.damage.is_none()
        && let Some(figures) = options.tokens.measure(&options.file, format)?
    {
        let unusable = report.bad_rows + figures.unrenderable_rows;
        is_accepted &= unusable <= options.max_bad_rows && figures.examples > 0;
        shown["tokens"] = json!(figures);
    }
    shown["accepted"] = json!(is_accepted);
    output.result(&shown, report_in_words)?;
    Ok(if is_accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn check(options: &Options, format: DatasetFormat) -> Result<(RowReport, Duplicates), CliError> {
    let (mut tally, mut duplicates) = (RowTally::new(), Duplicates::new());
    let (mut good, mut bad) = (0_u64, 0_u64);
    let mut count = |record: Result<Record, DatasetError>| -> Result<_, DatasetError> {
        match tally.record(&record?) {
            Some(row) => {
                duplicates.record(&row);
                good += 1;
            }
            None => bad += 1,
        }
        Ok(match (good, bad) {
            (0, ALL_BAD) if format != DatasetFormat::Text => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    };
    let read = Records::open(&options.file, format).and_then(|records| {
        for record in records {
            if count(record)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    });
    let file = &options.file;
    let failed = |source| CliError::io(file.display().to_string(), source);
    match read {
        Ok(ControlFlow::Continue(())) => {}
        Ok(ControlFlow::Break(())) => {
            let report = tally.finish();
            let first = report.problems.first().map(ToString::to_string);
            return Err(CliError::Input(format!(
                "{}: this is not {format}: none of the first {ALL_BAD} rows can be read ({}); {}",
                file.display(),
                first.unwrap_or_default(),
                what_it_is(file).map_err(failed)?
            )));
        }
        Err(DatasetError::Io(source)) => return Err(failed(source)),
        Err(damage) => tally.damage(&damage),
    }
    Ok((tally.finish(), duplicates))
}

/// What a file that is not of its format may be, by its first bytes.
fn what_it_is(file: &Path) -> io::Result<&'static str> {
    let mut start = Vec::new();
    File::open(file)?.take(LOOKED_AT).read_to_end(&mut start)?;
    Ok(match start {
        start if start.starts_with(b"GGUF") => "it is a GGUF file, a model",
        start if start.contains(&0) => "it is no text",
        _ => "if it is plain text, say --format text",
    })
}

fn report_in_words(report: &Value) -> String {
    let count = |name: &str| report[name].as_u64().unwrap_or(0);
    let mut words = format!(
        "format: {}\ngood rows: {} ({})",
        cell(report, "/format"),
        cell(report, "/rows"),
        shapes_in_words(&report["row_shapes"])
    );
    if count("duplicate_rows") > 0 {
        let about = match report["duplicates_estimated"].as_bool() {
            Some(true) => "about ",
            _ => "",
        };
        words.push_str(&format!(
            "\nof these the same as an earlier one: {about}{}",
            count("duplicate_rows")
        ));
    }
    // The bad ones stand before those with nothing to train on.
    let problems = report["problems"].as_array().map(Vec::as_slice);
    let problems = problems.unwrap_or_default();
    let bad =
        usize::try_from(count("bad_rows")).map_or(problems.len(), |bad| bad.min(problems.len()));
    let (bad, untrainable) = problems.split_at(bad);
    for (heading, count, problems) in [
        (
            "of these with nothing to train on, dropped in training",
            count("untrainable_rows"),
            untrainable,
        ),
        ("bad rows", count("bad_rows"), bad),
    ] {
        if count > 0 {
            words.push_str(&format!("\n{heading}: {count}"));
            words.push_str(&problems_in_words(problems));
            let untold = count - problems.len() as u64;
            if untold > 0 {
                words.push_str(&format!("\n  and {untold} more"));
            }
        }
    }
    if let Some(damage) = report.get("damage") {
        words.push_str(&format!(
            "\nthe file cannot be read to its end:\n  {}: {}",
            cell(damage, "/place"),
            cell(damage, "/message")
        ));
    }
    if let Some(figures) = report.get("tokens") {
        words.push_str(&tokens::in_words(figures));
    }
    if count("rows") == count("untrainable_rows") {
        words.push_str("\nthere is nothing to train on");
    }
    words
}

/// Where the problems are and what they are, one a line.
pub(super) fn problems_in_words(problems: &[Value]) -> String {
    problems
        .iter()
        .map(|problem| {
            format!(
                "\n  {}: {}",
                cell(problem, "/place"),
                cell(problem, "/message")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(content: &[u8], name: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        let options = Options {
            file,
            format: None,
            max_bad_rows: 0,
            tokens: tokens::TokenOptions::default(),
        };
        let format = format_of(&options.file, None);
        let (report, duplicates) = check(&options, format).unwrap();
        let mut shown = json!(report);
        shown["format"] = json!(format);
        shown["duplicate_rows"] = json!(duplicates.count());
        report_in_words(&shown)
    }

    #[test]
    fn g064_a_bad_line_is_told_with_its_number() {
        assert_eq!(
            told(
                b"{\"text\":\"a\"}\n\n{\"text\":\"\xc3\x28\"}\n",
                "data.jsonl"
            ),
            "format: jsonl\ngood rows: 1 (1 text)\nbad rows: 1\n  line 3: invalid UTF-8 at byte 10"
        );
    }

    #[test]
    fn bad_rows_and_rows_with_nothing_to_train_on_stand_under_their_own_headings() {
        let user_only = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
        let told = told(
            format!("{{\"text\":\"a\"}}\n{user_only}\nno row\n").as_bytes(),
            "data",
        );
        let lines: Vec<_> = told.lines().skip(2).collect();
        assert_eq!(
            lines[0],
            "of these with nothing to train on, dropped in training: 1"
        );
        assert!(
            lines[1].starts_with("  line 2: nothing to train on"),
            "{told}"
        );
        assert_eq!(lines[2], "bad rows: 1");
        assert!(lines[3].starts_with("  line 3: not valid JSON"), "{told}");
    }

    #[test]
    fn a_file_of_another_kind_is_refused_with_what_it_may_be() {
        let book = "It was a dark and stormy night.\n".repeat(1000);
        let mut model = b"GGUF\x03\0\0\0".to_vec();
        model.extend(b"\n\xff\xff".repeat(1000));
        for (content, name, expected) in [
            (book.as_bytes(), "book.md", "say --format text"),
            (model.as_slice(), "model.gguf", "it is a GGUF file, a model"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(name);
            std::fs::write(&file, content).unwrap();
            let options = Options {
                file,
                format: None,
                max_bad_rows: 5000,
                tokens: tokens::TokenOptions::default(),
            };
            let refused = check(&options, DatasetFormat::Jsonl).unwrap_err();
            let told = refused.to_string();
            assert!(
                told.contains("this is not jsonl") && told.ends_with(expected),
                "{told}"
            );
        }
    }

    #[test]
    fn g069_a_file_with_nothing_to_train_on_is_told_so() {
        let told = told(
            b"{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n",
            "data",
        );
        assert!(told.ends_with("there is nothing to train on"), "{told}");
    }

    #[test]
    fn the_name_tells_the_format_and_duplicates_and_damage_are_told() {
        assert_eq!(
            told(b"text\na\nb\na\n", "data.csv"),
            "format: csv\ngood rows: 3 (3 text)\nof these the same as an earlier one: 1"
        );
        let damaged = told(b"[{\"text\":\"a\"},]", "data.json");
        assert!(
            damaged.ends_with("the file cannot be read to its end:\n  line 1: after element 1: a comma stands before the array's `]`"),
            "{damaged}"
        );
    }
}
