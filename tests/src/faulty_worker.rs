//! A worker of another make, written from the source document alone, that does everything as that says but for one
//! fault of the test's choice. It trains nothing; it only says so.

mod chats;

use std::sync::Mutex;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};
use uuid::Uuid;

use chats::{BATCH_INTERVAL, Chat};

/// Between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Between two `worker_metrics`.
pub const METRICS_INTERVAL: Duration = Duration::from_millis(300);
/// The first delay before it connects again.
pub const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// What that doubles up to.
pub const LONGEST_RECONNECT_DELAY: Duration = Duration::from_secs(3);

/// One step of what it calls training.
const STEP: Duration = Duration::from_millis(20);
/// Steps of an epoch.
const STEPS_PER_EPOCH: u64 = 2;

/// What the worker does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It forgets its own key and enrols again on every connection.
    ForgetsKey,
    /// It registers without waiting for `authenticated`.
    RegistersEarly,
    /// It does not register again after it has reconnected.
    RegistersOnce,
    /// Its heartbeats do not say what it does.
    HeartbeatWithoutStatus,
    /// It sends no heartbeats while it trains.
    BusyHeart,
    /// Its metrics come too seldom.
    RareMetrics,
    /// It answers no ping.
    NoPong,
    /// Its pong never says that it is busy.
    NeverBusy,
    /// It closes the connection when it gets a type that it does not know.
    UnknownTypeCloses,
    /// It ends when it gets what is no JSON.
    MalformedCloses,
    /// It does not fetch the data set.
    IgnoresData,
    /// It never says `job_started`.
    NoJobStarted,
    /// It reports every second step only.
    SkipsSteps,
    /// It names the loss otherwise.
    OtherNameForLoss,
    /// It saves no checkpoints but the one when it is stopped.
    NoCheckpoints,
    /// Its `job_completed` does not say where the result lies.
    CompletedWithoutPrefix,
    /// It saves a checkpoint after the end.
    CheckpointAfterEnd,
    /// It starts a job again that it has.
    StartsTwice,
    /// It stops without a checkpoint.
    StopsWithoutCheckpoint,
    /// It is busy for ever after it was stopped.
    BusyAfterStop,
    /// It ignores a `start_training` that it cannot read.
    IgnoresBadStart,
    /// It connects again at once.
    NoDelay,
    /// Its delays do not grow.
    SameDelay,
    /// It gives its job up when the connection is lost.
    DropsJobOnCut,
    /// It sends what is no JSON now and then.
    Garbage,
    /// It sends an answer's tokens in one piece.
    OneBatch,
    /// It does not say how long an answer took.
    CompletedWithoutMetrics,
    /// It sends tokens after the answer's end.
    TokensAfterEnd,
    /// The text at the end is not that of the tokens.
    OtherText,
    /// It does not stop an answer.
    IgnoresStop,
    /// It ignores a `start_inference` that it cannot read.
    IgnoresBadChat,
    /// It answers an evaluation without the metric.
    NoPerplexity,
    /// It ignores metrics that it does not know.
    IgnoresBadEvaluation,
}

type Stream = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What it has to do at the moment.
#[derive(Debug, Clone)]
struct Job {
    id: i64,
    step: u64,
    total_steps: u64,
    save_steps: u64,
}

/// The worker.
pub struct FaultyWorker {
    fault: Fault,
    platform: String,
    uuid: String,
    enrollment_key: String,
    own_key: Mutex<Option<String>>,
    job: Option<Job>,
    chat: Option<Chat>,
    registered: bool,
    stuck: bool,
    http: reqwest::Client,
}

