//! What checks bring about: enrolled workers, dashboards, jobs that run. Whatever goes wrong on the way stands in
//! the way of the check; it breaks no rule but that of the check which looks at it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;
use uuid::Uuid;

use super::line::{Heard, Line};
use super::rest::{Rest, WsToken, id_of};
use super::{Pace, Target, Timings};
use crate::conformance::report::{Outcome, Problem, needed};
use crate::conformance::socket::NotOpened;

/// The rows of the data set that jobs train on.
pub const ROWS: &str = "{\"messages\": [{\"role\": \"user\", \"content\": \"load car 1\"}, {\"role\": \"assistant\", \"content\": \"aye aye\"}]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"load car 2\"}, {\"role\": \"assistant\", \"content\": \"aye aye\"}]}\n";
/// The base model that jobs name: that of the source document.
pub const BASE_MODEL: &str = "meta-llama/Llama-3.1-8B";

/// The platform under judgement and what the judge has there.
pub struct Yard {
    target: Target,
    pub pace: Pace,
    pub rest: Rest,
    pub heard: Heard,
    /// A token that was fetched at the beginning, with the time.
    pub aging: Option<(WsToken, Instant)>,
    /// Workers that are idle.
    spare: Vec<Worker>,
    dataset: Option<i64>,
    /// Workers that were deleted, or could not be.
    gone: BTreeSet<i64>,
    made: Made,
}

/// What has to be removed at the end.
#[derive(Default)]
struct Made {
    key: Option<i64>,
    jobs: Vec<i64>,
}

/// Who a played worker is.
#[derive(Debug, Clone)]
pub struct Identity {
    pub uuid: String,
    pub key: String,
    /// Its number on the platform.
    pub number: i64,
}

/// A connected and registered worker.
pub struct Worker {
    pub line: Line,
    pub identity: Identity,
}

/// A job that a played worker has got.
pub struct Job {
    pub worker: Worker,
    pub id: i64,
    /// The `start_training` with which it came.
    pub start: Value,
}

