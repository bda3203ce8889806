//! The few REST calls that the judge needs, as `docs/api.md` says. What fails here is no broken rule of the
//! WebSocket protocol: it only stands in the way.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use trainyard_shared::Secret;
use url::Url;

use crate::conformance::report::{Outcome, Problem, excerpt};

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The REST API of the platform that is judged.
pub struct Rest {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
}

impl Rest {
    /// The API below `base`, as the user of `token`.
    pub fn new(base: Url, token: Option<Secret>) -> Self {
        let http = reqwest::Client::builder()
            .timeout(ANSWER_WITHIN)
            .build()
            .expect("a client without settings of its own can be built");
        Self { http, base, token }
    }

    /// POST of a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.ask(Method::POST, path, |request| request.json(body))
            .await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Outcome<Value> {
        self.ask(Method::DELETE, path, |request| request).await
    }

    /// A token for a dashboard, with its user.
    pub async fn ws_token(&self) -> Outcome<WsToken> {
        let answer = self.post("api/ws-token", &json!({})).await?;
        match (answer["token"].as_str(), answer["user_id"].as_i64()) {
            (Some(token), Some(user)) => Ok(WsToken {
                token: token.to_owned(),
                user,
            }),
            _ => Err(Problem::Blocked(format!(
                "POST /api/ws-token gave no token and user_id: {answer}"
            ))),
        }
    }

    /// Stores a data set of JSON lines and returns its id.
    pub async fn dataset(&self, lines: &'static str) -> Outcome<i64> {
        let path = "api/datasets?name=conformance&format=jsonl";
        let answer = self
            .ask(Method::POST, path, |request| request.body(lines))
            .await?;
        id_of(&answer, "POST /api/datasets")
    }

    /// Asks for a job to be stopped.
    pub async fn stop_job(&self, job: i64) -> Outcome<Value> {
        self.post(&format!("api/jobs/{job}/stop"), &json!({})).await
    }

    /// The bytes behind a signed address, asked for without any credential.
    pub async fn download(&self, url: &str) -> Result<Vec<u8>, String> {
        let whole = async {
            let response = self.http.get(url).send().await?.error_for_status()?;
            response.bytes().await
        };
        whole
            .await
            .map(Into::into)
            .map_err(|error| error.without_url().to_string())
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        fill: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Outcome<Value> {
        let blocked = |why: String| Problem::Blocked(format!("{method} /{path}: {why}"));
        let token = self
            .token
            .as_ref()
            .ok_or_else(|| blocked("there is no login".to_owned()))?;
        let url = self
            .base
            .join(path)
            .map_err(|error| blocked(error.to_string()))?;
        let request = self
            .http
            .request(method.clone(), url)
            .bearer_auth(token.expose());
        let answered = fill(request)
            .send()
            .await
            .map_err(|error| blocked(error.without_url().to_string()))?;
        let status = answered.status();
        let body = answered.text().await.unwrap_or_default();
        if !status.is_success() {
            return Err(blocked(format!("HTTP {status} {}", excerpt(&body))));
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&body).map_err(|error| blocked(format!("no JSON: {error}")))
    }
}

/// What opens a dashboard's connection.
#[derive(Debug, Clone)]
pub struct WsToken {
    /// The token.
    pub token: String,
    /// Whose it is.
    pub user: i64,
}

/// The `id` of a thing that was made.
pub fn id_of(answer: &Value, call: &str) -> Outcome<i64> {
    answer["id"]
        .as_i64()
        .ok_or_else(|| Problem::Blocked(format!("{call} gave no id: {answer}")))
}
