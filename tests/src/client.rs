//! A REST client that speaks plain JSON, so that tests see what any other client would.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// One HTTP answer with its body read as JSON (null where it is empty).
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub body: Value,
}

impl Answer {
    /// The body of an answer that must be a success.
    ///
    /// # Panics
    ///
    /// For any other status.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.body);
        self.body
    }

    /// The error of an answer that must be refused with `status`.
    ///
    /// # Panics
    ///
    /// For any other status, or where the body is not an error as the API page says.
    #[track_caller]
    pub fn refused(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        let error = self.body["error"].clone();
        assert!(
            error["code"].is_string() && error["message"].is_string(),
            "{}",
            self.body
        );
        error
    }
}

/// Speaks to one platform as one user.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
}

impl Client {
    /// A client that has not logged in.
    pub fn new(base: &str) -> Self {
        // Twice is once: every test may be the first to need TLS's provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            http: reqwest::Client::builder()
                .no_proxy()
                .build()
                .expect("a plain client can be built"),
            base: base.to_owned(),
            token: None,
        }
    }

    /// The same connections, speaking as the user of `token`.
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    /// Logs in and returns the user's client.
    pub async fn login(&self, email: &str, password: &str) -> Self {
        let body = json!({"email": email, "password": password});
        let answer = self.post("/api/auth/login", body).await.ok();
        self.with_token(answer["token"].as_str().expect("a login gives a token"))
    }

    /// A request that the caller completes: for headers and bodies that are not JSON.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request and reads the answer.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.expect("the platform answers");
        let status = response.status();
        let text = response.text().await.expect("the answer is whole");
        let body = match text.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text)
                .unwrap_or_else(|error| panic!("{status}: {error} in {text}")),
        };
        Answer { status, body }
    }

    /// Sends a request to a platform that may be killed at any moment: none where no whole answer comes.
    pub async fn try_send(&self, request: reqwest::RequestBuilder) -> Option<Answer> {
        let response = request.send().await.ok()?;
        let status = response.status();
        let body = serde_json::from_str(&response.text().await.ok()?).ok()?;
        Some(Answer { status, body })
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// POST of a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body))
            .await
    }

    /// POST of a body that is sent as it is, called JSON.
    pub async fn post_text(&self, path: &str, body: &str) -> Answer {
        let request = self
            .request(Method::POST, path)
            .header("content-type", "application/json")
            .body(body.to_owned());
        self.send(request).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// GET of a file, through the redirect to its signed address.
    pub async fn download(&self, path: &str) -> Vec<u8> {
        let response = self
            .request(Method::GET, path)
            .send()
            .await
            .expect("the platform answers");
        assert!(
            response.status().is_success(),
            "{path}: {}",
            response.status()
        );
        response.bytes().await.expect("the file is whole").to_vec()
    }

    /// Uploads a data set, of JSON lines unless its name or the query says otherwise, and returns the answer.
    pub async fn upload(&self, query: &str, body: impl Into<reqwest::Body>) -> Answer {
        let request = self
            .request(Method::POST, &format!("/api/datasets?{query}"))
            .body(body);
        self.send(request).await
    }

    /// Uploads a good data set and returns its id.
    pub async fn dataset(&self, name: &str, lines: &str) -> i64 {
        let answer = self
            .upload(&format!("name={name}"), lines.to_owned())
            .await
            .ok();
        answer["id"].as_i64().expect("a data set has an id")
    }

    /// Makes an enrolment key and returns it.
    pub async fn enrollment_key(&self, body: Value) -> String {
        let answer = self.post("/api/enrollment-keys", body).await.ok();
        answer["key"]
            .as_str()
            .expect("a new key is shown")
            .to_owned()
    }

    /// A fresh token for `/ws/user/{id}`, with the user's id.
    pub async fn ws_token(&self) -> (i64, String) {
        let answer = self.post("/api/ws-token", json!({})).await.ok();
        assert_eq!(answer["expires_in"], 60);
        let user_id = answer["user_id"].as_i64().expect("a user has an id");
        (
            user_id,
            answer["token"]
                .as_str()
                .expect("a token is text")
                .to_owned(),
        )
    }

    /// Makes a user and returns its id and its client.
    pub async fn user(&self, email: &str, role: &str) -> (i64, Self) {
        let password = "a long enough password";
        let body = json!({"email": email, "password": password, "role": role});
        let answer = self.post("/api/users", body).await.ok();
        let id = answer["id"].as_i64().expect("a user has an id");
        (id, self.login(email, password).await)
    }

    /// Submits a job and returns its id.
    pub async fn job(&self, body: Value) -> i64 {
        let answer = self.post("/api/jobs", body).await.ok();
        answer["id"].as_i64().expect("a job has an id")
    }
}
