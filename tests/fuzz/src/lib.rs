//! Fuzz targets: each is a function that is given any bytes and must come back, without a panic and in memory that
//! the bytes' length bounds, whatever sizes they claim. Where more than that must hold (what is written can be read
//! again, pieces are as good as the whole), it is asserted.

use std::cell::OnceCell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Local};
use serde_json::Value;
use tempfile::TempDir;
use trainyard_aggregation::{CheckError, GlobalAdapter, check};
use trainyard_datasets::{ReadAt, Records, RowReport, report_on};
use trainyard_engine::adapter::{self, AdapterConfig};
use trainyard_engine::chat_template::ChatTemplate;
use trainyard_engine::export::{FloatType, PlannedTensor, safetensors_header};
use trainyard_engine::gguf::{GgufModel, read_structure};
use trainyard_engine::model::{Architecture, ModelConfig, RopeScaling};
use trainyard_engine::tokenizer::SpecialTokens;
use trainyard_engine::weights::SafetensorsFile;
use trainyard_shared::dataset::{DatasetFormat, Role, Turn, parse_row};
use trainyard_shared::json;
use trainyard_shared::message::{FromDashboard, FromWorker, ToDashboard, ToWorker};
use trainyard_shared::training::TrainingConfig;

/// A target.
pub struct Target {
    /// Its name, which is that of its corpus too.
    pub name: &'static str,
    /// What is given the bytes.
    pub run: fn(&[u8]),
    /// So much memory may be taken whatever the input.
    pub base_bytes: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("message", message),
    target("training_config", training_config),
    target("dataset_rows", dataset_rows),
    Target {
        // Pages and dictionaries that are held at once.
        base_bytes: 256 * MIB,
        ..target("parquet", parquet)
    },
    target("safetensors", safetensors),
    target("adapter_upload", adapter_upload),
    target("gguf", gguf),
    target("adapter_config", adapter_config),
    Target {
        // The steps that a rendering is granted pay for 320 MB of text: a row may have 64 MiB.
        base_bytes: 384 * MIB,
        ..target("chat_template", chat_template)
    },
];

const MIB: usize = 1024 * 1024;

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target {
        name,
        run,
        base_bytes: 32 * MIB,
    }
}

/// Text frames of a WebSocket, read as messages of every direction.
pub fn message(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    macro_rules! check {
        ($($direction:ident),+) => {$(
            match $direction::decode(text) {
                Ok(message) => {
                    let again = $direction::decode(&message.encode()).map(|again| again.to_value());
                    // As JSON, since a metric that is not a number does not equal itself.
                    assert_eq!(again, Ok(message.to_value()), "what is written can be read");
                }
                Err(error) => {
                    let answer = ToWorker::from(error.to_error()).encode();
                    assert!(ToWorker::decode(&answer).is_ok(), "the answer can be read: {answer}");
                }
            }
        )+};
    }
    check!(FromWorker, ToWorker, FromDashboard, ToDashboard);
}

/// A job's training config.
pub fn training_config(input: &[u8]) {
    let Some(value) = parsed(input) else { return };
    if let Ok(config) = TrainingConfig::parse(&value) {
        let again = TrainingConfig::parse(&Value::Object(config.to_map()));
        assert_eq!(again, Ok(config), "what is written can be read");
    }
}

fn parsed(input: &[u8]) -> Option<Value> {
    json::parse(std::str::from_utf8(input).ok()?).ok()
}

/// A data set in any format that is read as a stream. The first byte says in which, and in how large pieces it comes.
pub fn dataset_rows(input: &[u8]) {
    let Some((piece, file)) = input.split_first() else {
        return;
    };
    let formats = DatasetFormat::ALL.map(|format| match format {
        DatasetFormat::Parquet => DatasetFormat::Jsonl,
        other => other,
    });
    let format = formats[usize::from(*piece) % formats.len()];
    let report = |piece_bytes| -> RowReport {
        let pieces = Pieces {
            bytes: file.to_vec(),
            at: 0,
            piece_bytes,
        };
        report_on(Records::stream(Box::new(pieces), format)).expect("memory can be read")
    };
    assert_eq!(
        report(file.len().max(1)),
        report(usize::from(*piece) + 1),
        "pieces are as good as the whole"
    );
    // Whether a single row is good, the report does not tell.
    let _ = parse_row(file);
}

/// Bytes that come in pieces.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    piece_bytes: usize,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = &self.bytes[self.at..];
        let count = left.len().min(into.len()).min(self.piece_bytes);
        into[..count].copy_from_slice(&left[..count]);
        self.at += count;
        Ok(count)
    }
}

/// A Parquet file.
pub fn parquet(input: &[u8]) {
    let report = report_on(Records::parquet(Arc::new(Memory(input.to_vec()))));
    report.expect("memory can be read");
}

/// Bytes that are read at any place.
struct Memory(Vec<u8>);

