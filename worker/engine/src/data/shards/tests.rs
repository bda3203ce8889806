use std::path::{Path, PathBuf};

use chrono::Local;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use trainyard_shared::coordinator::Mode;
use trainyard_shared::dataset::DatasetFormat;

use super::super::{DataFile, Examples};
use super::*;
use crate::EngineError;
use crate::chat_template::Chat;
use crate::files;
use crate::model::IGNORE;
use crate::tokenizer::testing::bytes;
use crate::weights::SafetensorsFile;

const VOCABULARY: usize = 265;

fn pack_file(
    content: &str,
    format: DatasetFormat,
    mode: Mode,
    shards: u32,
    folder: &Path,
) -> Result<Packed, EngineError> {
    let dataset = DataFile {
        path: folder.join("rows"),
        format,
        sha256: None,
    };
    std::fs::write(&dataset.path, content).unwrap();
    let packing = Packing {
        dataset: &dataset,
        max_bad_rows: 0,
        chat: &Chat::new(bytes(), None, Local::now()).unwrap(),
        vocab_size: VOCABULARY,
        mode,
        shards,
    };
    packing.write(&folder.join("shards"), &|| false)
}

fn row(path: &Path, name: &str) -> Option<Vec<i32>> {
    let file = SafetensorsFile::open(path).unwrap();
    let bytes = file.int32_row(name).unwrap()?;
    let numbers = bytes
        .chunks_exact(4)
        .map(|number| i32::from_le_bytes(number.try_into().unwrap()));
    Some(numbers.collect())
}

fn chats(count: usize) -> String {
    (0..count)
        .map(|i| {
            format!(
                "{{\"messages\":[{{\"role\":\"user\",\"content\":\"q{i}\"}},{{\"role\":\"assistant\",\"content\":\"answer {i}\"}}]}}\n"
            )
        })
        .collect()
}

fn written(tensors: &[(&str, Dtype, &[i32])]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shard");
    let views = tensors.iter().map(|(name, dtype, numbers)| {
        let shape = vec![numbers.len()];
        (
            *name,
            TensorView::new(*dtype, shape, bytemuck::cast_slice(numbers)).unwrap(),
        )
    });
    serialize_to_file(views, None, &path).unwrap();
    (folder, path)
}

fn refusal(tensors: &[(&str, Dtype, &[i32])]) -> String {
    let (_folder, path) = written(tensors);
    Shard::open(&path, VOCABULARY).unwrap_err().to_string()
}

fn windows(ids: &[i32], labels: Option<&[i32]>, length: u32) -> Examples {
    let mut tensors = vec![("ids", Dtype::I32, ids)];
    tensors.extend(labels.map(|labels| ("etiket", Dtype::I32, labels)));
    let (_folder, path) = written(&tensors);
    Shard::open(&path, VOCABULARY).unwrap().windows(length)
}

#[test]
fn raw_text_is_one_sequence_that_is_cut_into_equal_parts() {
    let folder = tempfile::tempdir().unwrap();
    let text = "first document\n\nsecond\n\nthird one\n";
    let packed = pack_file(text, DatasetFormat::Text, Mode::Cpt, 3, folder.path()).unwrap();
    let mut joined = Vec::new();
    for shard in &packed.shards {
        let path = folder.path().join("shards").join(&shard.file);
        let (size_bytes, sha256) = files::digest(&path).unwrap();
        assert_eq!((shard.size_bytes, &shard.sha256), (size_bytes, &sha256));
        let ids = row(&path, "ids").unwrap();
        assert_eq!(row(&path, "etiket"), None, "every token is learned");
        assert_eq!(
            (shard.tokens, shard.learned_tokens),
            (ids.len() as u64, ids.len() as u64 - 1)
        );
        let opened = Shard::open(&path, VOCABULARY).unwrap();
        assert_eq!(
            (opened.tokens(), opened.learned_tokens()),
            (shard.tokens, shard.learned_tokens)
        );
        joined.extend(ids);
    }
    let tokenizer = bytes();
    let mut expected = Vec::new();
    for document in ["first document", "second", "third one"] {
        let tokens = tokenizer.encode_text(document).unwrap();
        expected.extend(tokens.iter().map(|token| token.id as i32));
        expected.extend(tokenizer.eos().map(|id| id as i32));
    }
    assert_eq!(joined, expected);
    assert_eq!(packed.tokens, expected.len() as u64);
    let lengths = packed.shards.iter().map(|shard| shard.tokens);
    assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
    let manifest = std::fs::read_to_string(folder.path().join("shards/shards.json")).unwrap();
    assert_eq!(serde_json::from_str::<Packed>(&manifest).unwrap(), packed);
    let entries = std::fs::read_dir(folder.path().join("shards")).unwrap();
    assert_eq!(entries.count(), 4, "nothing is left aside");
}

