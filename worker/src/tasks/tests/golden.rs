//! The golden models of the engine's tests, as models on a worker's disk.

use std::fs;
use std::path::{Path, PathBuf};

/// A file or folder of the golden values.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden")
        .join(name)
}

/// A folder with a golden model, and a tokenizer for printable ASCII, space and line end.
pub fn model(variant: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    put_model(variant, folder.path());
    folder
}

/// Puts such a model into a folder.
pub fn put_model(variant: &str, folder: &Path) {
    for (from, name) in [
        (variant, "config.json"),
        (variant, "generation_config.json"),
        (variant, "model.safetensors"),
        ("tokenizer", "tokenizer.json"),
        ("tokenizer", "tokenizer_config.json"),
    ] {
        fs::copy(path(from).join(name), folder.join(name)).unwrap();
    }
}