impl ReadAt for Memory {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let found = self.0.get(from..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A safetensors file.
pub fn safetensors(input: &[u8]) {
    with_file("model.safetensors", input, |path| {
        let Ok(file) = SafetensorsFile::open(path) else {
            return;
        };
        let mut bytes = 0;
        for name in file.names() {
            let shape = file.shape(name).expect("a tensor that is named is there");
            if let Ok(values) = file.tensor(name) {
                assert_eq!(values.len(), shape.iter().product::<usize>());
                bytes += values.len() * 2;
            }
        }
        assert!(bytes <= input.len(), "no value comes from nowhere");
    });
}

/// An adapter that a participant of a federated round uploads, beside a small global one.
pub fn adapter_upload(input: &[u8]) {
    thread_local! {
        static GLOBAL: (TempDir, GlobalAdapter) = global_adapter();
    }
    with_file("upload.safetensors", input, |path| {
        let checked = GLOBAL.with(|(_, global)| check(path, global, None));
        match checked {
            Ok(checked) => {
                assert!(checked.delta_norm.is_finite());
                let file = SafetensorsFile::open(path).expect("what was checked can be opened");
                for (name, values) in [("a", 6), ("b", 3)] {
                    let tensor = file.tensor(name).expect("what was checked is there");
                    assert_eq!(tensor.len(), values);
                    assert!(
                        tensor.iter().all(|x| x.is_finite()),
                        "what was checked is finite"
                    );
                }
            }
            Err(CheckError::Refused(refusal)) => assert!(!refusal.to_string().is_empty()),
            Err(CheckError::Failed(error)) => panic!("the file can be read: {error}"),
        }
    });
}

/// An adapter of two tensors, in a folder that must stay as long as it.
fn global_adapter() -> (TempDir, GlobalAdapter) {
    let tensor = |name: &str, shape: &[usize], float_type| PlannedTensor {
        name: name.to_owned(),
        shape: shape.to_vec(),
        float_type,
    };
    let tensors = [
        tensor("a", &[2, 3], FloatType::F32),
        tensor("b", &[3], FloatType::F16),
    ];
    let mut file = safetensors_header(&tensors);
    file.extend([0; 6 * 4 + 3 * 2]);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("global.safetensors");
    write(&path, &file);
    let global = GlobalAdapter::open(&path).expect("a sound adapter can be opened");
    (folder, global)
}

/// A GGUF file: its structure, and the model, tokenizer and weights in it.
pub fn gguf(input: &[u8]) {
    let Ok(structure) = read_structure(input) else {
        return;
    };
    for tensor in structure.tensors.values() {
        assert!(
            tensor
                .shape
                .iter()
                .try_fold(1_usize, |all, side| all.checked_mul(*side))
                .is_some(),
            "sizes are checked before they are used"
        );
    }
    with_file("model.gguf", input, |path| {
        let Ok(model) = GgufModel::open(path) else {
            return;
        };
        let _ = model.tensor("model.embed_tokens.weight");
        let _ = model.tensor("model.layers.0.self_attn.q_proj.weight");
        let _ = model.tokenizer();
        model.stop_token_ids();
        model.chat_template();
    });
}

/// An `adapter_config.json`, also beside weights that hold nothing.
pub fn adapter_config(input: &[u8]) {
    let Some(value) = parsed(input) else { return };
    let model = tiny_model();
    if let Ok(config) = AdapterConfig::from_json(&value)
        && let Ok(written) = config.to_json(&model)
    {
        assert!(
            AdapterConfig::from_json(&written).is_ok(),
            "what is written can be read: {written}"
        );
    }
    with_file("adapter_config.json", input, |path| {
        let folder = path.parent().expect("a file lies in a folder");
        let empty = [&2_u64.to_le_bytes()[..], b"{}"].concat();
        write(&folder.join("adapter_model.safetensors"), &empty);
        let loaded = adapter::load(folder, &model);
        assert!(loaded.is_err(), "an adapter without weights is none");
    });
}

/// A `tokenizer_config.json`: its special tokens, and its chat template on a short chat.
pub fn chat_template(input: &[u8]) {
    let Some(config) = parsed(input) else { return };
    let special = SpecialTokens::from_json(&config);
    let Some(source) = config["chat_template"].as_str() else {
        return;
    };
    let now = DateTime::<Local>::from(DateTime::UNIX_EPOCH).fixed_offset();
    let Ok(template) = ChatTemplate::new(source, special, now) else {
        return;
    };
    let turn = |role, content: &str| Turn {
        role,
        content: content.to_owned(),
    };
    let turns = [
        turn(Role::System, "Speak as a yard foreman."),
        turn(Role::User, "load car 1 {{ bos_token }}"),
        turn(Role::Assistant, "aye aye"),
    ];
    let _ = template.render(&turns, true);
    let _ = template.render(&turns[1..], false);
}

fn tiny_model() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        vocab_size: 32,
        hidden_size: 8,
        intermediate_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 4,
        max_position_embeddings: 64,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: RopeScaling::Default,
        tie_word_embeddings: true,
        biased: Vec::new(),
        qk_norm: false,
        sliding_window: None,
    }
}

/// Puts the input into a file of that name, for readers that map theirs.
fn with_file(name: &str, input: &[u8], read: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| {
        let folder =
            folder.get_or_init(|| tempfile::tempdir().expect("a temporary folder can be made"));
        let path: PathBuf = folder.path().join(name);
        write(&path, input);
        read(&path);
    });
}

fn write(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("a temporary file can be written");
}
