//! Adapters mean what PEFT means by them, and what is not supported is refused by name.

use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use trainyard_shared::training::{TargetModules, TrainingConfig};

use super::*;
use crate::model::{Adapter, Batch, IGNORE, Llama, ModelConfig, Projection, TrainModel};
use crate::weights::{ModelFiles, SafetensorsFile};
use crate::{EngineError, golden};

fn model() -> ModelConfig {
    ModelFiles::open(&golden::path("tied")).unwrap().config
}

fn config(changes: impl FnOnce(&mut AdapterConfig)) -> AdapterConfig {
    let mut config = AdapterConfig::from_training(&TrainingConfig::default(), "base");
    changes(&mut config);
    config
}

fn names(config: &AdapterConfig) -> Vec<String> {
    config
        .targets(&model())
        .unwrap()
        .iter()
        .map(|target| target.projection.full_name(target.layer))
        .collect()
}

fn refusal(config: &AdapterConfig) -> String {
    config.targets(&model()).unwrap_err()
}

fn list(names: &[&str]) -> TargetModules {
    TargetModules::Names(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn g079_rslora_scales_by_the_root_of_the_rank() {
    for (use_rslora, scale) in [(false, 2.0), (true, 8.0)] {
        let config = config(|config| {
            (config.r, config.lora_alpha, config.use_rslora) = (16, 32.0, use_rslora);
        });
        assert!(
            config
                .targets(&model())
                .unwrap()
                .iter()
                .all(|target| target.scale == scale)
        );
        let adapter = fresh(&config, &model(), 1).unwrap();
        assert_eq!(
            adapter.module(0, Projection::Q).unwrap().scale,
            scale as f32
        );
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &adapter, &config, &model()).unwrap();
        assert_eq!(
            load(folder.path(), &model()).unwrap().0,
            adapter,
            "saved and read again"
        );
    }
}

#[test]
fn g080_a_target_that_matches_nothing_is_named() {
    for targets in [list(&["q_proj", "FAKE"]), list(&["FAKE"])] {
        let problem = refusal(&config(|config| config.target_modules = targets));
        assert!(
            problem.contains("FAKE") && !problem.contains("q_proj"),
            "{problem}"
        );
    }
    let head = refusal(&config(|config| {
        config.target_modules = list(&["q_proj", "lm_head"])
    }));
    assert!(head.contains("lm_head"), "{head}");
    let error = fresh(
        &config(|config| config.target_modules = list(&["FAKE"])),
        &model(),
        1,
    )
    .unwrap_err();
    assert!(matches!(
        error,
        EngineError::InvalidSetting {
            field: "target_modules",
            ..
        }
    ));
}

#[test]
fn g081_targets_are_all_layers_a_whole_pattern_or_names() {
    assert_eq!(
        names(&config(
            |config| config.target_modules = TargetModules::AllLinear
        ))
        .len(),
        14
    );
    let pattern = |pattern: &str| TargetModules::Pattern(pattern.to_owned());
    let qv = names(&config(|config| {
        config.target_modules = pattern(r".*\.(q|v)_proj")
    }));
    assert_eq!(qv.len(), 4);
    assert!(
        qv.iter()
            .all(|name| name.ends_with("q_proj") || name.ends_with("v_proj"))
    );
    assert!(
        refusal(&config(|config| config.target_modules = pattern("q_proj")))
            .contains("matches no linear layer")
    );
    assert_eq!(
        names(&config(
            |config| config.target_modules = list(&["1.self_attn.q_proj"])
        )),
        ["model.layers.1.self_attn.q_proj"]
    );
    assert!(
        refusal(&config(|config| config.target_modules = list(&["proj"]))).contains("proj"),
        "only at a dot"
    );
    assert!(
        refusal(&config(|config| config.target_modules = list(&[]))).contains("no layer is left")
    );
}

#[test]
fn excluded_layers_and_layer_indices_narrow_the_targets() {
    let config = config(|config| {
        config.target_modules = list(&["q_proj", "v_proj"]);
        config.exclude_modules = Some(list(&["layers.0.self_attn.q_proj"]));
        config.layers_to_transform = Some(vec![0]);
    });
    assert_eq!(names(&config), ["model.layers.0.self_attn.v_proj"]);
}

#[test]
fn g082_patterns_of_rank_and_alpha_match_at_a_dot_and_must_match_something() {
    let patterns = |ranks: &[(&str, usize)], alphas: &[(&str, f64)]| {
        config(|config| {
            (config.r, config.lora_alpha) = (8, 8.0);
            config.rank_pattern = ranks
                .iter()
                .map(|(name, r)| ((*name).to_owned(), *r))
                .collect();
            config.alpha_pattern = alphas
                .iter()
                .map(|(name, alpha)| ((*name).to_owned(), *alpha))
                .collect();
        })
    };
    let targets = patterns(&[("layers.0.self_attn.q_proj", 2)], &[("q_proj", 100.0)])
        .targets(&model())
        .unwrap();
    let of = |layer, projection| {
        targets
            .iter()
            .find(|t| (t.layer, t.projection) == (layer, projection))
            .unwrap()
    };
    assert_eq!(
        (of(0, Projection::Q).rank, of(0, Projection::Q).scale),
        (2, 50.0)
    );
    assert_eq!(
        (of(1, Projection::Q).rank, of(1, Projection::Q).scale),
        (8, 12.5)
    );
    assert_eq!(
        (of(1, Projection::K).rank, of(1, Projection::K).scale),
        (8, 1.0)
    );
    assert!(refusal(&patterns(&[("nothing", 4)], &[])).contains("\"nothing\""));
    assert!(
        refusal(&patterns(&[], &[("^q_proj", 100.0)])).contains("\"^q_proj\""),
        "the whole name is meant"
    );
    patterns(&[], &[(r"^model\.layers\.0\.self_attn\.q_proj", 1.0)])
        .targets(&model())
        .unwrap();
}

#[test]
fn g083_what_is_not_supported_is_refused_by_name() {
    let golden = || -> Value {
        let text =
            std::fs::read_to_string(golden::path("tied/adapter/adapter_config.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    assert!(AdapterConfig::from_json(&golden()).is_ok());
    for (field, value) in [
        ("use_dora", json!(true)),
        ("peft_type", json!("IA3")),
        ("bias", json!("all")),
        ("lora_bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!("lm_head")),
        ("trainable_token_indices", json!([1])),
        ("target_parameters", json!(["x"])),
        ("layer_replication", json!([[0, 1]])),
        ("use_qalora", json!(true)),
        ("init_lora_weights", json!("pissa")),
        ("something_new", json!(1)),
        ("r", json!(0)),
        ("lora_alpha", json!("8")),
        ("target_modules", json!(null)),
    ] {
        let mut json = golden();
        json[field] = value;
        let problem = AdapterConfig::from_json(&json).expect_err(field);
        assert!(problem.contains(field), "{field}: {problem}");
    }
}

#[test]
fn g083_a_dora_adapters_vector_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let source = golden::path("tied/adapter");
    std::fs::copy(
        source.join(ADAPTER_CONFIG),
        folder.path().join(ADAPTER_CONFIG),
    )
    .unwrap();
    let adapter = load(&source, &model()).unwrap().0;
    let mut tensors = named_tensors(&adapter, &model());
    let vector = [1.0; 64];
    tensors.push((
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector".into(),
        vec![64, 1],
        &vector,
    ));
    files::write_tensors(&folder.path().join(ADAPTER_WEIGHTS), &tensors).unwrap();
    assert!(
        load(folder.path(), &model())
            .unwrap_err()
            .to_string()
            .contains("DoRA is not supported")
    );
}

#[test]
fn pefts_own_adapter_is_read_and_written_with_the_same_names_shapes_and_values() {
    for variant in ["tied", "untied"] {
        let source = golden::path(variant).join("adapter");
        let (adapter, config) = load(&source, &model()).unwrap();
        assert_eq!(adapter.module(1, Projection::Down).unwrap().scale, 2.0);
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), &adapter, &config, &model()).unwrap();
        let (theirs, ours) = (
            SafetensorsFile::open(&source.join(ADAPTER_WEIGHTS)).unwrap(),
            SafetensorsFile::open(&folder.path().join(ADAPTER_WEIGHTS)).unwrap(),
        );
        assert!(theirs.names().eq(ours.names()));
        for name in theirs.names() {
            assert_eq!(theirs.shape(name), ours.shape(name));
            assert_eq!(theirs.tensor(name).unwrap(), ours.tensor(name).unwrap());
        }
        assert_eq!(theirs.metadata(), ours.metadata());
    }
}

#[test]
fn the_written_config_says_what_pefts_own_says() {
    let read = |folder: &std::path::Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(folder.join(ADAPTER_CONFIG)).unwrap())
            .unwrap()
    };
    let theirs = read(&golden::path("tied/adapter"));
    let folder = tempfile::tempdir().unwrap();
    let config = config(|config| {
        (config.r, config.lora_alpha) = (4, 8.0);
        config.base_model_name_or_path = None;
    });
    save(
        folder.path(),
        &fresh(&config, &model(), 1).unwrap(),
        &config,
        &model(),
    )
    .unwrap();
    let ours = read(folder.path());
    for (field, value) in ours.as_object().unwrap() {
        let sorted = |value: &Value| {
            let mut items: Vec<String> = value
                .as_array()
                .into_iter()
                .flatten()
                .map(Value::to_string)
                .collect();
            items.sort();
            items
        };
        match field.as_str() {
            "target_modules" => assert_eq!(sorted(value), sorted(&theirs[field])),
            _ => assert_eq!(value, &theirs[field], "{field}"),
        }
    }
}

