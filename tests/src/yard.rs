//! A platform with a real worker that has trained a job, for tests of what can be done with the result.

use serde_json::{Value, json};

use crate::model::TINY_MODEL_ID;
use crate::process::binary;
use crate::scripted_worker::job_with_status;
use crate::{Client, Platform, TinyModel, Worker, dataset, eventually};

/// A platform, and a worker that has trained a job on forty short chats.
pub struct Yard {
    /// The platform.
    pub platform: Platform,
    /// The worker's base models.
    pub models: TinyModel,
    /// The worker.
    pub worker: Worker,
    /// The administrator.
    pub admin: Client,
    /// What the job was trained on.
    pub dataset_id: i64,
    /// The job, which has completed.
    pub job_id: i64,
}

impl Yard {
    /// Starts both and trains.
    pub async fn with_a_trained_job() -> Self {
        let platform = Platform::start_with(&[("WORKER_HEARTBEAT_TIMEOUT", "60")]).await;
        let admin = platform.admin().await;
        let models = TinyModel::create();
        let key = admin.enrollment_key(json!({"max_uses": 1})).await;
        let worker = Worker::start(&platform, &models, &key);
        worker.ready(&admin).await;
        let dataset_id = admin.dataset("chats", &dataset::chats(40)).await;
        let job_id = admin
            .job(json!({
                "dataset_id": dataset_id, "base_model": {"huggingface_id": TINY_MODEL_ID},
                "config": {
                    "epochs": 6, "batch_size": 4, "learning_rate": 0.01, "max_length": 128, "lora_r": 8,
                    "packing": false, "lr_scheduler_type": "constant", "logging_steps": 10
                }
            }))
            .await;
        job_with_status(&admin, job_id, "completed").await;
        Self {
            platform,
            models,
            worker,
            admin,
            dataset_id,
            job_id,
        }
    }

    /// Asks `model` and waits for the answer, which must be a good one.
    pub async fn answer(&self, model: &str, more: Value) -> Value {
        let accepted = self
            .admin
            .post("/api/inference", asked(model, more))
            .await
            .ok();
        let id = accepted["inference_id"].as_str().expect("it has an id");
        let path = format!("/api/inference/{id}");
        eventually("the answer", || async {
            let shown = self.admin.get(&path).await.ok();
            assert!(shown["status"] != "failed", "{shown}");
            (shown["status"] == "completed").then_some(shown)
        })
        .await
    }

    /// Has a model measured on the job's data set and waits for the figures.
    pub async fn evaluation(&self, more: Value) -> Value {
        let mut body = json!({"dataset_id": self.dataset_id});
        let fields = more.as_object().expect("fields").clone();
        body.as_object_mut().expect("an object").extend(fields);
        let made = self.admin.post("/api/evaluations", body).await.ok();
        let path = format!("/api/evaluations/{}", made["id"]);
        eventually("the figures", || async {
            let shown = self.admin.get(&path).await.ok();
            assert!(shown["status"] != "failed", "{shown}");
            (shown["status"] == "completed").then_some(shown)
        })
        .await
    }

    /// Runs `trainyard` as the administrator; its standard output, once it has succeeded.
    pub async fn command(&self, arguments: &[&str]) -> String {
        let made = self
            .admin
            .post("/api/api-tokens", json!({"name": "cli"}))
            .await
            .ok();
        let output = tokio::process::Command::new(binary("trainyard"))
            .args(["--platform", &self.platform.url()])
            .args(arguments)
            .env("TRAINYARD_TOKEN", made["token"].as_str().expect("a token"))
            .output()
            .await
            .expect("it runs");
        let printed = String::from_utf8(output.stdout).expect("text");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}\n{complaint}");
        printed
    }

    /// The name of the job's model.
    pub fn adapter(&self) -> String {
        format!("job-{}", self.job_id)
    }
}

/// A chat of one turn, greedy.
pub fn asked(model: &str, more: Value) -> Value {
    let mut body = json!({
        "model": model, "messages": [{"role": "user", "content": "load car 3"}], "temperature": 0
    });
    let fields = more.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}
