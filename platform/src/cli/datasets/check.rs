//! `trainyard datasets check`: the platform's row checks on a file at home.

use clap::Args;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use trainyard_shared::dataset::{RowChecker, RowReport};

use super::shapes_in_words;
use crate::cli::error::CliError;
use crate::cli::output::{Output, cell};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// Options of `datasets check`.
#[derive(Args)]
pub struct Options {
    /// The file: JSON lines.
    file: PathBuf,
    /// So many bad rows are no failure.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_bad_rows: u64,
}

/// Prints the report; fails where a job on this data would.
pub fn run(options: &Options, output: &Output) -> Result<ExitCode, CliError> {
    let report = check(options)?;
    let is_accepted = report.bad_rows <= options.max_bad_rows && report.trainable_rows() > 0;
    let mut shown = json!(report);
    shown["accepted"] = json!(is_accepted);
    output.result(&shown, report_in_words)?;
    Ok(if is_accepted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn check(options: &Options) -> Result<RowReport, CliError> {
    let failed = |source| CliError::io(options.file.display().to_string(), source);
    let mut file = File::open(&options.file).map_err(failed)?;
    let mut checker = RowChecker::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk).map_err(failed)? {
            0 => return Ok(checker.finish()),
            length => checker.feed(&chunk[..length]),
        }
    }
}

fn report_in_words(report: &Value) -> String {
    let mut words = format!(
        "good rows: {} ({})",
        cell(report, "/rows"),
        shapes_in_words(&report["row_shapes"])
    );
    match report["untrainable_rows"].as_u64() {
        None | Some(0) => {}
        Some(count) => words.push_str(&format!(
            "\nof these with nothing to train on, dropped in training: {count}"
        )),
    }
    let bad_rows = report["bad_rows"].as_u64().unwrap_or(0);
    let problems = report["problems"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if bad_rows > 0 {
        words.push_str(&format!("\nbad rows: {bad_rows}"));
    }
    for problem in problems {
        words.push_str(&format!(
            "\n  line {}: {}",
            cell(problem, "/line"),
            cell(problem, "/message")
        ));
    }
    let all = bad_rows + report["untrainable_rows"].as_u64().unwrap_or(0);
    if all > problems.len() as u64 {
        words.push_str(&format!("\n  and {} more", all - problems.len() as u64));
    }
    if report["rows"].as_u64() == report["untrainable_rows"].as_u64() {
        words.push_str("\nthere is nothing to train on");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_on(content: &[u8]) -> RowReport {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("data.jsonl");
        std::fs::write(&file, content).unwrap();
        check(&Options {
            file,
            max_bad_rows: 0,
        })
        .unwrap()
    }

    #[test]
    fn g064_a_bad_line_is_told_with_its_number() {
        let report = report_on(b"{\"text\":\"a\"}\n\n{\"text\":\"\xc3\x28\"}\n");
        let told = report_in_words(&json!(report));
        assert_eq!(
            told,
            "good rows: 1 (1 text)\nbad rows: 1\n  line 3: invalid UTF-8 at byte 10"
        );
    }

    #[test]
    fn g069_a_file_with_nothing_to_train_on_is_told_so() {
        let report = report_on(b"{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n");
        assert_eq!(report.trainable_rows(), 0);
        assert!(report_in_words(&json!(report)).ends_with("there is nothing to train on"));
    }
}
