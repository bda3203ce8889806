//! What a config may hold and what it may not.

use serde_json::json;

use super::*;

fn parse(config: Value) -> TrainingConfig {
    TrainingConfig::parse(&config).unwrap_or_else(|problems| panic!("{config}: {problems:?}"))
}

fn problems(config: Value) -> Vec<FieldProblem> {
    match TrainingConfig::parse(&config) {
        Ok(taken) => panic!("{config} was taken as {taken:?}"),
        Err(problems) => problems,
    }
}

fn one_problem(config: Value) -> FieldProblem {
    let mut found = problems(config);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn an_empty_config_has_the_documented_defaults() {
    assert_eq!(
        serde_json::to_value(TrainingConfig::default()).unwrap(),
        json!({
            "epochs": 3, "batch_size": 4, "gradient_accumulation_steps": 1, "learning_rate": 2e-4,
            "lr_scheduler_type": "linear", "warmup_steps": 0, "warmup_ratio": 0.03, "weight_decay": 0.0,
            "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0,
            "mixed_precision": "auto", "seed": 42, "logging_steps": 10, "save_steps": 500,
            "save_total_limit": 3, "gradient_checkpointing": false, "use_peft": true, "lora_r": 16,
            "lora_alpha": 32.0, "lora_dropout": 0.0, "target_modules": "all-linear", "use_rslora": false,
            "packing": true, "max_length": 1024, "train_on": "auto", "eval_split": 0.0, "eval_steps": 500,
            "load_best_model_at_end": false,
        })
    );
}

#[test]
fn the_source_documents_config_is_taken() {
    let config = parse(json!({
        "epochs": 3, "batch_size": 4, "learning_rate": 0.0002, "max_length": 1024, "mixed_precision": "bf16",
        "use_peft": true, "lora_r": 16, "save_steps": 500, "logging_steps": 10
    }));
    assert_eq!(config.mixed_precision, MixedPrecision::Bf16);
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let config = parse(json!({
        "max_steps": 7, "target_modules": ["q_proj", "v_proj"], "lr": 1, "lora_r": 8, "seed": 0,
        "save_steps": 3, "resume_from_checkpoint": "checkpoints/job-1/step-3/"
    }));
    assert_eq!(parse(Value::Object(config.to_map())), config);
    let pattern = parse(json!({"target_modules": r".*\.(q|v)_proj"}));
    assert_eq!(parse(Value::Object(pattern.to_map())), pattern);
}

#[test]
fn other_spellings_are_taken_for_their_fields() {
    let config = parse(json!({
        "num_train_epochs": 2, "per_device_train_batch_size": 8, "lr": 1e-3, "r": 4, "lora_target_modules": ["q_proj"],
        "max_seq_length": 256, "bf16": true, "gradient_clipping": 0
    }));
    assert_eq!(
        (
            config.epochs,
            config.batch_size,
            config.lora_r,
            config.max_length
        ),
        (2, 8, 4, 256)
    );
    assert_eq!((config.learning_rate, config.max_grad_norm), (1e-3, 0.0));
    assert_eq!(config.mixed_precision, MixedPrecision::Bf16);
    assert_eq!(
        config.target_modules,
        TargetModules::Names(vec!["q_proj".to_owned()])
    );
}

#[test]
fn lora_alpha_is_twice_the_rank_unless_given() {
    assert_eq!(parse(json!({"lora_r": 4})).lora_alpha, 8.0);
    assert_eq!(
        parse(json!({"lora_r": 4, "lora_alpha": 16})).lora_alpha,
        16.0
    );
}

#[test]
fn all_weights_are_trained_at_a_lower_rate_and_without_settings_of_an_adapter() {
    let config = parse(json!({"use_peft": false, "lora_r": 16}));
    assert_eq!((config.use_peft, config.learning_rate), (false, 2e-5));
    assert_eq!(parse(Value::Object(config.to_map())), config);
    for (field, value) in [
        ("lora_r", json!(8)),
        ("lora_alpha", json!(64)),
        ("lora_dropout", json!(0.1)),
        ("target_modules", json!(["q_proj"])),
        ("use_rslora", json!(true)),
    ] {
        let problem = one_problem(json!({"use_peft": false, field: value}));
        assert_eq!(problem.field, field);
        assert!(problem.message.contains("use_peft is false"), "{problem}");
    }
}

#[test]
fn evaluations_are_asked_for_by_eval_split() {
    let config = parse(json!({
        "eval_split": 0.1, "save_steps": 20, "early_stopping_patience": 3, "load_best_model_at_end": true
    }));
    assert_eq!(
        config.eval_steps, 20,
        "as often as checkpoints unless given"
    );
    assert_eq!(parse(Value::Object(config.to_map())), config);
    assert_eq!(
        parse(json!({"eval_split": 0.1, "eval_steps": 7})).eval_steps,
        7
    );
    for (field, value) in [
        ("early_stopping_patience", json!(3)),
        ("load_best_model_at_end", json!(true)),
    ] {
        let problem = one_problem(json!({ field: value }));
        assert_eq!(problem.field, field);
        assert!(problem.hint.unwrap().contains("eval_split"));
    }
    for share in [json!(1), json!(-0.1)] {
        assert_eq!(
            one_problem(json!({"eval_split": share})).field,
            "eval_split"
        );
    }
}

#[test]
fn ranks_and_alphas_may_differ_by_layer() {
    let config = parse(json!({
        "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"^model.layers.0.mlp.up_proj": 2.5},
        "modules_to_save": ["lm_head"]
    }));
    assert_eq!(config.rank_pattern["q_proj"], 4);
    assert_eq!(parse(Value::Object(config.to_map())), config);
    for (field, value) in [
        ("rank_pattern", json!({"q_proj": 0})),
        ("rank_pattern", json!({"(": 4})),
        ("rank_pattern", json!(["q_proj"])),
        ("alpha_pattern", json!({"q_proj": 0})),
        ("alpha_pattern", json!({"q_proj": "8"})),
        ("modules_to_save", json!("lm_head")),
        ("modules_to_save", json!([7])),
    ] {
        assert_eq!(one_problem(json!({ field: value })).field, field);
    }
}

#[test]
fn null_is_as_if_missing() {
    assert_eq!(
        parse(json!({"max_steps": null, "epochs": null})),
        TrainingConfig::default()
    );
}

#[test]
fn an_unknown_field_is_refused_with_the_nearest_known_name() {
    for (unknown, nearest) in [
        ("lerning_rate", Some("learning_rate")),
        ("epoch", Some("epochs")),
        ("lora_rnk", Some("lora_rank")),
        ("batchsize", Some("batch_size")),
        ("LoraAlpha", Some("lora_alpha")),
        ("steps", Some("max_steps")),
        ("num_steps", Some("max_steps")),
        ("training_steps", Some("max_steps")),
        ("rank", Some("lora_rank")),
        ("patience", Some("early_stopping_patience")),
        ("seq_len", Some("max_seq_length")),
        ("cutoff_len", Some("max_length")),
        ("max_epochs", Some("epochs")),
        ("eval_batch_size", Some("batch_size")),
        ("zzz", None),
    ] {
        let problem = one_problem(json!({ unknown: 1 }));
        assert_eq!(
            (problem.field.as_str(), problem.hint.as_deref()),
            (unknown, nearest)
        );
    }
}

#[test]
fn g073_values_out_of_range_are_refused_by_name() {
    for (field, value) in [
        ("epochs", json!(0)),
        ("epochs", json!(-1)),
        ("max_steps", json!(0)),
        ("batch_size", json!(0)),
        ("gradient_accumulation_steps", json!(0)),
        ("learning_rate", json!(0)),
        ("learning_rate", json!(-1e-4)),
        ("warmup_ratio", json!(1.5)),
        ("adam_beta1", json!(1)),
        ("adam_epsilon", json!(0)),
        ("max_grad_norm", json!(-1)),
        ("logging_steps", json!(0)),
        ("save_steps", json!(0)),
        ("lora_r", json!(0)),
        ("lora_alpha", json!(0)),
        ("lora_dropout", json!(1)),
        ("max_length", json!(1)),
        ("seed", json!(-1)),
        ("seed", json!(9_007_199_254_740_992_u64)),
    ] {
        let problem = one_problem(json!({ field: value }));
        assert_eq!(problem.field, field, "{value}");
        assert!(problem.message.starts_with("must be "), "{problem}");
    }
}

#[test]
fn g038_wrong_types_are_refused_by_name() {
    for (field, value) in [
        ("epochs", json!("3")),
        ("epochs", json!(2.5)),
        ("learning_rate", json!("2e-4")),
        ("packing", json!(1)),
        ("target_modules", json!(7)),
        ("target_modules", json!(["q_proj", 7])),
        ("target_modules", json!([])),
        ("target_modules", json!("(")),
        ("lr_scheduler_type", json!(true)),
        ("resume_from_checkpoint", json!(true)),
    ] {
        assert_eq!(
            one_problem(json!({ field: value.clone() })).field,
            field,
            "{value}"
        );
    }
    assert_eq!(one_problem(json!([])).field, "config");
}

#[test]
fn g060_a_precision_that_is_not_known_is_refused() {
    let problem = one_problem(json!({"mixed_precision": "fp8"}));
    assert_eq!(problem.field, "mixed_precision");
    assert!(problem.message.contains("`fp8`"), "{problem}");
    assert!(problem.hint.unwrap().contains("bf16"));
    assert_eq!(
        one_problem(json!({"mixed_precision": "f32", "bf16": true})).field,
        "bf16"
    );
}

#[test]
fn a_field_under_two_names_is_refused() {
    let problem = one_problem(json!({"lora_r": 8, "r": 8}));
    assert_eq!(problem.field, "r");
    assert!(problem.message.contains("`lora_r`"), "{problem}");
    for config in [
        json!({"lora_r": 8, "r": null}),
        json!({"lora_r": null, "r": 8}),
    ] {
        assert_eq!(parse(config).lora_r, 8, "null is as if missing");
    }
}

#[test]
fn values_as_transformers_writes_them_are_taken() {
    let config = parse(json!({"num_train_epochs": 3.0, "max_steps": -1, "save_steps": 5e2}));
    assert_eq!(
        (config.epochs, config.max_steps, config.save_steps),
        (3, None, 500)
    );
    assert_eq!(parse(json!({"max_steps": 7.0})).max_steps, Some(7));
    for steps in [json!(-2), json!(0), json!(-1.5), json!(1e300)] {
        assert_eq!(one_problem(json!({"max_steps": steps})).field, "max_steps");
    }
}

#[test]
fn g077_a_learning_rate_that_makes_a_run_diverge_is_taken_and_nonsense_is_not() {
    assert_eq!(parse(json!({"learning_rate": 1e4})).learning_rate, 1e4);
    assert_eq!(
        one_problem(json!({"learning_rate": 1e7})).field,
        "learning_rate"
    );
}

#[test]
fn what_is_not_built_is_refused_and_its_default_is_taken() {
    let problem = one_problem(json!({"use_dora": true}));
    assert_eq!(
        (problem.field.as_str(), problem.message.as_str()),
        ("use_dora", "is not supported yet")
    );
    parse(json!({
        "use_peft": true, "eval_split": 0, "load_best_model_at_end": false, "modules_to_save": [],
        "load_in_4bit": false, "use_dora": false, "early_stopping_patience": null
    }));
}

#[test]
fn a_base_model_is_held_in_one_way_and_only_where_it_is_frozen() {
    let config = parse(json!({"load_in_4bit": true, "low_memory": true}));
    assert!(config.load_in_4bit && config.low_memory && !config.load_in_8bit);
    assert_eq!(TrainingConfig::parse(&config.to_map().into()), Ok(config));
    let problem = one_problem(json!({"load_in_4bit": true, "load_in_8bit": true}));
    assert_eq!(problem.field, "load_in_8bit");
    for field in ["load_in_4bit", "load_in_8bit", "low_memory"] {
        let found = problems(json!({"use_peft": false, field: true}));
        assert!(
            found
                .iter()
                .any(|p| p.field == field && p.message.contains("use_peft is false")),
            "{found:?}"
        );
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let fields: Vec<_> = problems(json!({"epochs": 0, "lora_r": "x", "colour": 1}))
        .into_iter()
        .map(|problem| problem.field)
        .collect();
    assert_eq!(fields.len(), 3);
    for field in ["epochs", "lora_r", "colour"] {
        assert!(fields.iter().any(|found| found == field), "{fields:?}");
    }
}
