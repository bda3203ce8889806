//! Base models that claim what cannot be, or hold what is no number: refused by name, or ended in order, in whole
//! processes.

use std::io::{Seek, SeekFrom, Write};

use serde_json::{Value, json};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::{Client, Platform, TinyModel, Worker, dataset, eventually};

/// A platform and a worker that have that model.
async fn yard(model: &TinyModel) -> (Platform, Worker, Client) {
    let models = model.models_dir().display().to_string();
    let settings = [("MODELS_DIR", models.as_str()), ("HF_HUB_OFFLINE", "true")];
    let platform = Platform::start_with(&settings).await;
    let admin = platform.admin().await;
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start(&platform, model, &key);
    worker.ready(&admin).await;
    (platform, worker, admin)
}

async fn job(admin: &Client) -> i64 {
    let dataset_id = admin.dataset("chats", &dataset::chats(8)).await;
    let job = json!({
        "dataset_id": dataset_id, "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {"lora_r": 4, "logging_steps": 1}
    });
    admin.job(job).await
}

async fn failed(admin: &Client, path: String) -> Value {
    eventually("the session to fail", async || {
        let shown = admin.get(&path).await.ok();
        (shown["status"] == "failed").then_some(shown)
    })
    .await
}

#[tokio::test]
async fn a_model_of_two_thousand_million_layers_is_refused_by_the_name_of_the_field() {
    let model = TinyModel::create();
    let file = model.path().join("config.json");
    let config = std::fs::read(&file).expect("a config");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["num_hidden_layers"] = json!(2_000_000_000);
    std::fs::write(&file, config.to_string()).expect("the config can be written");
    let (platform, _worker, admin) = yard(&model).await;

    let job = job_with_status(&admin, job(&admin).await, "failed").await;
    let error = job["error"].as_str().expect("an error");
    assert!(error.contains("num_hidden_layers"), "{error}");
    assert_eq!(job["failure_kind"], "model_unavailable", "{job}");

    let dataset_id = admin.dataset("more", &dataset::chats(8)).await;
    let volunteers = json!({"name": "tales", "base_model": TINY_MODEL_ID});
    let workers = json!({
        "dataset_id": dataset_id, "base_model": {"huggingface_id": TINY_MODEL_ID}, "config": {},
        "rounds": 1, "local_steps": 1
    });
    for (path, body) in [
        ("/api/coordinators", volunteers),
        ("/api/federated", workers),
    ] {
        let made = admin.post(path, body).await.ok();
        let shown = failed(&admin, format!("{path}/{}", made["id"])).await;
        let error = shown["error"].as_str().expect("an error");
        assert!(error.contains("num_hidden_layers"), "{path}: {error}");
    }
    assert_eq!(platform.output().matches("panicked").count(), 0);
}

#[tokio::test]
async fn a_job_on_weights_that_are_no_numbers_ends_as_diverged_and_leaves_no_result() {
    let model = TinyModel::create();
    let file = model.path().join("model.safetensors");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(file)
        .expect("the weights");
    // The last tensor is the norm in front of the logits.
    file.seek(SeekFrom::End(-256)).expect("the norm is there");
    file.write_all(&f32::NAN.to_le_bytes().repeat(64))
        .expect("the weights can be written");
    let (_platform, worker, admin) = yard(&model).await;

    let id = job(&admin).await;
    let job = job_with_status(&admin, id, "failed").await;
    assert_eq!(job["failure_kind"], "diverged", "{job}");
    let made = admin.get(&format!("/api/jobs/{id}/artifacts")).await.ok();
    assert_eq!(made["items"], json!([]));
    let metrics = admin.get(&format!("/api/jobs/{id}/metrics")).await.ok();
    let points = metrics["points"].as_array().expect("points");
    assert!(
        points.iter().all(|point| point["loss"].is_null()),
        "{metrics}"
    );
    worker.ready(&admin).await;
}