#[test]
fn chats_are_dealt_out_whole_and_only_answers_are_learned() {
    let folder = tempfile::tempdir().unwrap();
    let packed = pack_file(&chats(5), DatasetFormat::Jsonl, Mode::Sft, 2, folder.path()).unwrap();
    let tokenizer = bytes();
    let text = |ids: &[i32]| {
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        tokenizer.decode(&ids).unwrap()
    };
    for (index, shard) in packed.shards.iter().enumerate() {
        let path = folder.path().join("shards").join(&shard.file);
        let (ids, labels) = (row(&path, "ids").unwrap(), row(&path, "etiket").unwrap());
        let answers: Vec<i32> = labels
            .into_iter()
            .filter(|label| *label != IGNORE)
            .collect();
        assert_eq!(answers.len() as u64, shard.learned_tokens);
        for i in 0..5 {
            let is_mine = i % 2 == index;
            assert_eq!(text(&ids).contains(&format!("q{i}")), is_mine);
            assert_eq!(text(&answers).contains(&format!("answer {i}")), is_mine);
        }
        assert!(!text(&answers).contains('q'));
    }
}

#[test]
fn a_data_set_that_is_too_small_for_its_shards_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (content, format, mode) in [
        (chats(2), DatasetFormat::Jsonl, Mode::Sft),
        ("ab".to_owned(), DatasetFormat::Text, Mode::Cpt),
    ] {
        let error = pack_file(&content, format, mode, 9, folder.path()).unwrap_err();
        assert!(
            error.to_string().contains("too few for 9 shards"),
            "{error}"
        );
    }
    let text = "{\"text\":\"no chat\"}\n";
    let error = pack_file(text, DatasetFormat::Jsonl, Mode::Sft, 1, folder.path()).unwrap_err();
    assert!(error.to_string().contains("no trainable tokens"), "{error}");
    let none = pack_file("ab", DatasetFormat::Text, Mode::Cpt, 0, folder.path()).unwrap_err();
    assert!(none.to_string().starts_with("shards:"), "{none}");
}

#[test]
fn a_stopped_packing_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = DataFile::by_name(folder.path().join("rows.jsonl"));
    std::fs::write(&dataset.path, chats(3)).unwrap();
    let packing = Packing {
        dataset: &dataset,
        max_bad_rows: 0,
        chat: &Chat::new(bytes(), None, Local::now()).unwrap(),
        vocab_size: VOCABULARY,
        mode: Mode::Sft,
        shards: 1,
    };
    let stopped = packing.write(&folder.path().join("shards"), &|| true);
    assert!(matches!(stopped, Err(EngineError::Stopped)));
}

#[test]
fn windows_predict_every_token_but_the_first_once() {
    let examples = windows(&[10, 11, 12, 13, 14, 15, 16, 17], None, 3);
    assert_eq!(examples.len(), 3);
    let batch = examples.batch(&[0, 1, 2]);
    assert_eq!(batch.ids, [10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(batch.targets, [11, 12, 13, 14, 15, 16, 17]);
    assert_eq!(batch.offsets, [0, 3, 6, 7]);
    assert_eq!(examples.input_length(2), 1);
    assert_eq!(examples.trained_tokens(), 7);
}

#[test]
fn windows_end_with_the_last_token_to_be_learned_and_those_without_one_are_left_out() {
    let ids = [10, 11, 12, 13, 14, 15, 16, 17, 18];
    let labels = [
        IGNORE, IGNORE, 12, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, 18,
    ];
    let examples = windows(&ids, Some(&labels), 3);
    let batch = examples.batch(&[0, 1]);
    assert_eq!(batch.ids, [10, 11, 16, 17]);
    assert_eq!(batch.targets, [IGNORE, 12, IGNORE, 18]);
    assert_eq!(examples.trained_tokens(), 2);
}

#[test]
fn what_is_no_shard_is_refused_with_the_place_named() {
    let ids: &[i32] = &[1, 2, 3];
    let one = ("ids", Dtype::I32, ids);
    for (tensors, expected) in [
        (vec![("other", Dtype::I32, ids)], "ids is missing"),
        (vec![("ids", Dtype::F32, ids)], "F32"),
        (vec![("ids", Dtype::I32, &[1, 265][..])], "ids[1] is 265"),
        (vec![("ids", Dtype::I32, &[1, -1][..])], "ids[1] is -1"),
        (vec![("ids", Dtype::I32, &[1][..])], "1 tokens"),
        (
            vec![one, ("etiket", Dtype::I32, &[1, 2][..])],
            "etiket has 2 values",
        ),
        (
            vec![one, ("etiket", Dtype::I32, &[2, 3, IGNORE][..])],
            "etiket[0] is 2",
        ),
        (
            vec![one, ("etiket", Dtype::I32, &[IGNORE; 3][..])],
            "no token",
        ),
    ] {
        let error = refusal(&tensors);
        assert!(error.contains(expected), "{error} does not say {expected}");
    }
    let (_folder, path) = written(&[one]);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let cut = Shard::open(&path, VOCABULARY).unwrap_err().to_string();
    assert!(cut.contains("incomplete"), "{cut}");
    std::fs::write(&path, b"").unwrap();
    assert!(Shard::open(&path, VOCABULARY).is_err());
}