#[test]
fn fresh_weights_are_pefts_distribution_with_b_zero_and_follow_the_seed() {
    let config = config(|config| config.r = 64);
    let adapter = fresh(&config, &model(), 7).unwrap();
    for projection in Projection::ALL {
        let module = adapter.module(0, projection).unwrap();
        let [_, inputs] = model().projection_shape(projection);
        let bound = 1.0 / (inputs as f32).sqrt();
        assert!(module.a.iter().all(|x| x.abs() <= bound));
        assert!(module.a.iter().any(|x| x.abs() > 0.95 * bound));
        let mean_square =
            module.a.iter().map(|x| f64::from(x * x)).sum::<f64>() / module.a.len() as f64;
        let expected = f64::from(bound * bound) / 3.0;
        assert!(
            (mean_square / expected - 1.0).abs() < 0.1,
            "{mean_square} is not {expected}"
        );
        assert!(module.b.iter().all(|x| *x == 0.0));
    }
    assert_eq!(adapter, fresh(&config, &model(), 7).unwrap());
    assert_ne!(adapter, fresh(&config, &model(), 8).unwrap());
    assert_ne!(
        adapter.module(0, Projection::Q).unwrap().a,
        adapter.module(1, Projection::Q).unwrap().a
    );
}

#[test]
fn weights_that_are_not_finite_are_neither_written_nor_read() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(|_| {});
    let mut adapter = fresh(&config, &model(), 1).unwrap();
    adapter.layers[0][Projection::Q as usize]
        .as_mut()
        .unwrap()
        .b[3] = f32::NAN;
    let error = save(folder.path(), &adapter, &config, &model()).unwrap_err();
    assert!(error.to_string().contains("q_proj.lora_B"), "{error}");
    assert!(!folder.path().join(ADAPTER_WEIGHTS).exists());
    save(
        folder.path(),
        &fresh(&config, &model(), 1).unwrap(),
        &config,
        &model(),
    )
    .unwrap();
    files::write_tensors(
        &folder.path().join(ADAPTER_WEIGHTS),
        &named_tensors(&adapter, &model()),
    )
    .unwrap();
    assert!(
        load(folder.path(), &model())
            .unwrap_err()
            .to_string()
            .contains("not finite")
    );
}

