//! A platform of its own for each test: a fresh folder, a free port, a client that knows its address.

pub(crate) mod serving;
pub(crate) mod sockets;

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::config::{Config, Sources};
use crate::server::{self, RunningServer};

pub(crate) const ADMIN_EMAIL: &str = "admin@example.org";
pub(crate) const ADMIN_PASSWORD: &str = "admin-password";

/// A running platform.
pub(crate) struct Platform {
    pub(crate) folder: TempDir,
    pub(crate) server: RunningServer,
    pub(crate) client: Client,
}

impl Platform {
    /// Starts one with the given settings beside those that tests need.
    pub(crate) async fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), settings).await
    }

    /// Starts one in a folder that may have been used before.
    pub(crate) async fn start_in(folder: TempDir, settings: &[(&str, &str)]) -> Self {
        let mut sources = Sources::default()
            .with_flag("BIND", "127.0.0.1:0")
            .with_flag("DATA_DIR", folder.path().to_str().unwrap())
            .with_flag("ADMIN_EMAIL", ADMIN_EMAIL)
            .with_flag("ADMIN_PASSWORD", ADMIN_PASSWORD)
            // Below every timeout that a test sets.
            .with_flag("HEARTBEAT_INTERVAL", "0.2");
        for (name, value) in settings {
            sources = sources.with_flag(name, *value);
        }
        let server = server::start(Config::resolve(&sources).unwrap())
            .await
            .unwrap();
        // Installed already where another test of this process came first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .unwrap();
        Self {
            folder,
            server,
            client,
        }
    }

    /// Stops the platform and gives its folder, to start another one in it.
    pub(crate) async fn stop(self) -> TempDir {
        self.server.stop().await;
        self.folder
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }

    /// A request without any credential.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// The session of a user who signs in.
    pub(crate) async fn login(&self, email: &str, password: &str) -> Session<'_> {
        let body = json!({ "email": email, "password": password });
        let response = self
            .request(Method::POST, "/api/auth/login")
            .json(&body)
            .send()
            .await
            .unwrap();
        let (status, answer) = answer(response).await;
        assert_eq!(status, 200, "{answer}");
        let token = answer["token"].as_str().unwrap().to_owned();
        Session {
            platform: self,
            token,
        }
    }

    pub(crate) async fn admin(&self) -> Session<'_> {
        self.login(ADMIN_EMAIL, ADMIN_PASSWORD).await
    }

    /// Makes a user of that role and signs it in.
    pub(crate) async fn user(&self, email: &str, role: &str) -> Session<'_> {
        let body = json!({ "email": email, "password": "user-password", "role": role });
        let (status, made) = self
            .admin()
            .await
            .send(Method::POST, "/api/users", Some(body))
            .await;
        assert_eq!(status, 201, "{made}");
        self.login(email, "user-password").await
    }
}

/// A signed-in user, or anyone else who holds a bearer token.
pub(crate) struct Session<'a> {
    pub(crate) platform: &'a Platform,
    pub(crate) token: String,
}

impl Session<'_> {
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.platform.request(method, path).bearer_auth(&self.token)
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        answer(request.send().await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> (StatusCode, Value) {
        self.send(Method::DELETE, path, None).await
    }

    /// Uploads a data set.
    pub(crate) async fn upload(
        &self,
        query: &str,
        file: impl Into<reqwest::Body>,
    ) -> (StatusCode, Value) {
        let request = self.request(Method::POST, &format!("/api/datasets?{query}"));
        answer(request.body(file).send().await.unwrap()).await
    }
}

/// Status and JSON of an answer; null where there is no body.
pub(crate) async fn answer(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let value = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    };
    (status, value)
}

/// Waits until a condition holds that another task brings about.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while !holds().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what} did not come about"
        );
        tokio::task::yield_now().await;
    }
}
