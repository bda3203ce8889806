//! Volunteer sessions over real sockets, with volunteers played by hand.

mod ending;
mod making;
mod mishaps;
mod requests;
mod rounds;
mod uploads;

use std::path::Path;

use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::testing::{Platform, Session, answer, eventually};

/// A models folder with config and tokenizer of a tiny model, and no weights.
fn models() -> TempDir {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("yard/tiny");
    std::fs::create_dir_all(&model).unwrap();
    for file in [
        "tied/config.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ] {
        let name = file.rsplit('/').next().unwrap();
        std::fs::copy(golden.join(file), model.join(name)).unwrap();
    }
    folder
}

/// A platform that knows the tiny model.
pub(crate) async fn platform(settings: &[(&str, &str)]) -> (Platform, TempDir) {
    let models = models();
    let platform = start_in(tempfile::tempdir().unwrap(), &models, settings).await;
    (platform, models)
}

pub(crate) async fn start_in(
    folder: TempDir,
    models: &TempDir,
    settings: &[(&str, &str)],
) -> Platform {
    let mut all = vec![
        ("MODELS_DIR", models.path().to_str().unwrap()),
        ("HF_HUB_OFFLINE", "true"),
    ];
    all.extend_from_slice(settings);
    Platform::start_in(folder, &all).await
}

/// Makes a session of the tiny model and waits until it is open; its number.
pub(crate) async fn open(user: &Session<'_>, name: &str, more: Value) -> i64 {
    let mut body = json!({
        "name": name, "base_model": "yard/tiny", "toplam_tur": 3, "n_parca": 2, "en_az": 2,
        "tur_zaman_asimi": 0, "lora": {"r": 2},
    });
    let fields = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    let (status, made) = user.post("/api/coordinators", body).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_i64().unwrap();
    let shown = user
        .wait(&format!("/api/coordinators/{id}"), |shown| {
            shown["status"] != "preparing"
        })
        .await;
    assert_eq!(shown["status"], "open", "{shown}");
    id
}

/// A session as volunteers see it.
struct Coordinator<'a> {
    platform: &'a Platform,
    base: String,
    key: Option<String>,
}

impl<'a> Coordinator<'a> {
    fn at(platform: &'a Platform, base: &str) -> Self {
        Self {
            platform,
            base: base.to_owned(),
            key: None,
        }
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self
            .platform
            .request(method, &format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.header("X-Anahtar", key),
            None => request,
        }
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path).send().await.unwrap()).await
    }

    async fn task(&self, worker: &str) -> Value {
        let (status, task) = self.get(&format!("/gorev?isci={worker}")).await;
        assert_eq!(status, 200, "{task}");
        task
    }

    async fn file(&self, path: &str) -> (StatusCode, HeaderMap, Vec<u8>) {
        let response = self.request(Method::GET, path).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        (status, headers, response.bytes().await.unwrap().to_vec())
    }

    /// The global adapter, and its round.
    async fn weights(&self) -> (u64, Vec<u8>) {
        let (status, headers, body) = self.file("/agirlik").await;
        assert_eq!(status, 200);
        assert_eq!(headers["x-sha256"], sha256(&body));
        (headers["x-tur"].to_str().unwrap().parse().unwrap(), body)
    }

    async fn send(&self, worker: &str, round: u64, body: Vec<u8>) -> (StatusCode, Value) {
        let path = format!("/sonuc?isci={worker}&tur={round}");
        answer(
            self.request(Method::POST, &path)
                .body(body)
                .send()
                .await
                .unwrap(),
        )
        .await
    }

    /// Sends a result of the open round whose every value is the global one and `delta`.
    async fn trains(&self, worker: &str, delta: f32) -> (StatusCode, Value) {
        let (round, body) = self.weights().await;
        self.send(worker, round, shifted(&body, delta)).await
    }

    async fn wait_for_round(&self, round: u64) -> Value {
        let mut last = Value::Null;
        eventually(&format!("round {round}"), async || {
            last = self.get("/bilgi").await.1;
            last["tur"] == round
        })
        .await;
        last
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Where the values begin in a safetensors file.
fn values_at(file: &[u8]) -> usize {
    8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize
}

/// A file of f32 tensors with so much added to each value.
pub(crate) fn shifted(file: &[u8], delta: f32) -> Vec<u8> {
    let start = values_at(file);
    let mut out = file[..start].to_vec();
    for value in file[start..].chunks_exact(4) {
        let value = f32::from_le_bytes(value.try_into().unwrap()) + delta;
        out.extend_from_slice(&value.to_le_bytes());
    }
    out
}

/// The values of a file of f32 tensors.
pub(crate) fn values(file: &[u8]) -> Vec<f32> {
    let values = file[values_at(file)..].chunks_exact(4);
    values
        .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
        .collect()
}
