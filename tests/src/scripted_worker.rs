//! A worker that a test plays by hand, speaking the source documents' form of the protocol.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::Client;
use crate::platform::Platform;
use crate::socket::{Received, Socket};
use crate::{DEADLINE, eventually};

/// A worker's identity: what a real one keeps in its state folder.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its UUID, as on the wire.
    pub uuid: String,
    /// Its own key.
    pub key: String,
    /// Its number on the platform.
    pub id: i64,
    /// Its name on the platform.
    pub name: String,
}

/// A connected worker.
pub struct ScriptedWorker {
    /// Its socket.
    pub socket: Socket,
    /// Its identity.
    pub identity: Identity,
}

/// Opens a worker's socket without saying anything on it.
pub async fn open(platform: &Platform, uuid: &str) -> Socket {
    Socket::open(
        platform.address(),
        &format!("/ws/worker?worker_uuid={uuid}"),
    )
    .await
    .expect("a well-formed worker address is accepted")
}

/// Authenticates with any key and returns the platform's first answer.
pub async fn authenticate(socket: &mut Socket, uuid: &str, key: &str) -> Value {
    let message = json!({"type": "authenticate", "api_key": key, "worker_uuid": uuid});
    socket.send(message).await;
    socket.receive().await
}

/// Authenticates with a key that must fail, and returns the reason given.
///
/// # Panics
///
/// Where the key is accepted, or the socket is not closed with 4401 afterwards.
pub async fn refused_reason(platform: &Platform, uuid: &str, key: &str) -> String {
    let mut socket = open(platform, uuid).await;
    let answer = authenticate(&mut socket, uuid, key).await;
    assert_eq!(answer["type"], "auth_failed", "{answer}");
    assert_eq!(socket.closed_within(DEADLINE).await, Some(4401));
    answer["reason"]
        .as_str()
        .expect("a refusal has a reason")
        .to_owned()
}

impl ScriptedWorker {
    /// Enrols a new worker with a fresh key of its own and registers it.
    pub async fn enrol(platform: &Platform, admin: &Client) -> Self {
        let key = admin.enrollment_key(json!({"max_uses": 1})).await;
        let mut worker = Self::enrol_with(platform, &Uuid::new_v4().to_string(), &key).await;
        worker.register(admin).await;
        worker
    }

    /// Enrols the worker `uuid` with an enrolment key, up to `authenticated`.
    pub async fn enrol_with(platform: &Platform, uuid: &str, key: &str) -> Self {
        let mut socket = open(platform, uuid).await;
        let complete = authenticate(&mut socket, uuid, key).await;
        assert_eq!(complete["type"], "enrollment_complete", "{complete}");
        let identity = Identity {
            uuid: uuid.to_owned(),
            key: complete["data"]["api_key"]
                .as_str()
                .expect("a key")
                .to_owned(),
            id: complete["data"]["worker_id"].as_i64().expect("a number"),
            name: complete["data"]["worker_name"]
                .as_str()
                .expect("a name")
                .to_owned(),
        };
        let authenticated = socket.receive().await;
        assert_eq!(authenticated["type"], "authenticated", "{authenticated}");
        Self { socket, identity }
    }

    /// Opens one more connection with the same identity, up to `authenticated`.
    pub async fn connect(platform: &Platform, identity: &Identity) -> Self {
        let mut socket = open(platform, &identity.uuid).await;
        let answer = authenticate(&mut socket, &identity.uuid, &identity.key).await;
        assert_eq!(answer["type"], "authenticated", "{answer}");
        assert_eq!(answer["worker_id"], identity.uuid.as_str());
        Self {
            socket,
            identity: identity.clone(),
        }
    }