#[test]
fn an_adapter_of_another_model_is_refused_by_the_tensor() {
    let mut other = model();
    other.intermediate_size = 96;
    let error = load(&golden::path("tied/adapter"), &other).unwrap_err();
    assert!(matches!(error, EngineError::ShapeMismatch { .. }));
    let mut larger = model();
    larger.num_hidden_layers = 3;
    let error = load(&golden::path("tied/adapter"), &larger).unwrap_err();
    assert!(matches!(error, EngineError::MissingTensor { name } if name.contains("layers.2.")));
    let mut smaller = model();
    smaller.num_hidden_layers = 1;
    let error = load(&golden::path("tied/adapter"), &smaller)
        .unwrap_err()
        .to_string();
    assert!(error.contains("belongs to no layer"), "{error}");
}

/// Logits of the golden rows, padding left out, with an adapter on the golden model.
fn logits(variant: &str, adapter: &Adapter) -> Vec<Vec<f32>> {
    let files = ModelFiles::open(&golden::path(variant)).unwrap();
    let mut model = TrainModel::new(Arc::new(Llama::load(&files).unwrap()), adapter).unwrap();
    let meta = golden::meta();
    let row = |name: &str, row: usize| golden::numbers(&meta[name][row]);
    let run = |index: usize| {
        let length = row("attention_mask", index).iter().sum::<f64>() as usize;
        let ids: Vec<u32> = row("input_ids", index)[..length]
            .iter()
            .map(|id| *id as u32)
            .collect();
        let mut batch = Batch::default();
        batch.push_sequence(&ids, &vec![IGNORE; length]);
        model.logits(&batch).unwrap()
    };
    [0, 1].map(run).into()
}

