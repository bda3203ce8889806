//! Model folders and safetensors files: what is taken, and what is refused with which name.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

use super::*;
use crate::golden;

/// A safetensors file of this header text and these data bytes.
fn raw_file(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn open_bytes(bytes: &[u8]) -> Result<SafetensorsFile, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let opened = SafetensorsFile::open(file.path());
    opened.map_err(|error| {
        let text = error.to_string();
        assert!(
            text.contains(file.path().to_str().unwrap()),
            "the file is not named: {text}"
        );
        text
    })
}

fn problem(bytes: &[u8]) -> String {
    open_bytes(bytes).expect_err("the file is refused")
}

#[test]
fn g050_lengths_that_the_file_does_not_bear_out_are_refused() {
    assert!(problem(&[0xff; 8]).contains("over 100 MB"));
    assert!(problem(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, b'{', b'}']).contains("over 100 MB"));
    assert!(problem(b"").contains("only 0 bytes"));
    assert!(problem(b"abc").contains("only 3 bytes"));
    let mut file = raw_file("{}      ", &[]);
    file[0] = (file.len() - 7) as u8;
    assert!(problem(&file).contains("cut off inside its header"));
    file[0] = 0;
    assert!(problem(&file).contains("corrupt"));
    let spaces = raw_file(&" ".repeat(1 << 20), &[]);
    assert!(problem(&spaces).contains("corrupt"));
    // A header of 200 MB that is there, as a hole in the file.
    let large = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(large.path(), (200_000_000_u64).to_le_bytes()).unwrap();
    large.as_file().set_len(200_000_008).unwrap();
    let error = SafetensorsFile::open(large.path()).unwrap_err().to_string();
    assert!(error.contains("over 100 MB"), "{error}");
}

#[test]
fn g051_a_shape_larger_than_its_bytes_is_refused() {
    let file = raw_file(
        r#"{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}"#,
        &[0; 4],
    );
    assert!(problem(&file).contains("size does not match shape and dtype"));
    let huge = raw_file(
        r#"{"w":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}}"#,
        &[0; 4],
    );
    assert!(problem(&huge).contains("size does not match shape and dtype"));
}

#[test]
fn g052_two_tensors_of_one_name_are_refused() {
    let file = raw_file(
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
        &[0; 8],
    );
    assert!(problem(&file).contains("duplicate key"));
}

#[test]
fn g053_overlapping_tensors_and_holes_are_refused() {
    let two = |second: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{second}}}}}"#
        )
    };
    assert!(problem(&raw_file(&two("[4,12]"), &[0; 12])).contains("overlap"));
    assert!(problem(&raw_file(&two("[12,20]"), &[0; 20])).contains("hole"));
    assert!(open_bytes(&raw_file(&two("[8,16]"), &[0; 16])).is_ok());
}

#[test]
fn g054_a_file_that_is_cut_off_is_called_incomplete_or_corrupt() {
    let whole = std::fs::read(golden::path("tied/adapter/adapter_model.safetensors")).unwrap();
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        assert!(
            problem(&whole[..length]).contains("corrupt"),
            "{length} bytes"
        );
    }
    for bit in 0..64 {
        let mut flipped = whole.clone();
        flipped[8 + bit * 7] ^= 0x80;
        problem(&flipped);
    }
}

#[test]
fn g059_f32_f16_and_bf16_stand_for_the_same_value_also_in_one_file() {
    let (f32s, f16s, bf16s) = (
        1.0f32.to_le_bytes(),
        half::f16::ONE.to_le_bytes(),
        half::bf16::ONE.to_le_bytes(),
    );
    assert_eq!(bf16s, [0x80, 0x3f]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let view = |dtype, bytes| TensorView::new(dtype, vec![1], bytes).unwrap();
    let tensors = [
        ("a", view(Dtype::F32, &f32s[..])),
        ("b", view(Dtype::F16, &f16s)),
        ("c", view(Dtype::BF16, &bf16s)),
    ];
    serialize_to_file(tensors, None, file.path()).unwrap();
    let opened = SafetensorsFile::open(file.path()).unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(opened.tensor(name).unwrap(), [1.0], "{name}");
    }
}