    /// Sends `worker_register` as the source spells it, without waiting.
    pub async fn send_register(&mut self) {
        let register = json!({
            "type": "worker_register",
            "worker_id": self.identity.uuid,
            "data": {
                "gpu_available": true,
                "gpu_name": "NVIDIA A100-SXM4-80GB",
                "gpu_memory_gb": 80.0,
                "max_batch_size": 32,
                "worker_type": "both",
                "benchmark": {
                    "gpu_score": 95.2,
                    "tflops": 82.6,
                    "memory_bandwidth_gbps": 1008.0,
                    "max_batch_size_tested": 256,
                    "benchmark_version": "1.0.0",
                    "benchmark_duration_seconds": 45.2,
                    "is_estimated": false
                }
            }
        });
        self.socket.send(register).await;
    }

    /// Registers, and waits until the platform shows the worker as idle.
    pub async fn register(&mut self, client: &Client) {
        self.send_register().await;
        self.shown_as(client, "idle").await;
    }

    /// Waits until the platform shows the worker with `status`.
    pub async fn shown_as(&self, client: &Client, status: &str) {
        shown_as(client, self.identity.id, status).await;
    }

    /// Sends a heartbeat.
    pub async fn heartbeat(&mut self, status: &str) {
        let message = json!({
            "type": "heartbeat", "worker_id": self.identity.uuid, "status": status
        });
        self.socket.send(message).await;
    }

    /// Sends a message about a job, in the source's form.
    pub async fn say(&mut self, kind: &str, job_id: i64, data: Value) {
        let message = json!({
            "type": kind, "worker_id": self.identity.uuid, "job_id": job_id, "data": data
        });
        self.socket.send(message).await;
    }

    /// Waits for `start_training`, answering pings on the way.
    pub async fn receive_job(&mut self) -> Value {
        loop {
            let message = self.socket.receive().await;
            match message["type"].as_str() {
                Some("start_training") => return message,
                Some("ping") => self.pong(None).await,
                _ => {}
            }
        }
    }

    /// Answers a ping.
    pub async fn pong(&mut self, job_id: Option<i64>) {
        let status = if job_id.is_some() { "training" } else { "idle" };
        let message = json!({
            "type": "pong", "worker_id": self.identity.uuid, "status": status,
            "busy": job_id.is_some(), "current_job_id": job_id
        });
        self.socket.send(message).await;
    }

    /// Takes the next job and starts it. Returns its id.
    pub async fn take_job(&mut self) -> i64 {
        let start = self.receive_job().await;
        let job_id = start["job_id"].as_i64().expect("a job has an id");
        self.say("job_started", job_id, json!({"total_steps": 10_000}))
            .await;
        job_id
    }

    /// The next `error`, answering pings on the way.
    pub async fn receive_error(&mut self) -> Value {
        loop {
            match self.socket.next_within(DEADLINE).await {
                Some(Received::Json(message)) if message["type"] == "error" => return message,
                Some(Received::Json(message)) if message["type"] == "ping" => self.pong(None).await,
                Some(Received::Json(_)) => {}
                other => panic!("no error came: {other:?}"),
            }
        }
    }
}

/// Waits until the platform shows the worker `worker_id` with `status`.
pub async fn shown_as(client: &Client, worker_id: i64, status: &str) {
    let path = format!("/api/workers/{worker_id}");
    eventually(&format!("worker {worker_id} to be {status}"), || async {
        let worker = client.get(&path).await.ok();
        (worker["status"] == status).then_some(())
    })
    .await;
}

/// Waits until job `job_id` has `status`, and returns it.
///
/// # Panics
///
/// Where the job ends in another way, or the deadline passes.
pub async fn job_with_status(client: &Client, job_id: i64, status: &str) -> Value {
    let path = format!("/api/jobs/{job_id}");
    eventually(&format!("job {job_id} to be {status}"), || async {
        let job = client.get(&path).await.ok();
        let now = job["status"].as_str().expect("a job has a status");
        let ended = ["completed", "failed", "stopped"].contains(&now);
        assert!(now == status || !ended, "wanted {status}: {job}");
        (now == status).then_some(job)
    })
    .await
}
