//! Configs: what is read from them, what stands for what they leave out, and what is refused with which name.

use super::*;
use crate::golden;
use crate::model::RopeScaling;

#[test]
fn both_forms_of_the_config_are_read_alike() {
    for variant in ["tied", "untied"] {
        let folder = golden::copy_of_model(variant);
        let newer = ModelFiles::open(folder.path()).unwrap();
        std::fs::copy(
            golden::path(variant).join("config_v4.json"),
            folder.path().join("config.json"),
        )
        .unwrap();
        let older = ModelFiles::open(folder.path()).unwrap();
        assert_eq!(newer.config, older.config);
        assert_eq!(newer.config.rope_theta, 10_000.0);
        assert_eq!(newer.config.tie_word_embeddings, variant == "tied");
    }
}

/// Opens the golden model with fields of its config changed; null takes a field away.
fn with_config(changes: serde_json::Value) -> Result<ModelFiles, EngineError> {
    let folder = golden::copy_of_model("tied");
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    ModelFiles::open(folder.path())
}

#[test]
fn g061_rope_scaling_is_read_under_both_keys_and_both_names_of_its_type() {
    let llama3 = serde_json::json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3", "rope_theta": 500_000.0});
    let mut old = llama3.clone();
    old.as_object_mut().unwrap().remove("rope_theta");
    let older =
        serde_json::json!({"rope_parameters": null, "rope_scaling": old, "rope_theta": 500_000.0});
    for changes in [serde_json::json!({"rope_parameters": llama3}), older] {
        let config = with_config(changes).unwrap().config;
        assert_eq!(config.rope_theta, 500_000.0);
        assert!(matches!(
            config.rope_scaling,
            RopeScaling::Llama3 {
                factor: 8.0,
                original_max_position_embeddings: 8192,
                ..
            }
        ));
    }
    let linear = serde_json::json!({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 4.0}});
    assert_eq!(
        with_config(linear).unwrap().config.rope_scaling,
        RopeScaling::Linear { factor: 4.0 }
    );
}

#[test]
fn g061_an_empty_older_form_beside_the_newer_one_says_nothing() {
    let changes = serde_json::json!({"rope_scaling": {}, "rope_parameters":
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 500_000.0}});
    let config = with_config(changes).unwrap().config;
    assert_eq!(
        (config.rope_theta, config.rope_scaling),
        (500_000.0, RopeScaling::Linear { factor: 4.0 })
    );
}

#[test]
fn g050_counts_beyond_all_models_are_refused_by_name_before_anything_is_made_for_them() {
    for (field, count) in [
        ("num_hidden_layers", 2_000_000_000_u64),
        ("num_hidden_layers", 1001),
        ("vocab_size", 2_000_000_000),
        ("hidden_size", 2_000_000_000),
        ("intermediate_size", 2_000_000_000),
        ("num_attention_heads", 2_000_000_000),
        ("head_dim", 2_000_000_000),
    ] {
        let error = with_config(serde_json::json!({ field: count })).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(field) && error.contains("at most"),
            "{error}"
        );
    }
}

