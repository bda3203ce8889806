//! Sockets of a test's own: a worker and a dashboard played by hand, frame by frame.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use uuid::Uuid;

use super::{Platform, Session};

/// Nothing that is waited for takes longer than this.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Settings under which a silent worker is lost within about a second.
pub(crate) const SHORT: &[(&str, &str)] = &[
    ("WORKER_HEARTBEAT_TIMEOUT", "0.8"),
    ("WORKER_CHECK_INTERVAL", "0.2"),
    ("WORKER_PING_GRACE", "0.4"),
];

/// What comes on a socket.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Came {
    Json(Value),
    Closed(Option<u16>),
}

/// An open WebSocket.
pub(crate) struct Socket {
    pub(crate) stream: WebSocketStream<TcpStream>,
}

impl Socket {
    /// Opens a socket; where the upgrade is refused, the status.
    pub(crate) async fn open(platform: &Platform, path: &str) -> Result<Self, u16> {
        let tcp = TcpStream::connect(platform.server.address).await.unwrap();
        let url = format!("ws://{}{path}", platform.server.address);
        match tokio_tungstenite::client_async(url, tcp).await {
            Ok((stream, _)) => Ok(Self { stream }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.send_text(&message.to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        self.stream.send(Message::text(text)).await.unwrap();
    }

    /// The next JSON message or the close, unless nothing comes in that time.
    pub(crate) async fn next_within(&mut self, wait: Duration) -> Option<Came> {
        let next = async {
            loop {
                match self.stream.next().await {
                    Some(Ok(Message::Text(text))) => {
                        return Came::Json(serde_json::from_str(&text).unwrap());
                    }
                    Some(Ok(Message::Close(frame))) => {
                        return Came::Closed(frame.map(|frame| frame.code.into()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Came::Closed(None),
                }
            }
        };
        timeout(wait, next).await.ok()
    }

    /// The next message of that type; what comes before it is passed over.
    pub(crate) async fn receive(&mut self, kind: &str) -> Value {
        self.receive_where(|message| message["type"] == kind).await
    }

    pub(crate) async fn receive_where(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        self.collect_until(wanted).await.pop().unwrap()
    }

    /// All messages up to the first that is wanted, which comes last.
    pub(crate) async fn collect_until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let end = Instant::now() + DEADLINE;
        let mut passed = Vec::new();
        loop {
            match self
                .next_within(end.saturating_duration_since(Instant::now()))
                .await
            {
                Some(Came::Json(message)) => {
                    let found = wanted(&message);
                    passed.push(message);
                    if found {
                        return passed;
                    }
                }
                other => panic!("{other:?} after {passed:#?}"),
            }
        }
    }

    /// The code with which the platform closes.
    pub(crate) async fn closed(&mut self) -> Option<u16> {
        let end = Instant::now() + DEADLINE;
        loop {
            match self
                .next_within(end.saturating_duration_since(Instant::now()))
                .await
            {
                Some(Came::Closed(code)) => return code,
                Some(Came::Json(_)) => {}
                None => panic!("still open"),
            }
        }
    }

    /// Resets the connection, as a crash or a broken network does.
    pub(crate) fn reset(self) {
        self.stream.get_ref().set_zero_linger().unwrap();
    }
}

/// A worker that a test plays.
pub(crate) struct TestWorker {
    pub(crate) socket: Socket,
    pub(crate) uuid: String,
    pub(crate) key: String,
    pub(crate) id: i64,
}

/// Opens a worker's socket and authenticates; the first answer.
pub(crate) async fn authenticate(platform: &Platform, uuid: &str, key: &str) -> (Socket, Value) {
    let path = format!("/ws/worker?worker_uuid={uuid}");
    let mut socket = Socket::open(platform, &path).await.unwrap();
    socket
        .send(json!({"type": "authenticate", "api_key": key, "worker_uuid": uuid}))
        .await;
    let Some(Came::Json(answer)) = socket.next_within(DEADLINE).await else {
        panic!("no answer to authenticate");
    };
    (socket, answer)
}

impl TestWorker {
    /// Enrols a new worker, up to `authenticated`.
    pub(crate) async fn enrol(admin: &Session<'_>) -> Self {
        let (status, made) = admin.post("/api/enrollment-keys", json!({})).await;
        assert_eq!(status, 201, "{made}");
        let uuid = Uuid::new_v4().to_string();
        let key = made["key"].as_str().unwrap();
        let (mut socket, answer) = authenticate(admin.platform, &uuid, key).await;
        assert_eq!(answer["type"], "enrollment_complete", "{answer}");
        socket.receive("authenticated").await;
        Self {
            socket,
            uuid,
            key: answer["data"]["api_key"].as_str().unwrap().to_owned(),
            id: answer["data"]["worker_id"].as_i64().unwrap(),
        }
    }

    /// The same, registered.
    pub(crate) async fn ready(admin: &Session<'_>) -> Self {
        let mut worker = Self::enrol(admin).await;
        worker.register().await;
        worker
    }

    /// One more connection of the same worker, up to `authenticated`.
    pub(crate) async fn again(&self, platform: &Platform) -> Self {
        let (socket, answer) = authenticate(platform, &self.uuid, &self.key).await;
        assert_eq!(answer["type"], "authenticated", "{answer}");
        Self {
            socket,
            uuid: self.uuid.clone(),
            key: self.key.clone(),
            id: self.id,
        }
    }

    pub(crate) async fn register(&mut self) {
        let data = json!({"gpu_available": false, "worker_type": "both"});
        self.socket
            .send(json!({"type": "worker_register", "data": data}))
            .await;
    }

    pub(crate) async fn heartbeat(&mut self, status: &str) {
        self.socket
            .send(json!({"type": "heartbeat", "worker_id": self.uuid, "status": status}))
            .await;
    }

    pub(crate) async fn pong(&mut self, job: Option<i64>) {
        let status = if job.is_some() { "training" } else { "idle" };
        self.socket
            .send(json!({
                "type": "pong", "status": status, "busy": job.is_some(), "current_job_id": job
            }))
            .await;
    }

    /// Says something about a job in the words of the source, without attempt and `message_id`.
    pub(crate) async fn say(&mut self, kind: &str, job: i64, data: Value) {
        self.socket
            .send(json!({"type": kind, "job_id": job, "data": data}))
            .await;
    }

    /// The same, and waits for the `ack`.
    pub(crate) async fn say_acked(&mut self, kind: &str, job: i64, data: Value) {
        let message_id = Uuid::new_v4().to_string();
        self.socket
            .send(json!({
                "type": kind, "job_id": job, "message_id": message_id, "data": data
            }))
            .await;
        self.socket
            .receive_where(|answer| {
                assert_ne!(
                    answer["message_id"] == message_id.as_str(),
                    answer["type"] == "error"
                );
                answer["type"] == "ack" && answer["message_id"] == message_id.as_str()
            })
            .await;
    }

    /// Waits for `start_training`.
    pub(crate) async fn receive_job(&mut self) -> Value {
        self.socket.receive("start_training").await
    }

    /// Takes the next job and starts it.
    pub(crate) async fn take_job(&mut self) -> i64 {
        let job = self.receive_job().await["job_id"].as_i64().unwrap();
        self.say_acked("job_started", job, json!({"total_steps": 10_000}))
            .await;
        job
    }

    /// What was sent so far, by asking for something that is answered in order.
    pub(crate) async fn everything_sent(&mut self) -> Vec<Value> {
        self.socket.send(json!({"type": "are_you_there"})).await;
        let mut passed = self
            .socket
            .collect_until(|answer| answer["code"] == "unknown_type")
            .await;
        passed.pop();
        passed
    }
}

impl Session<'_> {
    /// Uploads a small data set and submits a job on it.
    pub(crate) async fn job(&self, more: Value) -> i64 {
        let row =
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let (status, dataset) = self.upload("name=chats", row).await;
        assert_eq!(status, 201, "{dataset}");
        let mut body = json!({
            "dataset_id": dataset["id"], "base_model": {"huggingface_id": "yard/tiny"}, "config": {"epochs": 1}
        });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, job) = self.post("/api/jobs", body).await;
        assert_eq!(status, 201, "{job}");
        job["id"].as_i64().unwrap()
    }

    /// Opens a dashboard.
    pub(crate) async fn dashboard(&self) -> Socket {
        let (user, token) = self.ws_token().await;
        let path = format!("/ws/user/{user}?token={token}");
        Socket::open(self.platform, &path).await.unwrap()
    }

    pub(crate) async fn ws_token(&self) -> (i64, String) {
        let (status, made) = self.post("/api/ws-token", json!({})).await;
        assert!(status.is_success(), "{made}");
        let token = made["token"].as_str().unwrap().to_owned();
        (made["user_id"].as_i64().unwrap(), token)
    }

    /// Waits until what is at `path` is as wanted.
    pub(crate) async fn wait(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + DEADLINE;
        loop {
            let (_, value) = self.get(path).await;
            if wanted(&value) {
                return value;
            }
            assert!(Instant::now() < end, "{path} stays {value:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn wait_for_job(&self, job: i64, status: &str) -> Value {
        self.wait(&format!("/api/jobs/{job}"), |shown| {
            shown["status"] == status
        })
        .await
    }

    pub(crate) async fn wait_for_worker(&self, worker: i64, status: &str) -> Value {
        self.wait(&format!("/api/workers/{worker}"), |shown| {
            shown["status"] == status
        })
        .await
    }

    /// The kinds of a job's events, in order.
    pub(crate) async fn event_kinds(&self, job: i64) -> Vec<String> {
        let (_, events) = self.get(&format!("/api/jobs/{job}/events")).await;
        let items = events["items"].as_array().unwrap();
        items
            .iter()
            .map(|event| event["kind"].as_str().unwrap().to_owned())
            .collect()
    }
}