impl FaultyWorker {
    /// A worker of the platform at `platform` (`http://…`).
    pub fn new(platform: &str, enrollment_key: &str, fault: Fault) -> Self {
        // Twice is once: every test may be the first to need TLS's provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            fault,
            platform: platform.to_owned(),
            uuid: Uuid::new_v4().to_string(),
            enrollment_key: enrollment_key.to_owned(),
            own_key: Mutex::new(None),
            job: None,
            chat: None,
            registered: false,
            stuck: false,
            http: reqwest::Client::builder()
                .no_proxy()
                .build()
                .expect("a plain client can be built"),
        }
    }

    /// Connects, and connects again, for ever.
    pub async fn run(mut self) {
        let mut delay = RECONNECT_DELAY;
        loop {
            let url = self.platform.replacen("http", "ws", 1);
            let url = format!("{url}/ws/worker?worker_uuid={}", self.uuid);
            if let Ok((stream, _)) = tokio_tungstenite::connect_async(url).await
                && self.session(stream).await
            {
                delay = RECONNECT_DELAY;
            }
            if self.fault == Fault::DropsJobOnCut {
                self.job = None;
            }
            match self.fault {
                Fault::NoDelay => sleep(Duration::from_millis(50)).await,
                _ => sleep(delay).await,
            }
            if self.fault != Fault::SameDelay {
                delay = (delay * 2).min(LONGEST_RECONNECT_DELAY);
            }
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// One connection to its end. True where it was let in.
    async fn session(&mut self, mut stream: Stream) -> bool {
        let key = self.own_key.lock().expect("no holder panics").clone();
        let key = key
            .filter(|_| !self.has(Fault::ForgetsKey))
            .unwrap_or_else(|| self.enrollment_key.clone());
        let authenticate =
            json!({"type": "authenticate", "api_key": key, "worker_uuid": self.uuid});
        say(&mut stream, authenticate).await;
        if self.has(Fault::RegistersEarly) {
            say(&mut stream, register(&self.uuid)).await;
        }
        let mut let_in = false;
        let mut heart = ticks(HEARTBEAT_INTERVAL);
        let mut metrics = ticks(match self.fault {
            Fault::RareMetrics => Duration::from_secs(3600),
            _ => METRICS_INTERVAL,
        });
        let mut training = ticks(STEP);
        let mut answering = ticks(BATCH_INTERVAL);
        loop {
            tokio::select! {
                came = stream.next() => match came {
                    Some(Ok(Message::Text(text))) => {
                        let Ok(message) = serde_json::from_str::<Value>(&text) else {
                            match self.has(Fault::MalformedCloses) {
                                true => return let_in,
                                false => continue,
                            }
                        };
                        let_in |= message["type"] == "authenticated";
                        if !self.take(&mut stream, &message).await {
                            return let_in;
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return let_in,
                },
                _ = heart.tick(), if let_in => {
                    if !(self.has(Fault::BusyHeart) && self.job.is_some()) {
                        self.beat(&mut stream).await;
                    }
                }
                _ = metrics.tick(), if let_in => {
                    say(&mut stream, metrics_message(self.status())).await;
                    if self.has(Fault::Garbage) {
                        let _ = stream.send(Message::text("all is well")).await;
                    }
                }
                _ = training.tick(), if let_in && self.job.is_some() => self.train(&mut stream).await,
                _ = answering.tick(), if let_in && self.chat.is_some() => self.answer(&mut stream).await,
            }
        }
    }

    fn status(&self) -> &'static str {
        match &self.job {
            Some(_) => "training",
            None => "idle",
        }
    }

    async fn beat(&self, stream: &mut Stream) {
        let mut heartbeat =
            json!({"type": "heartbeat", "worker_id": self.uuid, "status": self.status()});
        if self.has(Fault::HeartbeatWithoutStatus) {
            heartbeat
                .as_object_mut()
                .expect("it is one")
                .remove("status");
        }
        say(stream, heartbeat).await;
    }

    /// Takes a message of the platform. False where the connection is to be closed because of it.
    async fn take(&mut self, stream: &mut Stream, message: &Value) -> bool {
        match message["type"].as_str().unwrap_or_default() {
            "enrollment_complete" => {
                let key = message["data"]["api_key"].as_str().map(str::to_owned);
                *self.own_key.lock().expect("no holder panics") = key;
            }
            "authenticated" => {
                let again = std::mem::replace(&mut self.registered, true);
                let early = self.has(Fault::RegistersEarly);
                if !(early || again && self.has(Fault::RegistersOnce)) {
                    say(stream, register(&self.uuid)).await;
                }
            }
            "ping" if !self.has(Fault::NoPong) => {
                let busy = self.stuck || self.job.is_some() && !self.has(Fault::NeverBusy);
                let job = self.job.as_ref().filter(|_| busy).map(|job| job.id);
                let mut pong = json!({
                    "type": "pong", "worker_id": self.uuid, "status": self.status(), "busy": busy,
                    "current_job_id": job
                });
                if let Some(id) = message.get("ping_id") {
                    pong["ping_id"] = id.clone();
                }
                say(stream, pong).await;
            }
            "start_training" => self.start(stream, message).await,
            "stop_training" => self.stop(stream).await,
            "start_inference" => self.start_chat(stream, message).await,
            "stop_inference" if !self.has(Fault::IgnoresStop) => self.end_chat(stream).await,
            "start_evaluation" => self.evaluate(stream, message).await,
            "stop_inference" => {}
            "ping" | "ack" | "error" => {}
            _ => return !self.has(Fault::UnknownTypeCloses),
        }
        true
    }

    async fn about(&self, stream: &mut Stream, kind: &str, job: i64, data: Value) {
        let message = json!({"type": kind, "worker_id": self.uuid, "job_id": job, "data": data});
        say(stream, message).await;
    }

    async fn start(&mut self, stream: &mut Stream, message: &Value) {
        let id = message["job_id"].as_i64().expect("a job has an id");
        let twice = self.job.as_ref().is_some_and(|job| job.id == id);
        if twice && !self.has(Fault::StartsTwice) {
            return;
        }
        let data = &message["data"];
        let Some(url) = data["dataset"]["download_url"].as_str() else {
            if !self.has(Fault::IgnoresBadStart) {
                let error = json!({"error": "data.dataset is missing"});
                self.about(stream, "job_failed", id, error).await;
            }
            return;
        };
        // A fault that is no fault of the data still fails where the data are missing.
        if !(self.has(Fault::IgnoresData) && url.ends_with("rows.jsonl")) {
            let got = self.http.get(url).send().await;
            if !got.is_ok_and(|response| response.status().is_success()) {
                let error = json!({"error": "the data set is not there", "step": 0, "last_checkpoint": null});
                self.about(stream, "job_failed", id, error).await;
                return;
            }
        }
        if !self.has(Fault::NoJobStarted) {
            self.about(stream, "job_started", id, json!({})).await;
        }
        let epochs = data["config"]["epochs"].as_u64().unwrap_or(1);
        self.job = Some(Job {
            id,
            step: 0,
            total_steps: epochs * STEPS_PER_EPOCH,
            save_steps: data["config"]["save_steps"].as_u64().unwrap_or(500),
        });
    }

    async fn train(&mut self, stream: &mut Stream) {
        let Some(mut job) = self.job.take() else {
            return;
        };
        job.step += 1;
        if !(self.has(Fault::SkipsSteps) && job.step % 2 == 0) {
            self.report(stream, &job, job.step).await;
        }
        if job.step % job.save_steps == 0 && !self.has(Fault::NoCheckpoints) {
            self.save(stream, &job).await;
        }
        if job.step < job.total_steps {
            self.job = Some(job);
            return;
        }
        let mut data = json!({
            "final_loss": 0.5, "total_steps": job.total_steps, "training_time_seconds": 1.5,
            "s3_prefix": format!("models/job-{}/final/", job.id)
        });
        if self.has(Fault::CompletedWithoutPrefix) {
            data.as_object_mut().expect("it is one").remove("s3_prefix");
        }
        self.about(stream, "job_completed", job.id, data).await;
        if self.has(Fault::CheckpointAfterEnd) {
            self.about(stream, "checkpoint_saved", job.id, checkpoint(&job))
                .await;
        }
    }

    async fn report(&self, stream: &mut Stream, job: &Job, step: u64) {
        let loss = match self.fault {
            Fault::OtherNameForLoss => "train_loss",
            _ => "loss",
        };
        let data = json!({
            "epoch": (step - 1) / STEPS_PER_EPOCH + 1, "step": step, "total_steps": job.total_steps,
            loss: 0.5, "learning_rate": 0.0001
        });
        self.about(stream, "training_progress", job.id, data).await;
    }

    async fn save(&self, stream: &mut Stream, job: &Job) {
        self.about(stream, "checkpoint_saved", job.id, checkpoint(job))
            .await;
    }

    async fn stop(&mut self, stream: &mut Stream) {
        let Some(job) = self.job.take() else { return };
        if !self.has(Fault::StopsWithoutCheckpoint) {
            self.save(stream, &job).await;
        }
        let data = json!({
            "final_loss": 0.5, "total_steps": job.total_steps, "training_time_seconds": 1.5,
            "s3_prefix": format!("models/job-{}/final/", job.id)
        });
        self.about(stream, "job_completed", job.id, data).await;
        self.stuck = self.has(Fault::BusyAfterStop);
    }
}

fn checkpoint(job: &Job) -> Value {
    json!({
        "step": job.step, "epoch": job.step.div_ceil(STEPS_PER_EPOCH),
        "path": format!("checkpoints/job-{}/step-{}/", job.id, job.step), "metrics": {"loss": 0.5}
    })
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// A connection that is lost is noticed when it is read.
async fn say(stream: &mut Stream, message: Value) {
    let _ = stream.send(Message::text(message.to_string())).await;
}

fn register(uuid: &str) -> Value {
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

fn metrics_message(status: &str) -> Value {
    json!({
        "type": "worker_metrics",
        "data": {
            "gpu_utilization": 85.5, "gpu_memory_used": 18.2, "gpu_memory_total": 24.0,
            "cpu_utilization": 22.3, "ram_used": 8.5, "ram_total": 64.0, "status": status
        }
    })
}