#[test]
fn g060_a_value_beyond_half_precision_stays_finite() {
    let large = half::bf16::from_f32(70_000.0).to_le_bytes();
    let file = tempfile::NamedTempFile::new().unwrap();
    let view = TensorView::new(Dtype::BF16, vec![1], &large).unwrap();
    serialize_to_file([("w", view)], None, file.path()).unwrap();
    let value = SafetensorsFile::open(file.path())
        .unwrap()
        .tensor("w")
        .unwrap()[0];
    assert!((value - 70_000.0).abs() < 300.0, "{value}");
}

#[test]
fn memory_that_was_given_back_is_read_again_as_it_was() {
    let model = ModelFiles::open(&golden::path("tied")).unwrap();
    let before = model
        .tensor("model.embed_tokens.weight", &[128, 64])
        .unwrap();
    model.release_memory();
    assert_eq!(
        model
            .tensor("model.embed_tokens.weight", &[128, 64])
            .unwrap(),
        before
    );
}

#[test]
fn a_models_digest_is_that_of_its_file_and_depends_on_every_shard() {
    let model = ModelFiles::open(&golden::path("tied")).unwrap();
    let bytes = std::fs::read(golden::path("tied/model.safetensors")).unwrap();
    assert_eq!(model.digest().unwrap(), hex::encode(Sha256::digest(&bytes)));
    let folder = sharded();
    let before = ModelFiles::open(folder.path()).unwrap().digest().unwrap();
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    assert_ne!(
        ModelFiles::open(folder.path()).unwrap().digest().unwrap(),
        before
    );
}

/// The golden model in two shards with an index.
fn sharded() -> tempfile::TempDir {
    let folder = golden::copy_of_model("untied");
    let whole = SafetensorsFile::open(&folder.path().join("model.safetensors")).unwrap();
    let names: Vec<String> = whole.names().map(str::to_owned).collect();
    let mut weight_map = serde_json::Map::new();
    for (shard, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", shard + 1);
        let tensors: Vec<_> = names
            .iter()
            .map(|name| {
                (
                    name,
                    whole.tensor(name).unwrap(),
                    whole.shape(name).unwrap(),
                )
            })
            .collect();
        let views = tensors.iter().map(|(name, values, shape)| {
            (
                name.as_str(),
                TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(values)).unwrap(),
            )
        });
        serialize_to_file(views, None, &folder.path().join(&file)).unwrap();
        weight_map.extend(names.iter().map(|name| (name.clone(), file.clone().into())));
    }
    write_index(folder.path(), weight_map.into());
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    folder
}

fn write_index(folder: &Path, weight_map: Value) {
    let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
    std::fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

fn read_weight_map(folder: &Path) -> Value {
    let text = std::fs::read_to_string(folder.join("model.safetensors.index.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["weight_map"].take()
}

#[test]
fn shards_give_the_same_weights_as_one_file() {
    let (whole, folder) = (
        ModelFiles::open(&golden::path("untied")).unwrap(),
        sharded(),
    );
    let shards = ModelFiles::open(folder.path()).unwrap();
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        assert_eq!(
            shards.tensor(name, &[128, 64]).unwrap(),
            whole.tensor(name, &[128, 64]).unwrap()
        );
    }
}

#[test]
fn g055_a_missing_shard_and_a_tensor_in_another_shard_are_named() {
    let folder = sharded();
    let mut map = read_weight_map(folder.path());
    map["model.norm.weight"] = "model-00001-of-00002.safetensors".into();
    write_index(folder.path(), map);
    let error = ModelFiles::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("model.norm.weight") && error.contains("model-00001-of-00002"),
        "{error}"
    );
    std::fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = ModelFiles::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("model-00002-of-00002.safetensors"),
        "{error}"
    );
}

#[test]
fn g055_a_weight_that_no_file_holds_is_named() {
    let folder = sharded();
    let mut map = read_weight_map(folder.path());
    map.as_object_mut()
        .unwrap()
        .remove("model.layers.1.mlp.up_proj.weight");
    write_index(folder.path(), map);
    let error = ModelFiles::open(folder.path()).unwrap_err();
    assert!(
        matches!(error, EngineError::MissingTensor { name } if name == "model.layers.1.mlp.up_proj.weight")
    );
}