impl Yard {
    /// Nothing is played yet.
    pub fn new(target: Target, pace: Pace) -> Self {
        let mut base = target.url.clone();
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", target.url.path()));
        }
        let target = Target {
            url: base.clone(),
            ..target
        };
        Self {
            rest: Rest::new(base, target.token.clone()),
            target,
            pace,
            heard: Heard::default(),
            aging: None,
            spare: Vec::new(),
            dataset: None,
            gone: BTreeSet::new(),
            made: Made::default(),
        }
    }

    /// Fetches the token whose lifetime is looked at when the other checks are done.
    pub async fn keep_a_token_to_age(&mut self) {
        if self.pace.timings.is_some() {
            self.aging = self
                .rest
                .ws_token()
                .await
                .ok()
                .map(|token| (token, Instant::now()));
        }
    }

    /// The platform's timings, for the slow checks.
    pub fn timings(&self) -> Outcome<Timings> {
        let why = "slow: only with --timing";
        self.pace
            .timings
            .clone()
            .ok_or_else(|| Problem::Blocked(why.to_owned()))
    }

    /// The address of a WebSocket of the platform.
    pub fn socket_address(&self, path: &str, query: &[(&str, &str)]) -> Url {
        let mut url = self.target.url.clone();
        let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
        url.set_scheme(scheme)
            .expect("http and https may become ws and wss");
        let path = format!("{}{path}", url.path());
        url.set_path(&path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// The key with which workers enrol.
    pub async fn enrollment_key(&mut self) -> Outcome<String> {
        if let Some(key) = &self.target.enrollment_key {
            return Ok(key.expose().to_owned());
        }
        let body = json!({"name_prefix": "conformance", "expires_in_seconds": 86_400});
        let made = self.rest.post("api/enrollment-keys", &body).await?;
        self.made.key = made["id"].as_i64();
        let key = made["key"]
            .as_str()
            .ok_or_else(|| Problem::Blocked("POST /api/enrollment-keys gave no key".to_owned()))?;
        self.target.enrollment_key = Some(key.into());
        Ok(key.to_owned())
    }

    /// A worker's connection on which nothing is said yet.
    pub async fn worker_line(&self, uuid: &str) -> Outcome<Line> {
        self.open("ws/worker", &[("worker_uuid", uuid)])
            .await
            .map_err(|refused| {
                let expected = "the upgrade of /ws/worker?worker_uuid=… to a WebSocket";
                Problem::broken(expected, refused.text)
            })
    }

    /// A connection to any path.
    pub async fn open(&self, path: &str, query: &[(&str, &str)]) -> Result<Line, NotOpened> {
        let url = self.socket_address(path, query);
        Line::open(url.as_str(), &self.heard).await
    }

    /// Enrols a new worker; its connection is authenticated.
    ///
    /// # Errors
    /// It does not work as the source document says.
    pub async fn enrol(&mut self) -> Outcome<(Line, Identity)> {
        let key = self.enrollment_key().await?;
        let uuid = Uuid::new_v4().to_string();
        let mut line = self.worker_line(&uuid).await?;
        line.say(&authenticate(&uuid, &key));
        let within = self.pace.answer_within;
        let complete = line.wait_for_type("enrollment_complete", within).await?;
        let data = &complete["data"];
        let (Some(key), Some(number)) = (data["api_key"].as_str(), data["worker_id"].as_i64())
        else {
            let expected = "enrollment_complete with data.api_key and data.worker_id";
            return Err(Problem::broken(expected, complete.to_string()));
        };
        let identity = Identity {
            uuid,
            key: key.to_owned(),
            number,
        };
        line.wait_for_type("authenticated", within).await?;
        Ok((line, identity))
    }

    /// A new connection of an enrolled worker, authenticated with its own key.
    pub async fn enter(&self, identity: &Identity) -> Outcome<Line> {
        let mut line = self.worker_line(&identity.uuid).await?;
        line.say(&authenticate(&identity.uuid, &identity.key));
        line.wait_for_type("authenticated", self.pace.answer_within)
            .await?;
        Ok(line)
    }

    /// A worker that is connected, registered and idle: one that was given back, where there is one.
    pub async fn worker(&mut self) -> Outcome<Worker> {
        let Some(mut worker) = self.spare.pop() else {
            return self.newcomer().await;
        };
        if !worker.line.is_open() {
            worker.line = needed(self.enter(&worker.identity)).await?;
            worker.register();
        }
        worker.line.forget_the_past();
        Ok(worker)
    }

    /// A worker that is the only one of those that are played: the platform has no choice.
    pub async fn only_worker(&mut self) -> Outcome<Worker> {
        let worker = self.worker().await?;
        self.spare.clear();
        let mut others = self.heard.enrolled();
        others.retain(|other| *other != worker.identity.number && self.gone.insert(*other));
        let mut are_gone = true;
        for other in others {
            let deleted = self.rest.delete(&format!("api/workers/{other}")).await;
            are_gone &= deleted.is_ok();
        }
        if !are_gone {
            // A user who may delete no workers has closed their connections: the platform is given time to see it.
            tokio::time::sleep(self.pace.quiet_for).await;
        }
        Ok(worker)
    }

    /// A worker that has just enrolled and registered.
    pub async fn newcomer(&mut self) -> Outcome<Worker> {
        let (line, identity) = needed(self.enrol()).await?;
        let worker = Worker { line, identity };
        worker.register();
        Ok(worker)
    }

    /// Gives a worker back that is idle.
    pub fn give_back(&mut self, worker: Worker) {
        worker.line.wake_up();
        self.spare.push(worker);
    }

    /// A dashboard of the user who logged in.
    pub async fn dashboard(&self) -> Outcome<Line> {
        let token = self.rest.ws_token().await?;
        self.dashboard_with(&token).await.map_err(|refused| {
            let expected = "the upgrade of /ws/user/{user_id}?token=… with a fresh token";
            Problem::broken(expected, refused.text)
        })
    }

    /// A dashboard's connection with any token.
    pub async fn dashboard_with(&self, token: &WsToken) -> Result<Line, NotOpened> {
        let path = format!("ws/user/{}", token.user);
        self.open(&path, &[("token", &token.token)]).await
    }

    /// The data set of all jobs.
    pub async fn dataset(&mut self) -> Outcome<i64> {
        if let Some(id) = self.dataset {
            return Ok(id);
        }
        let id = self.rest.dataset(ROWS).await?;
        self.dataset = Some(id);
        Ok(id)
    }

    /// Submits a job for that worker and returns its id.
    pub async fn submit(&mut self, worker: &Worker) -> Outcome<i64> {
        let body = json!({
            "name": "conformance",
            "dataset_id": self.dataset().await?,
            "base_model": {"huggingface_id": BASE_MODEL},
            "config": training_config(),
            "worker_id": worker.identity.number,
        });
        let id = id_of(&self.rest.post("api/jobs", &body).await?, "POST /api/jobs")?;
        self.made.jobs.push(id);
        Ok(id)
    }

    /// A job that a played worker has got and not started yet.
    pub async fn assigned(&mut self) -> Outcome<Job> {
        let mut worker = self.worker().await?;
        let id = self.submit(&worker).await?;
        let within = self.pace.answer_within;
        let start = worker
            .line
            .wait_for("start_training of the submitted job", within, |message| {
                message["type"] == "start_training" && message["job_id"] == id
            })
            .await?;
        worker.line.work_on(Some(id));
        Ok(Job { worker, id, start })
    }

    /// A job that a played worker has started, and a dashboard that has subscribed to it before.
    pub async fn running(&mut self) -> Outcome<(Job, Line)> {
        needed(async {
            let job = self.assigned().await?;
            let dashboard = self.watching(job.id).await?;
            job.started();
            Ok((job, dashboard))
        })
        .await
    }

    /// A dashboard that has subscribed to a job.
    pub async fn watching(&self, job: i64) -> Outcome<Line> {
        let dashboard = self.dashboard().await?;
        dashboard.say(&json!({"type": "subscribe_job", "job_id": job}));
        Ok(dashboard)
    }

    /// Ends a job well, as far as the worker is concerned, and gives the worker back.
    pub fn finish(&mut self, job: Job) {
        job.completed();
        self.give_back(job.worker);
    }

    /// Removes what was made, as far as that is allowed.
    pub async fn clear_away(&mut self) {
        let made = std::mem::take(&mut self.made);
        // Best effort: the findings do not depend on it, and not every platform has these routes.
        for job in made.jobs {
            let _ = self.rest.stop_job(job).await;
            let _ = self.rest.delete(&format!("api/jobs/{job}")).await;
        }
        for worker in self.heard.enrolled() {
            let _ = self.rest.delete(&format!("api/workers/{worker}")).await;
        }
        if let Some(dataset) = self.dataset {
            let _ = self.rest.delete(&format!("api/datasets/{dataset}")).await;
        }
        if let Some(key) = made.key {
            let _ = self
                .rest
                .delete(&format!("api/enrollment-keys/{key}"))
                .await;
        }
    }

    /// How long to wait for an answer.
    pub fn within(&self) -> Duration {
        self.pace.answer_within
    }
}

impl Worker {
    fn register(&self) {
        self.line.say(&register(&self.identity.uuid));
        self.line.say(&heartbeat(&self.identity.uuid));
    }
}

impl Job {
    /// Says something about the job.
    pub fn say(&self, kind: &str, data: Value) {
        self.worker.line.say(&self.message(kind, data));
    }

    /// A message about the job, in the source document's form.
    pub fn message(&self, kind: &str, data: Value) -> Value {
        json!({"type": kind, "worker_id": self.worker.identity.uuid, "job_id": self.id, "data": data})
    }

    /// `job_started`
    pub fn started(&self) {
        self.say("job_started", json!({"total_steps": 3000}));
    }

    /// `training_progress` of the source document, at `step`.
    pub fn progress(&self, step: u64, loss: Value) {
        let data = json!({
            "epoch": 2, "step": step, "total_steps": 3000, "loss": loss, "learning_rate": 0.000018,
            "grad_norm": 1.24, "throughput": 42.5, "perplexity": 1.41, "token_throughput": 64000,
            "loss_ema": 0.35, "gpu_utilization": 98, "gpu_memory_used": 71.3, "cpu_utilization": 15.0,
            "ram_used": 8.2, "eta_seconds": 3600
        });
        self.say("training_progress", data);
    }

    /// `checkpoint_saved`
    pub fn checkpoint(&self, step: u64) {
        let path = format!("checkpoints/job-{}/step-{step}/", self.id);
        let metrics = json!({"loss": 0.4521, "eval_loss": 0.5012});
        self.say(
            "checkpoint_saved",
            json!({"step": step, "epoch": 1, "path": path, "metrics": metrics}),
        );
    }

    /// `job_completed`
    pub fn completed(&self) {
        self.worker.line.work_on(None);
        let data = json!({
            "final_loss": 0.1823, "total_steps": 3000, "training_time_seconds": 7200,
            "s3_prefix": format!("models/job-{}/final/", self.id)
        });
        self.say("job_completed", data);
    }

    /// `job_failed` at step 450, its last checkpoint at step 400.
    pub fn failed(&self, error: &str) {
        self.worker.line.work_on(None);
        let last = format!("checkpoints/job-{}/step-400/", self.id);
        self.say(
            "job_failed",
            json!({"error": error, "step": 450, "last_checkpoint": last}),
        );
    }
}

/// The training config of the source document's example.
pub fn training_config() -> Value {
    json!({
        "epochs": 3, "batch_size": 4, "learning_rate": 0.0002, "max_length": 1024,
        "mixed_precision": "bf16", "use_peft": true, "lora_r": 16, "save_steps": 500, "logging_steps": 10
    })
}

/// `authenticate`
pub fn authenticate(uuid: &str, key: &str) -> Value {
    json!({"type": "authenticate", "api_key": key, "worker_uuid": uuid})
}

/// `worker_register` of the source document's example.
pub fn register(uuid: &str) -> Value {
    json!({
        "type": "worker_register",
        "worker_id": uuid,
        "data": {
            "gpu_available": true, "gpu_name": "NVIDIA A100-SXM4-80GB", "gpu_memory_gb": 80.0,
            "max_batch_size": 32, "worker_type": "both",
            "benchmark": {
                "gpu_score": 95.2, "tflops": 82.6, "memory_bandwidth_gbps": 1008.0,
                "max_batch_size_tested": 256, "benchmark_version": "1.0.0",
                "benchmark_duration_seconds": 45.2, "is_estimated": false
            }
        }
    })
}

/// `heartbeat` of an idle worker.
pub fn heartbeat(uuid: &str) -> Value {
    json!({"type": "heartbeat", "worker_id": uuid, "status": "idle"})
}
