//! Golden values of transformers and PEFT for the engine's tests, from `tests/golden`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file or folder of the golden values.
pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(name)
}

/// What `meta.json` says.
pub(crate) fn meta() -> Value {
    json("meta.json")
}

/// The content of a JSON file.
pub(crate) fn json(name: &str) -> Value {
    let text =
        std::fs::read_to_string(path(name)).expect("the golden values are in the repository");
    serde_json::from_str(&text).expect("it is JSON")
}

/// The numbers of a JSON list.
pub(crate) fn numbers(list: &Value) -> Vec<f64> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|x| x.as_f64().expect("a number"))
        .collect()
}

/// Copies a golden model's folder, without its golden results, so that a test can change it.
pub(crate) fn copy_of_model(variant: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(path(variant).join(name), folder.path().join(name))
            .expect("the file is copied");
    }
    folder
}

/// A golden model's folder with a tokenizer for printable ASCII, space and line end, `<s>` and `</s>` around texts,
/// and no chat template.
pub(crate) fn model_with_tokenizer(variant: &str) -> tempfile::TempDir {
    let folder = copy_of_model(variant);
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(path("tokenizer").join(name), folder.path().join(name))
            .expect("the file is copied");
    }
    folder
}
