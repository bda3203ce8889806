//! What tests of inference, evaluations and exports share: a played worker's part in them, and a job with a result.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use uuid::Uuid;

use super::sockets::TestWorker;
use super::{Platform, Session, answer};

/// Content of the files of an adapter that nobody opens.
const CONTENT: &str = "hello";
const SHA256_OF_CONTENT: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

/// A chat of one turn.
pub(crate) fn ask(more: Value) -> Value {
    let mut body = json!({"model": "yard/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

impl TestWorker {
    /// Registers as a worker of that type.
    pub(crate) async fn register_as(&mut self, worker_type: &str) {
        let data =
            json!({"gpu_available": false, "worker_type": worker_type, "models": ["yard/tiny"]});
        self.socket
            .send(json!({"type": "worker_register", "data": data}))
            .await;
    }

    /// Waits for `start_inference`; its id.
    pub(crate) async fn take_inference(&mut self) -> String {
        let start = self.socket.receive("start_inference").await;
        start["inference_id"].as_str().unwrap().to_owned()
    }

    /// Sends the next tokens of an answer.
    pub(crate) async fn tokens(&mut self, id: &str, tokens: &[&str]) {
        let data = json!({ "tokens": tokens });
        self.socket
            .send(json!({"type": "inference_tokens", "inference_id": id, "data": data}))
            .await;
    }

    /// Ends an answer and waits for the `ack`.
    pub(crate) async fn complete(&mut self, id: &str, data: Value) {
        self.say_of(json!({"type": "inference_completed", "inference_id": id, "data": data}))
            .await;
    }

    /// Sends a message and waits for its `ack`.
    pub(crate) async fn say_of(&mut self, mut message: Value) {
        let message_id = Uuid::new_v4().to_string();
        message["message_id"] = json!(message_id);
        self.socket.send(message).await;
        let answer = self
            .socket
            .receive_where(|answer| answer["message_id"] == message_id.as_str())
            .await;
        assert_eq!(answer["type"], "ack", "{answer}");
    }

    /// Runs a job of that user to its end, with an adapter of two files.
    pub(crate) async fn train(&mut self, user: &Session<'_>) -> i64 {
        let names = ["adapter_config.json", "adapter_model.safetensors"];
        self.train_to(user, &names).await
    }

    /// Runs a job of that user to its end, with a result of these files.
    pub(crate) async fn train_to(&mut self, user: &Session<'_>, names: &[&str]) -> i64 {
        let job = user.job(json!({})).await;
        assert_eq!(self.take_job().await, job);
        let mut files = Vec::new();
        for name in names {
            let key = format!("models/job-{job}/final/{name}");
            files.push(self.store(user.platform, job, &key).await);
        }
        self.say_acked("job_completed", job, json!({ "files": files }))
            .await;
        job
    }

    /// Stores a file of a job as this worker; how messages name it.
    pub(crate) async fn store(&self, platform: &Platform, job: i64, key: &str) -> Value {
        let (status, grant) = self.may_store(platform, job, key).await;
        assert_eq!(status, 200, "{grant}");
        let (status, stored) = put(platform, &grant).await;
        assert!(status.is_success(), "{stored}");
        json!({"key": key, "size_bytes": CONTENT.len(), "sha256": SHA256_OF_CONTENT})
    }

    /// Asks for leave to store a file of a job as this worker.
    pub(crate) async fn may_store(
        &self,
        platform: &Platform,
        job: i64,
        key: &str,
    ) -> (StatusCode, Value) {
        let own = Session {
            platform,
            token: self.key.clone(),
        };
        let size = CONTENT.len();
        let asked = json!({"job_id": job, "key": key, "size": size, "sha256": SHA256_OF_CONTENT});
        own.post("/api/worker/uploads", asked).await
    }
}

/// Stores the file that leave was given for.
pub(crate) async fn put(platform: &Platform, grant: &Value) -> (StatusCode, Value) {
    let url = grant["url"].as_str().unwrap();
    let request = platform.client.request(Method::PUT, url);
    answer(request.body(CONTENT).send().await.unwrap()).await
}

/// The events of a stream that has ended: their names, and their data as JSON where it is JSON.
pub(crate) fn events(stream: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    for block in stream.split("\n\n") {
        let field = |name: &str| {
            let mut lines = block.lines();
            lines.find_map(|line| line.strip_prefix(name).map(str::trim))
        };
        if let Some(data) = field("data:") {
            let value = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
            events.push((field("event:").unwrap_or_default().to_owned(), value));
        }
    }
    events
}