#[test]
fn pefts_own_adapter_gives_pefts_own_logits() {
    for variant in ["tied", "untied"] {
        let (mut adapter, config) = load(&golden::path(variant).join("adapter"), &model()).unwrap();
        let stabilised = AdapterConfig {
            use_rslora: true,
            ..config
        };
        for (file, is_stabilised) in [
            ("lora.safetensors", false),
            ("rslora_logits.safetensors", true),
        ] {
            if is_stabilised {
                for target in stabilised.targets(&model()).unwrap() {
                    let module = adapter.layers[target.layer][target.projection as usize]
                        .as_mut()
                        .unwrap();
                    module.scale = target.scale as f32;
                }
            }
            let expected = SafetensorsFile::open(&golden::path(variant).join(file))
                .unwrap()
                .tensor("logits")
                .unwrap();
            for (row, found) in logits(variant, &adapter).iter().enumerate() {
                for (x, y) in found.iter().zip(&expected[row * 16 * 128..]) {
                    assert!((x - y).abs() < 1e-4, "{variant}, {file}: {x} is not {y}");
                }
            }
        }
    }
}

#[test]
fn g059_an_adapter_in_half_precision_gives_nearly_the_same_logits() {
    let source = golden::path("tied/adapter");
    let expected = logits("tied", &load(&source, &model()).unwrap().0);
    for dtype in [Dtype::F16, Dtype::BF16] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(
            source.join(ADAPTER_CONFIG),
            folder.path().join(ADAPTER_CONFIG),
        )
        .unwrap();
        let file = SafetensorsFile::open(&source.join(ADAPTER_WEIGHTS)).unwrap();
        let half = |x: f32| match dtype {
            Dtype::F16 => half::f16::from_f32(x).to_le_bytes(),
            _ => half::bf16::from_f32(x).to_le_bytes(),
        };
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = file
            .names()
            .map(|name| {
                let bytes = file
                    .tensor(name)
                    .unwrap()
                    .into_iter()
                    .flat_map(half)
                    .collect();
                (name.to_owned(), file.shape(name).unwrap().to_vec(), bytes)
            })
            .collect();
        let views = tensors.iter().map(|(name, shape, bytes)| {
            (
                name.as_str(),
                TensorView::new(dtype, shape.clone(), bytes).unwrap(),
            )
        });
        serialize_to_file(views, None, &folder.path().join(ADAPTER_WEIGHTS)).unwrap();
        let found = logits("tied", &load(folder.path(), &model()).unwrap().0);
        for (x, y) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((x - y).abs() < 0.3, "{dtype:?}: {x} is not near {y}");
        }
    }
}
