//! The whole main job: enrol a real worker, submit a LoRA job, watch it live, download the adapter.

use safetensors::SafeTensors;
use serde_json::{Value, json};
use trainyard_tests::model::{TINY_MODEL_ID, adapter_keys};
use trainyard_tests::scripted_worker::job_with_status;
use trainyard_tests::{Client, Platform, Socket, TinyModel, Worker, dataset};

/// A LoRA job on the tiny model that learns quickly.
fn learning_job(dataset_id: i64) -> Value {
    json!({
        "name": "aye aye",
        "dataset_id": dataset_id,
        "base_model": {"huggingface_id": TINY_MODEL_ID},
        "config": {
            "epochs": 2, "batch_size": 4, "learning_rate": 0.01, "max_length": 128,
            "lora_r": 8, "packing": false, "lr_scheduler_type": "constant",
            "save_steps": 10, "logging_steps": 1
        }
    })
}

/// Follows the job on a dashboard's socket to its end; the updates that carried a step.
async fn watch(dashboard: &mut Socket, job_id: i64) -> Vec<Value> {
    let (_, passed) = dashboard
        .receive_until(|message| {
            message["type"] == "job_update"
                && message["job_id"] == job_id
                && message["data"]["status"] == "completed"
        })
        .await;
    passed
        .into_iter()
        .filter(|message| message["type"] == "job_update" && message["data"]["step"].is_u64())
        .collect()
}

async fn started() -> (Platform, TinyModel, Worker, Client, i64) {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let models = TinyModel::create();
    let key = admin.enrollment_key(json!({"max_uses": 1})).await;
    let worker = Worker::start(&platform, &models, &key);
    let worker_id = worker.ready(&admin).await;
    (platform, models, worker, admin, worker_id)
}

#[tokio::test]
async fn lora_job_trains_on_an_enrolled_worker_and_its_loss_falls_while_a_dashboard_watches() {
    let (platform, _models, worker, admin, worker_id) = started().await;
    let mut dashboard = platform.dashboard(&admin).await;

    let dataset_id = admin.dataset("chats", &dataset::chats(40)).await;
    let job_id = admin.job(learning_job(dataset_id)).await;
    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;

    let steps = watch(&mut dashboard, job_id).await;
    let first = steps.first().expect("steps were shown").clone();
    let last = steps.last().expect("steps were shown").clone();
    assert!(
        last["data"]["loss"].as_f64().unwrap() < first["data"]["loss"].as_f64().unwrap() * 0.7,
        "the loss does not fall: {first} {last}"
    );
    let order: Vec<u64> = steps
        .iter()
        .filter_map(|update| update["data"]["step"].as_u64())
        .collect();
    assert!(order.is_sorted(), "shown steps never go back: {order:?}");
    assert_eq!(order.last(), Some(&20));

    let job = admin.get(&format!("/api/jobs/{job_id}")).await.ok();
    assert_eq!(job["status"], "completed");
    assert_eq!(job["attempt"], 1);
    assert_eq!(job["worker_id"], worker_id);
    assert_eq!(job["progress"]["total_steps"], 20);

    let metrics = admin.get(&format!("/api/jobs/{job_id}/metrics")).await.ok();
    let points = metrics["points"].as_array().expect("points");
    let stored: Vec<u64> = points
        .iter()
        .filter_map(|point| point["step"].as_u64())
        .collect();
    assert_eq!(stored, (1..=20).collect::<Vec<_>>(), "one point a step");

    let checkpoints = admin
        .get(&format!("/api/jobs/{job_id}/checkpoints"))
        .await
        .ok();
    let first_checkpoint = &checkpoints["items"][0];
    assert_eq!(first_checkpoint["step"], 10, "{checkpoints}");
    assert_eq!(first_checkpoint["verified"], true, "{checkpoints}");

    assert_eq!(worker.process.output().matches("panicked").count(), 0);
}

#[tokio::test]
async fn finished_job_offers_its_adapter_in_the_form_that_peft_reads() {
    let (_platform, _models, _worker, admin, _) = started().await;
    let dataset_id = admin.dataset("chats", &dataset::chats(12)).await;
    let job_id = admin.job(learning_job(dataset_id)).await;
    job_with_status(&admin, job_id, "completed").await;

    let artifacts = admin
        .get(&format!("/api/jobs/{job_id}/artifacts"))
        .await
        .ok();
    let paths: Vec<&str> = artifacts["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|artifact| artifact["path"].as_str())
        .collect();
    for file in [
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
    ] {
        assert!(paths.contains(&file), "{file} is not among {paths:?}");
    }

    let path = format!("/api/jobs/{job_id}/artifacts/adapter_config.json");
    let config: Value = serde_json::from_slice(&admin.download(&path).await).expect("JSON");
    assert_eq!(config["peft_type"], "LORA");
    assert_eq!(config["r"], 8);
    assert_eq!(config["lora_alpha"], 16);
    assert_eq!(config["base_model_name_or_path"], TINY_MODEL_ID);

    let path = format!("/api/jobs/{job_id}/artifacts/adapter_model.safetensors");
    let bytes = admin.download(&path).await;
    let adapter = SafeTensors::deserialize(&bytes).expect("a whole safetensors file");
    let mut names: Vec<String> = adapter.names().into_iter().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, adapter_keys());
    let changed = adapter
        .tensor("base_model.model.model.layers.0.mlp.down_proj.lora_B.weight")
        .expect("it was listed");
    assert!(
        changed.data().iter().any(|byte| *byte != 0),
        "B starts at zero and must have moved"
    );
}

