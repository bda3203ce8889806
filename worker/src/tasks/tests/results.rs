//! What jobs have made, asked and measured again: whole models, and adapters that bring weights of the model along.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use trainyard_shared::message::{ArtifactFile, FromWorker};

use super::harness::{Worker, start, worker_with_model};
use super::inference::answer;
use crate::tasks::transfers::test_server::{Reply, TestServer};

type Files = Vec<(ArtifactFile, PathBuf)>;

fn rows() -> String {
    let chat = |row: usize| {
        json!({"messages": [{"role": "user", "content": format!("what is cargo {row}")},
                            {"role": "assistant", "content": "aye"}]})
    };
    (0..2).map(|row| format!("{}\n", chat(row))).collect()
}

/// Trains with this config and gives the result's files.
async fn result_of(worker: &Worker, config: Value) -> Files {
    let server = TestServer::start(|_, _| Reply::new(200, rows())).await;
    let job = |data: &mut Value| {
        data["base_model"] = json!({"huggingface_id": "yard/tiny"});
        data["config"] = config;
    };
    worker.give(start((7, 1), &server.url("/data"), job)).await;
    worker.idle().await;
    let files = worker.entries().into_iter().find_map(|entry| {
        matches!(entry.message, FromWorker::JobCompleted(_)).then_some(entry.files)
    });
    let files = files.unwrap_or_else(|| panic!("{:?}", worker.reports()));
    let files = files.into_iter().map(|file| (file.artifact, file.path));
    files.collect()
}

/// Serves files; gives the `download_urls` too.
async fn serve(files: &Files) -> (TestServer, Value) {
    let stored = files.clone();
    let server = TestServer::start(move |_, request| {
        let key = request.target.trim_start_matches('/');
        let (_, path) = stored.iter().find(|(file, _)| file.key == key).unwrap();
        Reply::new(200, fs::read(path).unwrap())
    })
    .await;
    let urls = files.iter().map(|(file, _)| {
        let name = file.key.rsplit('/').next();
        json!({"key": name, "url": server.url(&format!("/{}", file.key)),
               "sha256": file.sha256, "size_bytes": file.size_bytes})
    });
    let urls = urls.collect();
    (server, urls)
}

/// What the result says to a chat that it was taught.
async fn answer_of(worker: &Worker, files: &Files) -> Option<String> {
    let (_server, urls) = serve(files).await;
    let answer = answer(worker, "trained", |data| {
        data["messages"][0]["content"] = json!("what is cargo 1");
        data["model_path"] = json!("models/job-7/final/");
        data["download_urls"] = urls;
    });
    answer.await.text
}

#[actix_rt::test]
async fn the_result_of_a_job_that_trained_all_weights_answers_as_a_model_of_its_own() {
    let worker = worker_with_model();
    let config = json!({
        "use_peft": false, "learning_rate": 0.01, "epochs": 8, "batch_size": 2, "packing": false, "seed": 7
    });
    let files = result_of(&worker, config).await;
    let names: Vec<&str> = files
        .iter()
        .filter_map(|(file, _)| file.key.strip_prefix("models/job-7/final/"))
        .collect();
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!(answer_of(&worker, &files).await.as_deref(), Some("aye"));
    let base = answer(&worker, "base", |_| {}).await;
    assert_ne!(base.text.as_deref(), Some("aye"));

    // The same files as a base model of the worker's own.
    let place = worker.state.path().join("models/yard/trained");
    fs::create_dir_all(&place).unwrap();
    for (file, path) in &files {
        fs::copy(path, place.join(file.key.rsplit('/').next().unwrap())).unwrap();
    }
    let placed = answer(&worker, "placed", |data| {
        data["messages"][0]["content"] = json!("what is cargo 1");
        data["huggingface_id"] = json!("yard/trained");
    })
    .await;
    assert_eq!(placed.text.as_deref(), Some("aye"));
}

#[actix_rt::test]
async fn an_adapter_that_brings_modules_along_answers_with_them_and_leaves_the_base_model_as_it_is()
{
    let worker = worker_with_model();
    let before = answer(&worker, "before", |_| {}).await;
    let config = json!({
        "modules_to_save": ["lm_head"], "learning_rate": 0.02, "epochs": 16, "batch_size": 2, "packing": false,
        "seed": 7
    });
    let files = result_of(&worker, config).await;
    assert_eq!(answer_of(&worker, &files).await.as_deref(), Some("aye"));
    let after = answer(&worker, "after", |_| {}).await;
    assert_eq!(after.text, before.text);
}