#[test]
fn g056_shards_outside_the_folder_are_refused() {
    let outside = golden::copy_of_model("untied");
    for name in [
        "../other/model.safetensors",
        "/etc/passwd",
        "..",
        "",
        "sub/model.safetensors",
        "./x",
    ] {
        let folder = sharded();
        write_index(
            folder.path(),
            serde_json::json!({"model.norm.weight": name}),
        );
        let error = ModelFiles::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is no plain file name"), "{name}: {error}");
    }
    let folder = sharded();
    let shard = folder.path().join("model-00001-of-00002.safetensors");
    std::fs::remove_file(&shard).unwrap();
    std::os::unix::fs::symlink(outside.path().join("model.safetensors"), &shard).unwrap();
    let error = ModelFiles::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("leads out of the folder"), "{error}");
}

#[test]
fn the_hubs_own_cache_of_links_into_blobs_is_read() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (
        cache.path().join("blobs"),
        cache.path().join("snapshots/0123"),
    );
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    for (blob, name) in ["config.json", "generation_config.json", "model.safetensors"]
        .iter()
        .enumerate()
    {
        std::fs::copy(
            golden::path("tied").join(name),
            blobs.join(blob.to_string()),
        )
        .unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    }
    assert!(ModelFiles::open(&snapshot).is_ok());
}

#[test]
fn g057_files_beside_the_indexed_shards_are_not_read() {
    let folder = sharded();
    std::fs::write(folder.path().join("model.safetensors"), b"of another model").unwrap();
    std::fs::write(
        folder.path().join("model-00003-of-00002.safetensors"),
        b"left over",
    )
    .unwrap();
    let (whole, shards) = (
        ModelFiles::open(&golden::path("untied")).unwrap(),
        ModelFiles::open(folder.path()).unwrap(),
    );
    for weight in Weight::all(&whole.config) {
        let (name, shape) = (weight.name(), weight.shape(&whole.config));
        let expected = whole.tensor(&name, &shape).unwrap();
        assert_eq!(shards.tensor(&name, &shape).unwrap(), expected, "{name}");
    }
}

#[test]
fn weights_that_the_config_does_not_call_for_are_named_and_harmless_ones_are_not_used() {
    let folder = golden::copy_of_model("tied");
    let path = folder.path().join("model.safetensors");
    let whole = SafetensorsFile::open(&path).unwrap();
    let names: Vec<String> = whole.names().map(str::to_owned).collect();
    let open_with = |name: &str, values: &[f32], shape: &[usize]| {
        let mut tensors: Vec<(String, Vec<f32>, Vec<usize>)> = names
            .iter()
            .map(|n| {
                (
                    n.clone(),
                    whole.tensor(n).unwrap(),
                    whole.shape(n).unwrap().to_vec(),
                )
            })
            .collect();
        tensors.push((name.to_owned(), values.to_vec(), shape.to_vec()));
        let views = tensors.iter().map(|(name, values, shape)| {
            (
                name.as_str(),
                TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values)).unwrap(),
            )
        });
        let other = golden::copy_of_model("tied");
        serialize_to_file(views, None, &other.path().join("model.safetensors")).unwrap();
        ModelFiles::open(other.path())
    };
    for name in ["model.layers.1.self_attn.q_norm.weight", "lm_head.bias"] {
        let error = open_with(name, &[1.0; 16], &[16]).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    for name in [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.7.mlp.bias",
    ] {
        open_with(name, &[1.0; 8], &[8]).unwrap();
    }
    // A tied embedding's copy changes nothing, and an output projection of its own counts.
    let embedding = whole.tensor("model.embed_tokens.weight").unwrap();
    let copied = open_with("lm_head.weight", &embedding, &[128, 64]).unwrap();
    assert!(copied.config.tie_word_embeddings);
    let own: Vec<f32> = embedding.iter().map(|x| x + 1.0).collect();
    let untied = open_with("lm_head.weight", &own, &[128, 64]).unwrap();
    assert!(!untied.config.tie_word_embeddings);
    assert_eq!(untied.tensor("lm_head.weight", &[128, 64]).unwrap(), own);
}