#[test]
fn what_the_engine_does_not_do_is_refused_by_name() {
    for (changes, name) in [
        (
            serde_json::json!({"architectures": ["GemmaForCausalLM"]}),
            "GemmaForCausalLM",
        ),
        (
            serde_json::json!({"architectures": null, "model_type": "mamba"}),
            "mamba",
        ),
        (
            serde_json::json!({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}),
            "longrope",
        ),
        (
            serde_json::json!({"attention_bias": true}),
            "model.layers.0.self_attn.q_proj.bias",
        ),
        (
            serde_json::json!({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
            "dynamic",
        ),
        (serde_json::json!({"hidden_act": "gelu"}), "hidden_act"),
        (
            serde_json::json!({"quantization_config": {"quant_method": "gptq"}}),
            "quantization_config",
        ),
        (serde_json::json!({"hidden_size": "64"}), "hidden_size"),
        (
            serde_json::json!({"num_attention_heads": 0}),
            "num_attention_heads",
        ),
        (serde_json::json!({"vocab_size": null}), "vocab_size"),
    ] {
        let error = with_config(changes).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn a_weight_of_another_shape_is_named() {
    let error = with_config(serde_json::json!({"intermediate_size": 96})).unwrap_err();
    assert!(
        matches!(error, EngineError::ShapeMismatch { name, .. } if name == "model.layers.0.mlp.gate_proj.weight")
    );
}

#[test]
fn g058_a_tied_model_needs_no_output_weight_and_an_untied_one_does() {
    assert!(ModelFiles::open(&golden::path("tied")).is_ok());
    let error = with_config(serde_json::json!({"tie_word_embeddings": false})).unwrap_err();
    assert!(matches!(error, EngineError::MissingTensor { name } if name == "lm_head.weight"));
}

#[test]
fn g090_every_end_of_text_id_is_read_one_number_or_a_list() {
    let ids = |json| hf_config::eos_token_ids(&json);
    assert_eq!(ids(serde_json::json!({"eos_token_id": 2})), [2]);
    assert_eq!(
        ids(serde_json::json!({"eos_token_id": [1, 8, 9]})),
        [1, 8, 9]
    );
    assert!(ids(serde_json::json!({})).is_empty());
}

/// The config of an architecture that says no more than it has to.
fn bare(model_type: &str, more: Value) -> Result<ModelConfig, String> {
    let mut json = serde_json::json!({"model_type": model_type, "vocab_size": 64, "hidden_size": 256,
        "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 64});
    for (name, value) in more.as_object().unwrap() {
        json[name] = value.clone();
    }
    config_of(&json)
}

#[test]
fn what_a_config_leaves_out_is_as_in_transformers() {
    let nothing = || serde_json::json!({});
    for (model_type, keys, head_dim, longest, window) in [
        ("llama", 64, 4, 2048, None),
        ("mistral", 8, 4, 131_072, Some(4096)),
        ("qwen2", 32, 4, 32_768, None),
        ("qwen3", 32, 128, 32_768, None),
    ] {
        let config = bare(model_type, nothing()).unwrap();
        assert_eq!(config.architecture.model_type(), model_type);
        assert_eq!(
            (config.num_key_value_heads, config.head_dim),
            (keys, head_dim)
        );
        assert_eq!(config.max_position_embeddings, longest);
        assert_eq!((config.rms_norm_eps, config.rope_theta), (1e-6, 10_000.0));
        assert_eq!(config.rope_scaling, RopeScaling::Default);
        assert!(!config.tie_word_embeddings);
        assert_eq!(
            (0..3).map(|layer| config.window(layer)).collect::<Vec<_>>(),
            [window; 3]
        );
        let null = serde_json::json!({"num_key_value_heads": null, "sliding_window": null});
        let config = bare(model_type, null).unwrap();
        assert_eq!(
            (config.num_key_value_heads, config.sliding_window),
            (64, None)
        );
    }
}

#[test]
fn qwen_windows_are_those_layers_that_the_config_gives_one() {
    let windows = |more: Value| {
        let config = bare("qwen2", more)?;
        Ok::<_, String>([0, 1, 2].map(|layer| config.window(layer)))
    };
    let json = |text: &str| serde_json::from_str(text).unwrap();
    let (none, all) = ([None; 3], [Some(9); 3]);
    let last = [None, None, Some(9)];
    for (fields, expected) in [
        (
            r#""use_sliding_window": false, "max_window_layers": 0"#,
            none,
        ),
        (r#""use_sliding_window": true"#, none),
        (
            r#""use_sliding_window": true, "max_window_layers": 2"#,
            last,
        ),
        (r#""use_sliding_window": true, "max_window_layers": 0"#, all),
        (
            r#""use_sliding_window": true, "layer_types": ["full_attention", "full_attention", "sliding_attention"]"#,
            last,
        ),
    ] {
        let found = windows(json(&format!(r#"{{"sliding_window": 9, {fields}}}"#)));
        assert_eq!(found.unwrap(), expected, "{fields}");
    }
    for (fields, name) in [
        (r#""layer_types": ["full_attention"]"#, "layer_types"),
        (
            r#""layer_types": ["sliding_attention", "full_attention", "full_attention"]"#,
            "layer_types",
        ),
        (
            r#""layer_types": ["full_attention", "full_attention", "conv"]"#,
            "conv",
        ),
        (
            r#""use_sliding_window": true, "sliding_window": 0"#,
            "sliding_window",
        ),
    ] {
        let problem = windows(json(&format!("{{{fields}}}"))).unwrap_err();
        assert!(problem.contains(name), "{problem}");
    }
    let types =
        json(r#"{"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}"#);
    assert!(bare("mistral", types).unwrap_err().contains("layer_types"));
}