#[tokio::test]
async fn stopped_job_keeps_a_checkpoint_and_resumes_from_it_to_the_end() {
    let (platform, _models, _worker, admin, _) = started().await;
    let mut dashboard = platform.dashboard(&admin).await;
    let dataset_id = admin.dataset("chats", &dataset::chats(240)).await;
    let mut job = learning_job(dataset_id);
    job["config"]["save_steps"] = json!(1000);
    let job_id = admin.job(job).await;

    dashboard
        .send(json!({"type": "subscribe_job", "job_id": job_id}))
        .await;
    dashboard
        .receive_until(|message| {
            message["data"]["step"]
                .as_u64()
                .is_some_and(|step| step >= 3)
        })
        .await;
    admin
        .post(&format!("/api/jobs/{job_id}/stop"), json!({}))
        .await
        .ok();
    job_with_status(&admin, job_id, "stopped").await;
    let checkpoints = admin
        .get(&format!("/api/jobs/{job_id}/checkpoints"))
        .await
        .ok();
    let stopped_at = checkpoints["items"][0]["step"]
        .as_u64()
        .expect("a checkpoint");
    assert!((3..120).contains(&stopped_at), "{checkpoints}");

    admin
        .post(&format!("/api/jobs/{job_id}/resume"), json!({}))
        .await
        .ok();
    let (resumed, _) = dashboard
        .receive_until(|message| {
            message["data"]["status"] == "running"
                && message["data"]["attempt"] == 2
                && message["data"]["step"].is_u64()
        })
        .await;
    assert!(
        resumed["data"]["step"].as_u64().unwrap() > stopped_at,
        "{resumed}"
    );
    let job = job_with_status(&admin, job_id, "completed").await;
    assert_eq!(job["attempt"], 2);
    let metrics = admin.get(&format!("/api/jobs/{job_id}/metrics")).await.ok();
    let points = metrics["points"].as_array().expect("points");
    let steps: Vec<u64> = points
        .iter()
        .filter_map(|point| point["step"].as_u64())
        .collect();
    assert_eq!(
        steps,
        (1..=120).collect::<Vec<_>>(),
        "one value a step across both attempts"
    );
}

#[tokio::test]
async fn missing_model_fails_the_job_with_its_name_and_the_worker_takes_the_next_one() {
    let (_platform, _models, worker, admin, _) = started().await;
    let dataset_id = admin.dataset("chats", &dataset::chats(8)).await;
    let mut missing = learning_job(dataset_id);
    missing["base_model"]["huggingface_id"] = json!("yard/not-here");
    let job_id = admin.job(missing).await;
    let job = job_with_status(&admin, job_id, "failed").await;
    assert_eq!(job["failure_kind"], "model_unavailable", "{job}");
    assert!(
        job["error"].as_str().unwrap().contains("yard/not-here"),
        "{job}"
    );

    let next = admin.job(learning_job(dataset_id)).await;
    job_with_status(&admin, next, "completed").await;
    assert!(!worker.process.output().contains("panicked"));
}

#[tokio::test]
async fn unknown_and_impossible_settings_of_a_job_are_refused_by_field() {
    let platform = Platform::start().await;
    let admin = platform.admin().await;
    let dataset_id = admin.dataset("chats", &dataset::chats(4)).await;
    let mut job = learning_job(dataset_id);
    job["config"]["learning_rat"] = json!(0.1);
    job["config"]["batch_size"] = json!(0);
    let error = admin.post("/api/jobs", job).await.refused(400);
    assert_eq!(error["code"], "invalid_request");
    let details = error["details"].as_array().expect("details by field");
    let of = |name: &str| {
        details
            .iter()
            .find(|detail| {
                detail["field"]
                    .as_str()
                    .is_some_and(|field| field.ends_with(name))
            })
            .unwrap_or_else(|| panic!("{name} is not named: {error}"))
    };
    assert!(
        of("learning_rat")["hint"]
            .as_str()
            .unwrap()
            .contains("learning_rate")
    );
    assert!(of("batch_size")["message"].is_string());
}
