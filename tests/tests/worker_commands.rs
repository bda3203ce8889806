//! `trainyard-worker generate`, `evaluate` and `export`: the engine without a platform, as a person or a script runs it.

use std::process::Command;

use serde_json::Value;
use trainyard_tests::model::TinyModel;
use trainyard_tests::process::binary;

/// Runs the worker's binary with `--json`; gives what it printed, or why it failed.
fn run(arguments: &[&str]) -> Result<Value, String> {
    let ran = Command::new(binary("trainyard-worker"))
        .arg("--json")
        .args(arguments)
        .output()
        .expect("the worker's binary runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
    if ran.status.success() {
        Ok(serde_json::from_str(&text(&ran.stdout)).expect("one JSON object"))
    } else {
        Err(text(&ran.stderr))
    }
}

#[test]
fn generate_repeats_for_its_seed_and_obeys_every_option() {
    let model = TinyModel::create();
    let path = model.path().display().to_string();
    let ask = |options: &[&str]| {
        let mut arguments = vec!["generate", "--model", &path, "--prompt", "ahoy"];
        arguments.extend(options);
        run(&arguments)
    };
    let seeded = [
        "--max-tokens",
        "12",
        "--temperature",
        "1",
        "--seed",
        "7",
        "--top-p",
        "0.9",
    ];
    let first = ask(&seeded).unwrap();
    assert_eq!(first["text"], ask(&seeded).unwrap()["text"]);
    assert!(first["tokens_generated"].as_u64().unwrap() <= 12);

    let greedy = ["--max-tokens", "12", "--temperature", "0"];
    let plain = ask(&greedy).unwrap();
    let penalised = ask(&[&greedy[..], &["--repetition-penalty", "1.8"]].concat()).unwrap();
    assert_ne!(plain["text"], penalised["text"]);
    let nothing = ask(&["--max-tokens", "0"]).unwrap();
    assert_eq!(nothing["tokens_generated"], 0);
    assert_eq!(nothing["text"], "");
    let refused = ask(&["--top-p", "1.5"]).unwrap_err();
    assert!(refused.contains("top_p"), "{refused}");
}

#[test]
fn g095_evaluate_gives_the_same_figures_whatever_the_batch_size() {
    let model = TinyModel::create();
    let path = model.path().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("rows.jsonl");
    let rows: String = (0..7)
        .map(|row| {
            format!(
                "{{\"text\":\"row {row} {}\"}}\n",
                "of the cargo ".repeat(row)
            )
        })
        .collect();
    std::fs::write(&data, rows).unwrap();
    let data = data.display().to_string();
    let measure = |batch_size: &str| {
        run(&[
            "evaluate",
            "--model",
            &path,
            "--data",
            &data,
            "--batch-size",
            batch_size,
        ])
    };
    let one = measure("1").unwrap();
    assert_eq!(one, measure("4").unwrap());
    let (loss, perplexity) = (
        one["loss"].as_f64().unwrap(),
        one["perplexity"].as_f64().unwrap(),
    );
    assert!((perplexity - loss.exp()).abs() < 1e-9 * perplexity);
    assert_eq!(one["rows"], 7);
    std::fs::write(&data, "{\"foo\":1}\n").unwrap();
    let refused = measure("1").unwrap_err();
    assert!(refused.contains("line 1"), "{refused}");
}

#[test]
fn exported_models_answer_as_the_model_itself_and_replace_nothing_unasked() {
    let model = TinyModel::create();
    let path = model.path().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let answer = |model: &str| {
        run(&[
            "generate",
            "--model",
            model,
            "--prompt",
            "ahoy",
            "--temperature",
            "0",
            "--max-tokens",
            "12",
        ])
        .unwrap()["text"]
            .clone()
    };
    for (format, name) in [
        ("merged_safetensors", "folder"),
        ("gguf_merged", "file.gguf"),
    ] {
        let output = folder.path().join(name).display().to_string();
        let export = |more: &[&str]| {
            let mut arguments = vec!["export", "--model", &path, "--output", &output];
            arguments.extend(["--format", format, "--type", "f32"]);
            arguments.extend(more);
            run(&arguments)
        };
        let written = export(&[]).unwrap();
        assert_eq!(written["format"], format);
        assert!(written["size_bytes"].as_u64().unwrap() > 100_000);
        assert_eq!(answer(&output), answer(&path));
        let refused = export(&[]).unwrap_err();
        assert!(refused.contains("is there already"), "{refused}");
        export(&["--overwrite"]).unwrap();
    }
    let output = folder.path().join("adapter.gguf").display().to_string();
    let without_adapter = run(&[
        "export",
        "--model",
        &path,
        "--format",
        "gguf_lora",
        "--output",
        &output,
    ]);
    assert!(without_adapter.unwrap_err().contains("--adapter"));
}
