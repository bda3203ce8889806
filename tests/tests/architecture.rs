//! What ARCHITECTURE.md says of the repository is true: the files it names are there, its promises have their tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies in the repository")
        .to_owned()
}

fn page() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page is there")
}

/// All text between back-ticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The Rust and Python sources of all crates, as one text.
fn sources() -> String {
    let mut text = String::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder can be read") {
            let path = entry.expect("an entry can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_made = name == "target" || path == root().join("data");
            if path.is_dir() && !name.starts_with('.') && !is_made {
                folders.push(path);
            } else if name.ends_with(".rs") || name.ends_with(".py") {
                text += &std::fs::read_to_string(&path).expect("a source is text");
            }
        }
    }
    text
}

#[test]
fn every_file_and_folder_that_the_page_names_is_there() {
    let missing: Vec<_> = quoted(&page())
        .into_iter()
        .filter(|name| name.contains('/') && !name.contains([' ', '{', '…', '?']))
        .filter(|name| !name.starts_with('/'))
        .filter(|name| !root().join(name).exists())
        .map(str::to_owned)
        .collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn every_promise_has_a_test_that_exists_and_names_it() {
    let page = page();
    let sources = sources();
    let mut promises = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| P")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let id = cells[1].split(' ').next().expect("a cell has a word");
        promises.insert(id.to_owned());
        let tests = quoted(cells[3]);
        assert!(!tests.is_empty(), "{id} names no test");
        for test in tests {
            let at = sources
                .find(&format!("fn {test}("))
                .unwrap_or_else(|| panic!("{id}: no test {test}"));
            let above = &sources[..at];
            let start = above.rfind("\n\n").unwrap_or(0);
            assert!(
                above[start..].contains(&format!("Promise {id}")),
                "{test} does not name {id}"
            );
        }
    }
    assert!(promises.len() >= 10, "{promises:?}");
}

/// Promise P8.
#[test]
fn engine_has_no_way_to_the_network() {
    let mut folders = vec![root().join("worker/engine/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("a source is text");
            for way in [
                "std::net",
                "reqwest",
                "tokio",
                "tungstenite",
                "trainyard_worker",
            ] {
                assert!(!source.contains(way), "{} uses {way}", path.display());
            }
        }
    }
}
