//! The five requests of Coordinator protocol v1, each tried once: whoever asks decides when it is tried again.
//!
//! The key goes into the header `X-Anahtar` alone, and to the coordinator alone: a redirect to another server is refused,
//! as is every one of a result.

use std::path::Path;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::{Action, Attempt, Policy};
use serde::de::DeserializeOwned;
use serde_json::Value;
use trainyard_shared::Secret;
use trainyard_shared::coordinator::{ResultAccepted, Task, TaskReply};
use url::Url;

use super::VolunteerConfig;
use super::address::{self, CoordinatorAddress};
use super::error::VolunteerError;
use super::limits::DiskLimits;
use super::state::KeptResult;
use crate::tasks::transfers::{
    Download, FileBody, Http, RetryPolicy, TransferError, describe, describe_answer, passes,
    retry_after,
};
use crate::tls;

const KEY: HeaderName = HeaderName::from_static("x-anahtar");
const DIGEST: &str = "X-Sha256";
/// The longest JSON answer that is read.
const MAX_JSON_BYTES: usize = 1 << 20;
/// Redirects in a row that are followed.
const MAX_REDIRECTS: usize = 5;
/// Tries of a download without progress; then the task is asked for again.
const DOWNLOAD_TRIES: u32 = 4;
/// What a shard may take up beside its tokens and labels.
const SHARD_HEAD_BYTES: u64 = 64 * 1024 + 8;
/// For all of a small answer.
const WHOLE_ANSWER: Duration = Duration::from_secs(60);
/// Bytes of a token with its label.
const BYTES_A_TOKEN: u64 = 8;

/// Why a request came to nothing.
#[derive(Debug)]
pub(super) enum Trouble {
    /// May pass by itself; the coordinator may say when to come back.
    Passing {
        reason: String,
        retry_after: Option<Duration>,
    },
    /// The coordinator's answer is final.
    Refused { status: StatusCode, answer: String },
    /// It leads somewhere where nothing is sent to.
    Redirected(String),
    /// What came is not what the task says.
    OtherContent(String),
    /// The local disk.
    Disk(TransferError),
}

/// What becomes of a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    /// The coordinator has it.
    Taken,
    /// It belongs to another round, or this worker's is there already.
    TooLate(String),
    /// It is not valid.
    Invalid(String),
}

/// A coordinator, as one of its volunteers asks it.
pub(super) struct Client {
    http: Http,
    /// Follows no redirects: a body is not sent twice, and not as something else.
    uploads: Http,
    address: CoordinatorAddress,
    name: String,
    disk: DiskLimits,
}

impl Client {
    /// For that volunteer.
    ///
    /// # Errors
    /// A key that no header can hold; TLS cannot be set up.
    pub(super) fn new(config: &VolunteerConfig) -> Result<Self, VolunteerError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &config.key {
            let mut value = HeaderValue::from_bytes(key.expose().as_bytes()).map_err(|_| {
                VolunteerError::Arguments("the key has characters that no header can hold".into())
            })?;
            value.set_sensitive(true);
            headers.insert(KEY, value);
        }
        let retry = retry_policy(config);
        let disk = config.limits.disk;
        let tls = tls::client_config();
        let http = Http::built(retry.clone(), &tls, |builder| {
            builder
                .default_headers(headers.clone())
                .redirect(Policy::custom(redirect))
        })?
        .keeping_free(disk.keep_free_bytes);
        let uploads = Http::built(retry, &tls, |builder| {
            builder
                .default_headers(headers.clone())
                .redirect(Policy::none())
        })?;
        Ok(Self {
            http,
            uploads,
            address: config.coordinator.clone(),
            name: config.name.clone(),
            disk,
        })
    }

    /// `GET /bilgi`; none where the coordinator has no such page.
    pub(super) async fn info(&self) -> Result<Option<Value>, Trouble> {
        match self.json(self.address.endpoint("bilgi", &[])).await {
            Ok(info) => Ok(Some(info)),
            Err(Trouble::Refused {
                status: StatusCode::NOT_FOUND,
                ..
            }) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// `GET /gorev`.
    pub(super) async fn task(&self) -> Result<TaskReply, Trouble> {
        let url = self.address.endpoint("gorev", &[("isci", &self.name)]);
        self.json(url).await
    }

    /// `GET /agirlik`, into `destination`: the task's weights, or none at all.
    pub(super) async fn weights(
        &self,
        task: &Task,
        max_bytes: Option<u64>,
        destination: &Path,
    ) -> Result<(), Trouble> {
        let url = self.address.endpoint("agirlik", &[]);
        let digest = &task.weights_sha256;
        let limit = self.disk.max_weights_bytes;
        let most = max_bytes.unwrap_or(limit).min(limit);
        self.download("weights", url, digest, most, destination)
            .await
    }

    /// `GET /veri`, into `destination`: the task's shard, whose digest is `sha256`.
    pub(super) async fn shard(
        &self,
        task: &Task,
        sha256: &str,
        destination: &Path,
    ) -> Result<(), Trouble> {
        let shard = task.shard.to_string();
        let url = self.address.endpoint("veri", &[("parca", &shard)]);
        let most = |tokens: u64| {
            tokens
                .saturating_mul(BYTES_A_TOKEN)
                .saturating_add(SHARD_HEAD_BYTES)
        };
        let limit = self.disk.max_shard_bytes;
        let most = task.data_tokens.map_or(limit, most).min(limit);
        self.download("shard", url, sha256, most, destination).await
    }

    /// `POST /sonuc`.
    pub(super) async fn submit(
        &self,
        result: &KeptResult,
        path: &Path,
    ) -> Result<Submitted, Trouble> {
        let round = result.round.to_string();
        let parameters = [("isci", self.name.as_str()), ("tur", round.as_str())];
        let url = self.address.endpoint("sonuc", &parameters);
        let FileBody { body, sent } = FileBody::open(path).await.map_err(Trouble::Disk)?;
        let request = self
            .uploads
            .uploads()
            .post(url)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, result.size_bytes)
            .header(DIGEST, &result.sha256)
            .body(body);
        let answer = tokio::select! {
            answer = request.send() => answer.map_err(from_client)?,
            reason = sent.stalled(result.size_bytes) => return Err(Trouble::passing(reason)),
        };
        in_time(judged(answer, result.round)).await
    }

    async fn json<T: DeserializeOwned>(&self, url: Url) -> Result<T, Trouble> {
        in_time(self.small_json(url)).await
    }

    async fn small_json<T: DeserializeOwned>(&self, url: Url) -> Result<T, Trouble> {
        let answer = self
            .http
            .client()
            .get(url)
            .send()
            .await
            .map_err(from_client)?;
        if !answer.status().is_success() {
            return Err(from_answer(answer).await);
        }
        read_json(answer).await
    }

    async fn download(
        &self,
        name: &str,
        url: Url,
        sha256: &str,
        max_bytes: u64,
        destination: &Path,
    ) -> Result<(), Trouble> {
        let download = Download {
            name,
            url: Secret::from(url.as_str()),
            bearer: None,
            size_bytes: None,
            sha256: Some(sha256),
            digest_header: Some(DIGEST),
            max_bytes: Some(max_bytes),
            destination,
        };
        let fetched = self
            .http
            .download(&download, async || Ok(None), |_| {})
            .await;
        fetched.map_err(|error| match error {
            // That is what a redirect that is not followed looks like.
            TransferError::Refused { status, answer, .. } if status.is_success() => {
                Trouble::Redirected(answer)
            }
            TransferError::Refused { status, answer, .. } => Trouble::Refused { status, answer },
            TransferError::GivenUp { .. } => Trouble::passing(error.to_string()),
            TransferError::WrongContent { .. } => Trouble::OtherContent(error.to_string()),
            TransferError::DiskFull { .. }
            | TransferError::NoRoom { .. }
            | TransferError::Io { .. } => Trouble::Disk(error),
        })
    }
}

