//! The messages against files: the source documents' examples as they stand (`examples/`) and one full
//! message of each direction and type (`golden/<direction>/<type>.json`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use chrono::DateTime;
use serde_json::Value;
use trainyard_shared::message::{FromDashboard, FromWorker, ToDashboard, ToWorker};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// Name without `.json` and content of every file in the folder.
fn json_files(folder: &Path) -> Vec<(String, String)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

/// For each direction that has this type: the message read and written again.
fn through_our_types(kind: &str, text: &str) -> Vec<(&'static str, Value)> {
    let mut results = Vec::new();
    if FromWorker::TYPES.contains(&kind) {
        results.push(("from_worker", FromWorker::decode(text).unwrap().to_value()));
    }
    if ToWorker::TYPES.contains(&kind) {
        results.push(("to_worker", ToWorker::decode(text).unwrap().to_value()));
    }
    if FromDashboard::TYPES.contains(&kind) {
        results.push((
            "from_dashboard",
            FromDashboard::decode(text).unwrap().to_value(),
        ));
    }
    if ToDashboard::TYPES.contains(&kind) {
        results.push((
            "to_dashboard",
            ToDashboard::decode(text).unwrap().to_value(),
        ));
    }
    results
}

#[test]
fn every_example_of_the_source_documents_round_trips_as_it_stands() {
    let examples = json_files(&folder("examples"));
    assert_eq!(examples.len(), 23);
    for (kind, text) in examples {
        let example: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(example["type"], kind.as_str());
        let results = through_our_types(&kind, &text);
        assert!(!results.is_empty(), "no direction knows `{kind}`");
        for (direction, written) in results {
            assert_eq!(written, example, "{kind} in {direction}");
        }
    }
}

#[test]
fn every_message_has_a_golden_file_and_round_trips_with_all_its_fields() {
    for (direction, types) in [
        ("from_worker", FromWorker::TYPES),
        ("to_worker", ToWorker::TYPES),
        ("from_dashboard", FromDashboard::TYPES),
        ("to_dashboard", ToDashboard::TYPES),
    ] {
        let files = json_files(&folder("golden").join(direction));
        let names: BTreeSet<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            types.iter().copied().collect(),
            "golden files of {direction}"
        );
        for (kind, text) in &files {
            let golden: Value = serde_json::from_str(text).unwrap();
            let written = through_our_types(kind, text)
                .into_iter()
                .find(|(name, _)| *name == direction);
            assert_eq!(written, Some((direction, golden)), "{kind} in {direction}");
        }
    }
}

#[test]
fn unknown_fields_are_ignored_at_every_level() {
    for (kind, text) in json_files(&folder("examples")) {
        let example: Value = serde_json::from_str(&text).unwrap();
        let mut widened = example.clone();
        widened["some_new_field"] = serde_json::json!({"deep": [1, null]});
        if widened["data"].is_object() {
            widened["data"]["some_new_field"] = Value::from("x");
        }
        for (direction, written) in through_our_types(&kind, &widened.to_string()) {
            assert_eq!(written, example, "{kind} in {direction}");
        }
    }
}

#[test]
fn a_frame_begins_with_its_type_and_ends_with_the_time_of_sending() {
    let text = fs::read_to_string(folder("examples").join("heartbeat.json")).unwrap();
    let now = DateTime::from_timestamp_millis(1_773_153_000_250).unwrap();
    assert_eq!(
        FromWorker::decode(&text).unwrap().encode_at(now),
        r#"{"type":"heartbeat","worker_id":"abc12345","status":"idle","timestamp":"2026-03-10T14:30:00.250Z"}"#
    );
}
