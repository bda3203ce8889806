//! `trainyard datasets check`: a file's rows checked at home, as the platform and the worker would read them.

mod tokens;

use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use trainyard_datasets::{DatasetError, Duplicates, Records, RowReport, RowTally};
use trainyard_shared::dataset::DatasetFormat;

use super::{format_of, shapes_in_words};
use crate::cli::error::CliError;
use crate::cli::output::{Output, cell};

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
    let read = Records::open(&options.file, format).and_then(|mut records| {
        records.try_for_each(|record| {
            if let Some(row) = tally.record(&record?) {
                duplicates.record(&row);
            }
            Ok(())
        })
    });
    match read {
        Ok(()) => {}
        Err(DatasetError::Io(source)) => {
            return Err(CliError::io(options.file.display().to_string(), source));
        }
        Err(damage) => tally.damage(&damage),
    }
    Ok((tally.finish(), duplicates))
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
    if count("untrainable_rows") > 0 {
        words.push_str(&format!(
            "\nof these with nothing to train on, dropped in training: {}",
            count("untrainable_rows")
        ));
    }
    if count("bad_rows") > 0 {
        words.push_str(&format!("\nbad rows: {}", count("bad_rows")));
    }
    words.push_str(&problems_in_words(&report["problems"]));
    let told = report["problems"].as_array().map_or(0, Vec::len) as u64;
    let all = count("bad_rows") + count("untrainable_rows");
    if all > told {
        words.push_str(&format!("\n  and {} more", all - told));
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

fn problems_in_words(problems: &Value) -> String {
    let problems = problems.as_array().into_iter().flatten();
    problems
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