impl Trouble {
    fn passing(reason: impl Into<String>) -> Self {
        Self::Passing {
            reason: reason.into(),
            retry_after: None,
        }
    }
}

/// How downloads are tried again before whoever asked for them is told; they wait longer then.
pub(super) fn retry_policy(config: &VolunteerConfig) -> RetryPolicy {
    RetryPolicy {
        tries: DOWNLOAD_TRIES,
        first_delay: config.first_delay,
        longest_delay: config.longest_delay,
    }
}

fn from_client(error: reqwest::Error) -> Trouble {
    match error.is_redirect() {
        true => Trouble::Redirected(describe(error)),
        false => Trouble::passing(describe(error)),
    }
}

async fn from_answer(answer: reqwest::Response) -> Trouble {
    let status = answer.status();
    let retry_after = retry_after(answer.headers());
    let answer = describe_answer(answer).await;
    match passes(status) {
        true => Trouble::Passing {
            reason: answer,
            retry_after,
        },
        false => Trouble::Refused { status, answer },
    }
}

/// What the answer to a result means.
async fn judged(answer: reqwest::Response, round: u64) -> Result<Submitted, Trouble> {
    match answer.status() {
        status if status.is_success() => match read_json::<ResultAccepted>(answer).await? {
            accepted if accepted.accepted && accepted.round == round => Ok(Submitted::Taken),
            _ => Err(Trouble::passing(
                "the answer does not say that the result is taken",
            )),
        },
        StatusCode::CONFLICT => Ok(Submitted::TooLate(describe_answer(answer).await)),
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY => Ok(Submitted::Invalid(describe_answer(answer).await)),
        _ => Err(from_answer(answer).await),
    }
}

async fn read_json<T: DeserializeOwned>(mut answer: reqwest::Response) -> Result<T, Trouble> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(from_client)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_JSON_BYTES {
            let reason = format!("an answer of more than {MAX_JSON_BYTES} bytes");
            return Err(Trouble::passing(reason));
        }
    }
    serde_json::from_slice(&body)
        .map_err(|error| Trouble::passing(format!("the answer is not understood: {error}")))
}

/// A small answer is not waited for without end.
async fn in_time<T>(answer: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    match tokio::time::timeout(WHOLE_ANSWER, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Trouble::passing(format!(
            "no whole answer within {WHOLE_ANSWER:?}"
        ))),
    }
}

/// Redirects are followed at the coordinator's own server alone: the key is for it, and no other server is to be asked
/// in this machine's name.
fn redirect(attempt: Attempt<'_>) -> Action {
    if let Err(problem) = address::check(attempt.url()) {
        return attempt.error(problem);
    }
    if attempt.previous().len() > MAX_REDIRECTS {
        return attempt.error("too many redirects");
    }
    let origin = attempt.previous().first().map(Url::origin);
    if origin.is_some_and(|origin| origin != attempt.url().origin()) {
        return attempt.error("a redirect to another server is not followed");
    }
    attempt.follow()
}
